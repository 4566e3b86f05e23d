"""Exact sets of elements that affine accesses visit over a box of iterations.

An access over a box visits the sum of arithmetic progressions, one for each iteration:
step ``v``, its column of coefficients, and as many terms ``n`` as its extent. As a
polynomial that counts how often each element is visited, this is the product of
``(1 - x**(n*v)) / (1 - x**v)``. The factors ``1 - x**u`` of different ``u`` are
multiplicatively independent, so that two accesses visit the same elements equally often
if and only if their first elements and the signed sums of ``[n*v] - [v]`` agree. No element
is counted, whatever the extents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from amos.ir import Affine, Digit

Vector = tuple[int, ...]


@dataclass(frozen=True)
class Visits:
    """The elements that an access visits while its iterations run.

    Attributes:
        steps: for each iteration that changes the element the signed step in each dimension.
        first: the element of the smallest indices in lexicographic order.
        repeated: iterations that do not change the element.
    """

    steps: Mapping[str, Vector]
    extents: Mapping[str, int]
    first: Vector
    repeated: tuple[str, ...]

    @staticmethod
    def of(indices: Sequence[Affine], extents: Mapping[str, int]) -> Visits:
        """Compute the elements that indices visit over ``range(extent)`` of each iteration."""
        columns = {
            name: tuple(index.coefficient(name) for index in indices)
            for name, extent in extents.items()
            if extent > 1
        }
        steps = {name: column for name, column in columns.items() if any(column)}
        repeated = tuple(name for name in columns if name not in steps)
        first = [index.constant for index in indices]
        for name, step in steps.items():
            if step < (0,) * len(step):
                first = [f + s * (extents[name] - 1) for f, s in zip(first, step, strict=True)]
        return Visits(steps, extents, tuple(first), repeated)

    @property
    def points(self) -> int:
        """Number of visits, counting repeated visits of an element."""
        return prod(self.extents.values())

    def has_same_elements(self, visits: Visits) -> bool:
        """Return whether both visit the same elements, each equally often."""
        return (
            self.first == visits.first
            and self._factors == visits._factors
            and prod(self.extents[n] for n in self.repeated)
            == prod(visits.extents[n] for n in visits.repeated)
        )

    @property
    def _factors(self) -> Mapping[Vector, int]:
        """Exponents of ``1 - x**u``, without those that are zero."""
        exponents = Counter[Vector]()
        for name, step in self.steps.items():
            forward = _orient_forward(step)
            exponents[_times(forward, self.extents[name])] += 1
            exponents[forward] -= 1
        return {u: count for u, count in exponents.items() if count}


@dataclass(frozen=True)
class Substitution:
    """Iterations expressed by others, or by digits of others, which indices name by their text."""

    indices: Mapping[str, Affine]
    digits: tuple[Digit, ...] = ()


def substitution(write: Visits, read: Visits, digits: Sequence[Digit] = ()) -> Substitution | None:
    """Express the reading iterations by the writing ones where both visit the same element.

    Each reading iteration is a chain of digits of writing iterations: a digit's step is the step
    of the digit before times the number of that digit's values.

    Returns:
        ``None`` if the accesses do not visit the same elements once each, or if no digits express
        the reading iterations.
    """
    if read.repeated or write.repeated or write.first != read.first:
        return None
    base = {name: Digit(name) for name in write.extents} | {str(each): each for each in digits}
    open_runs = {
        _orient_forward(step): _Run(base[name], write.extents[name], step != _orient_forward(step))
        for name, step in write.steps.items()
    }
    chains = {
        name: _Chain(_orient_forward(step), read.extents[name]) for name, step in read.steps.items()
    }
    # An iteration of a single value is its namesake if that has one value, too, else 0.
    single = {name for name, extent in write.extents.items() if extent == 1}
    complete = {name: Affine(((name, 1),) if name in single else ()) for name in read.extents}
    used: list[Digit] = []
    while chains:
        name = next((name for name, chain in chains.items() if chain.step in open_runs), None)
        if name is None:
            return None
        chain = chains[name]
        run = open_runs.pop(chain.step)
        values = gcd(run.extent, chain.remaining)
        if values == 1:
            return None
        chain, digit = chain.extend(run, values), run.digit(values)
        used += [digit] if digit != Digit(digit.iteration) else []
        if run.extent > values:
            open_runs[chain.step] = run.remove_digit(values)
        chains[name] = chain
        if chain.remaining == 1:
            back = read.steps[name] != _orient_forward(read.steps[name])
            complete[name] = chain.index * -1 + (chain.radix - 1) if back else chain.index
            del chains[name]
    return None if open_runs else Substitution(complete, tuple(used))


@dataclass(frozen=True)
class _Run:
    """The higher digits of a writing iteration, which are not used yet."""

    source: Digit
    extent: int
    back: bool

    def digit(self, values: int) -> Digit:
        """Return the lowest digit of that many values."""
        highest = values == self.extent
        return replace(self.source, modulo=self.source.modulo if highest else values)

    def remove_digit(self, values: int) -> _Run:
        """Return the run without its lowest digit."""
        above = self.source
        modulo = above.modulo // values
        return replace(
            self,
            source=replace(above, divide=above.divide * values, modulo=modulo),
            extent=self.extent // values,
        )


@dataclass(frozen=True)
class _Chain:
    """A reading iteration, as far as digits express it."""

    step: Vector
    remaining: int
    radix: int = 1
    index: Affine = Affine()

    def extend(self, run: _Run, values: int) -> _Chain:
        """Return the chain with another digit on top."""
        name = Affine(((str(run.digit(values)), 1),))
        digit = name * -1 + (values - 1) if run.back else name
        return _Chain(
            _times(self.step, values),
            self.remaining // values,
            self.radix * values,
            self.index + digit * self.radix,
        )


def _orient_forward(step: Vector) -> Vector:
    """Return the step or its opposite, whichever leads to a later element."""
    return max(step, _times(step, -1))


def _times(step: Vector, factor: int) -> Vector:
    return tuple(factor * each for each in step)
