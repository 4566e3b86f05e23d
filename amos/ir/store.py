"""Stores of results to other places than the operator's statement says.

``y[n, p*28 + q, k]`` stores a tensor under another shape, ``y[k, n, p, q]`` transposed,
``y[n, p, q, k + 64]`` at an offset in a larger tensor, whose other elements keep
their values. An index may split an iteration into digits: ``y[n, p//2, q//2, p%2*8 + q%2*4 + k]``
moves each 2×2 square of an image to channels, ``y[i, i]`` stores a diagonal. Every result
has an element of its own.

Grammar, where ``index`` is that of :mod:`amos.ir.grammar` with digits for names::

    store := NAME "[" [index ("," index)*] "]"
    digit := NAME ["//" INTEGER] ["%" INTEGER]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from amos.errors import OperatorError, quote
from amos.ir.affine import Affine
from amos.ir.grammar import IndexReader
from amos.ir.limits import whole_number
from amos.ir.nodes import BufferLoad, Tensor

_EXAMPLE = "y[n, p*28 + q, k]"


@dataclass(frozen=True)
class Digit:
    """``iteration // divide % modulo``; a modulo of 0 leaves all that is above.

    >>> str(Digit("p", 4, 7)), Digit("p", 4, 7).at(33), Digit("p", 4).extent(30)
    ('p//4%7', 1, 8)
    """

    iteration: str
    divide: int = 1
    modulo: int = 0

    def at(self, value: Any) -> Any:
        """Evaluate the digit of an integer, a NumPy array, or an expression."""
        above = value // self.divide if self.divide > 1 else value
        return above % self.modulo if self.modulo else above

    def extent(self, extent: int) -> int:
        """Return the number of values for an iteration of that extent."""
        above = -(-extent // self.divide)
        return min(above, self.modulo or above)

    def __str__(self) -> str:
        divided = f"{self.iteration}//{self.divide}" if self.divide > 1 else self.iteration
        return f"{divided}%{self.modulo}" if self.modulo else divided


@dataclass(frozen=True)
class Store(BufferLoad):
    """An access to a result, by iterations and digits of them, which indices name by text."""

    digits: tuple[Digit, ...] = ()

    @cached_property
    def names(self) -> frozenset[str]:
        """Iterations that occur in any index, by themselves or in a digit."""
        digits = {str(digit): digit.iteration for digit in self.digits}
        return frozenset(digits.get(n, n) for index in self.indices for n in index.names)

    def extents(self, extents: Mapping[str, int]) -> dict[str, int]:
        """Return the extents of iterations and of the digits."""
        return {**extents, **{str(d): d.extent(extents[d.iteration]) for d in self.digits}}

    def at(self, values: Mapping[str, Any]) -> list[Any]:
        """Return the element for given iterations: integers, NumPy arrays, or expressions."""
        digits = {str(digit): digit.at(values[digit.iteration]) for digit in self.digits}
        # Reads only the names in use, so that a mapping may supply defaults.
        named = {n for index in self.indices for n in index.names if n not in digits}
        point = {name: values[name] for name in named} | digits
        return [index.evaluate(point) for index in self.indices]

    def rename(self, tensor: Callable[[str], str], iteration: Callable[[str], str]) -> Store:
        """Rename the tensor and the iterations."""
        digits = {str(d): replace(d, iteration=iteration(d.iteration)) for d in self.digits}

        def spell(name: str) -> str:
            return str(digits[name]) if name in digits else iteration(name)

        return replace(
            self,
            tensor=replace(self.tensor, name=tensor(self.tensor.name)),
            indices=tuple(index.rename(spell) for index in self.indices),
            digits=tuple(digits.values()),
        )


def parse_store(
    text: str, extents: Mapping[str, int], shapes: Mapping[str, Sequence[int]]
) -> Store:
    """Read where the points of iterations with these extents are stored.

    See :meth:`Operator.with_output <amos.ir.Operator.with_output>`.

    >>> store = parse_store("y[p//2, p%2*3 + k]", {"p": 4, "k": 3}, {})
    >>> print(store, store.tensor.shape, store.at({"p": 3, "k": 1}))
    y[p//2, p%2*3 + k] (2, 6) [1, 4]
    """
    reader = _StoreReader(text, extents, shapes)
    store = reader.store()
    if reader.next.kind != "end":
        reader.fail(f"expected the end of the text behind an access such as {_EXAMPLE!r}")
    if unknown := [name for name in shapes if name != store.tensor.name]:
        raise OperatorError(
            f"shape given for {unknown[0]!r}, which is not stored to; {store.tensor.name!r} is"
        )
    return store


def check_store(
    store: Store, iterations: Mapping[str, int], read: Iterable[str], written: Iterable[str] = ()
) -> None:
    """Refuse a store that puts two results in one element, or leaves its tensor.

    Raises:
        OperatorError: it is no such store.
    """
    where = ", ".join(iterations)
    for names, what in ((read, "a tensor that the operator reads"), (written, "another result")):
        if store.tensor.name in names:
            raise OperatorError(f"{store}: {store.tensor.name!r} is {what}; name it otherwise")
    if unknown := sorted(store.names - iterations.keys()):
        raise OperatorError(
            f"{store}: {unknown[0]!r} is no iteration of the output; these are {where}"
        )
    used = {name for index in store.indices for name in index.names}
    for name, extent in iterations.items():
        digits = [digit for digit in store.digits if digit.iteration == name]
        digits += [Digit(name)] if name in used else []
        if extent > 1 and not digits:
            raise OperatorError(
                f"{store}: {name!r} does not index it, so that {extent} results would be "
                f"stored to one element; iterations of the output are {where}"
            )
        if extent > 1 and not _is_determined(digits, extent):
            raise OperatorError(
                f"{store}: digits {' and '.join(map(str, digits))} do not tell each of {extent} "
                f"steps of {name!r} from the others, as {name}, or {name}//2 and {name}%2, do"
            )
    extents = store.extents(iterations)
    check_distinct(store, extents)
    if overrun := store.overrun(extents):
        raise OperatorError(overrun)


def _is_determined(digits: Iterable[Digit], extent: int) -> bool:
    """Return whether the digits determine each step of an iteration."""
    below = 1  # the digits so far determine the step modulo this
    for digit in sorted(digits, key=lambda term: term.divide):
        if below % digit.divide == 0:
            below = max(below, digit.divide * (digit.modulo or extent))
    return below >= extent


def check_distinct(load: BufferLoad, extents: Mapping[str, int]) -> None:
    """Refuse an access that may reach one element from two points of what its indices name.

    The test is sufficient: an index determines its remaining names if they do not overlap in it.

    Raises:
        OperatorError: no index determines some names.
    """
    determined: set[str] = set()
    unsolved = list(load.indices)
    while unsolved:
        reasons = {index: index.find_overlap(extents, determined) for index in unsolved}
        solved = [index for index, reason in reasons.items() if not reason]
        if not solved:
            index, reason = next(iter(reasons.items()))
            raise OperatorError(
                f"{load}: in index {index} {reason}, so that no two elements are one"
            )
        determined.update(name for index in solved for name in index.names)
        unsolved = [index for index in unsolved if reasons[index]]


class _StoreReader(IndexReader):
    """An access whose indices may have digits of iterations."""

    def __init__(
        self, text: str, extents: Mapping[str, int], shapes: Mapping[str, Sequence[int]]
    ) -> None:
        super().__init__(text, extents, "iteration of the output")
        self.shapes = shapes
        self.digits: dict[str, Digit] = {}

    def store(self) -> Store:
        """Read ``NAME "[" [index ("," index)*] "]"``."""
        name = self.next
        if name.kind != "name":
            self.fail(f"expected where results are stored, such as {_EXAMPLE!r}, found {name}")
        self.take()
        self.expect("[", f"behind {name.text!r}, such as in {_EXAMPLE!r}")
        indices = self.indices(name)
        used = {each for index in indices for each in index.names}
        digits = tuple(digit for text, digit in self.digits.items() if text in used)
        plain = Store(Tensor(name.text, (1,) * len(indices)), indices, digits=digits)
        extents, where = plain.extents(self.extents), f"shape of tensor {name.text!r}"
        reached = [max(1, index.bounds(extents)[1] + 1) for index in indices]
        shape = self.shapes.get(name.text, reached)
        if isinstance(shape, str) or not isinstance(shape, Sequence):
            raise OperatorError(f"{where}: expected a tuple, got {quote(shape)}")
        if len(shape) != len(indices):
            self.fail(f"{where} has {len(shape)} sizes for {len(indices)} indices", name)
        return replace(
            plain, tensor=Tensor(name.text, tuple(whole_number(size, where) for size in shape))
        )

    def atom(self) -> Affine:
        """Read ``INTEGER | digit | "(" index ")"``."""
        token, plain = self.next, super().atom()
        if token.kind != "name" or self.next.text not in ("//", "%"):
            return plain
        divide = self._factor() if self.accept("//") else 1
        digit = Digit(token.text, divide, self._factor() if self.accept("%") else 0)
        if digit == Digit(token.text):
            return plain
        self.digits[str(digit)] = digit
        return Affine(((str(digit), 1),))

    def _factor(self) -> int:
        token = self.next
        if not token.text.isdecimal() or not int(token.text):
            self.fail(f"expected a positive integer behind the sign, found {token}")
        return int(self.take().text)
