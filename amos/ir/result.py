"""Further results of the sums of an operator, stored by the same kernel as the first.

``f[n,p,q,k] = f32(acc * scale[k])`` stores another function of each sum. With another
sign it is a reduction: ``mean[n,k] += acc * 0.02``, ``top[n,p] max= acc`` or
``least[] min= u8(acc)`` combines the expression's values along the iterations that do not
index the result. Integer elements are added up as ``int32``, which wraps around, floats as
``float32`` in an order that the kernel chooses.
A finished reduction may have an expression of its own, ``mean[n,k] += acc then u8(acc * 0.02)``:
there ``acc`` is the reduction, and tensors are indexed by the result's iterations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from amos.errors import OperatorError, ParseError
from amos.ir.dtypes import dtype
from amos.ir.epilogue import Epilogue
from amos.ir.expression_parser import parse_epilogue, tensors_in
from amos.ir.nodes import BufferLoad, Tensor
from amos.ir.store import Store, check_store, parse_store
from amos.ir.tokens import to_one_line

#: How elements become a result: each by itself, or combined along some iterations.
Combination = Literal["=", "+=", "max=", "min="]
_TEXT = re.compile(r"\s*(?P<left>.*?[\])\w])\s*(?P<sign>(?:(?<!\w)\w+|[^\w\s\])])?=)(?P<right>.*)")


@dataclass(frozen=True)
class Result:
    """A further result.

    Attributes:
        store: where it is stored; a reduction by some of the output's iterations only.
        epilogue: applied to each sum.
        combination: stores or reduces the elements.
        last: applied to a reduction when it is complete.
    """

    store: Store
    epilogue: Epilogue
    combination: Combination = "="
    last: Epilogue | None = None

    @property
    def reduces(self) -> bool:
        """Whether it reduces several elements to one."""
        return self.combination != "="

    @property
    def epilogues(self) -> tuple[Epilogue, ...]:
        """Its expressions."""
        return (self.epilogue,) if self.last is None else (self.epilogue, self.last)

    def combination_dtype(self, accumulator: str) -> str:
        """Return the dtype in which the elements of a reduction are combined."""
        is_integer = dtype(self.epilogue.result(accumulator)).is_integer
        return "int32" if is_integer else "float32"

    def tensor(self, accumulator: str | None) -> Tensor:
        """Return the result's tensor for an accumulator of that dtype."""
        if accumulator is None:
            return self.store.tensor
        kind = (
            self.combination_dtype(accumulator)
            if self.reduces
            else self.epilogue.result(accumulator)
        )
        return replace(
            self.store.tensor, dtype=kind if self.last is None else self.last.result(kind)
        )

    def rename(
        self,
        tensor: Callable[[str], str],
        iteration: Callable[[str], str],
        load: Callable[[BufferLoad], BufferLoad],
    ) -> Result:
        """Rename tensors and iterations; ``load`` renames an access of the expression."""
        store = self.store.rename(tensor, iteration)
        last = self.last and self.last.with_loads(load)
        return replace(self, store=store, epilogue=self.epilogue.with_loads(load), last=last)

    def __str__(self) -> str:
        return f"{self.store} {self.combination} {' then '.join(map(str, self.epilogues))}"


def parse_result(
    text: str,
    extents: Mapping[str, int],
    dtypes: Mapping[str, str],
    shapes: Mapping[str, Sequence[int]],
    read: Sequence[Tensor] = (),
) -> Result:
    """Read a further result of an output whose iterations have these extents.

    Tensors that are read already have their dtypes and shapes; see
    :meth:`Operator.with_result <amos.ir.Operator.with_result>`.

    >>> print(parse_result("top[p]max=u8(acc * scale[k])", {"p": 2, "k": 4}, {}, {}))
    top[p] max= u8(acc * scale[k])
    >>> print(parse_result("m[p] += acc then acc*0.5", {"p": 2, "k": 4}, {}, {}))
    m[p] += acc then acc * 0.5
    """
    line = to_one_line(text)
    match = _TEXT.fullmatch(line)
    if match is None:
        raise ParseError(
            "expected a result such as 'f[n, k] = f32(acc)' or 'top[n] max= acc'", line, 0
        )
    if match["sign"] not in (signs := get_args(Combination)):
        expected = f"{', '.join(signs[:-1])} or {signs[-1]}"
        raise ParseError(f"expected {expected}, got {match['sign']}", line, match.start("sign"))
    sign: Combination = match["sign"]  # type: ignore[assignment]
    name = match["left"].partition("[")[0].strip()
    store = parse_store(match["left"], extents, {n: s for n, s in shapes.items() if n == name})
    alike = [tensor for tensor in read if tensor.name in tensors_in(match["right"])]
    kinds = {x.name: x.kind.declared for x in alike if x.kind is not None} | {**dtypes}
    sizes: dict[str, Sequence[int]] = {tensor.name: tensor.shape for tensor in alike}
    sizes |= {n: s for n, s in shapes.items() if n != name}
    texts = match["right"].split(" then ", 1)

    def expression(text: str) -> Epilogue:
        tensor_names = tensors_in(text) if len(texts) > 1 else {*kinds, *sizes}

        def of(values: Mapping[str, Any]) -> dict[str, Any]:
            return {n: value for n, value in values.items() if n in tensor_names or n not in used}

        return parse_epilogue(text, extents, of(kinds), of(sizes))

    used = tensors_in(match["right"])
    return Result(store, expression(texts[0]), sign, *map(expression, texts[1:]))


def check_result(
    result: Result, iterations: Mapping[str, int], read: Sequence[str], written: Sequence[str]
) -> None:
    """Refuse a result that stores two elements in one place, or has another's name.

    Raises:
        OperatorError: it is no such result.
    """
    stored = iterations
    if result.last is not None and not result.reduces:
        raise OperatorError(f"{result}: then follows +=, max= or min=; write one expression")
    if result.reduces:
        stored = {name: n for name, n in iterations.items() if name in result.store.names}
        if len(stored) == len(iterations):
            raise OperatorError(
                f"{result}: every iteration of the output, {', '.join(iterations)}, indexes it, so "
                "that there is nothing to reduce; write ="
            )
    check_store(result.store, stored, read, written)
    for load in result.last.loads if result.last is not None else ():
        if reduced := sorted(load.names - stored.keys()):
            raise OperatorError(
                f"{result}: {load} is indexed by {reduced[0]!r}, along which {result.store} is "
                "reduced"
            )
