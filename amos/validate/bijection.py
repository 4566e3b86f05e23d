"""Which elements an affine access visits over a box of iterations, decided exactly.

An access over a box visits the sum of arithmetic progressions, one for each iteration:
step ``v``, its column of coefficients, and as many terms ``n`` as its extent. As a
polynomial that counts how often each element is visited, this is the product of
``(1 - x**(n*v)) / (1 - x**v)``. The factors ``1 - x**u`` of different ``u`` are
multiplicatively independent, so that two accesses visit the same elements equally often
if and only if, beside their first element, the signed sums of ``[n*v] - [v]`` agree. No
element has to be counted for that, whatever the extents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from amos.ir import Affine

__all__ = ["Visits", "substitution"]

Vector = tuple[int, ...]


@dataclass(frozen=True)
class Visits:
    """The elements that an access visits while its iterations run.

    Attributes:
        steps: for each iteration that changes the element the signed step in each dimension.
        extents: extent of each iteration.
        first: the element of the smallest indices in lexicographic order.
        repeated: iterations that visit the same element again and again.
    """

    steps: Mapping[str, Vector]
    extents: Mapping[str, int]
    first: Vector
    repeated: tuple[str, ...]

    @staticmethod
    def of(indices: Sequence[Affine], extents: Mapping[str, int]) -> Visits:
        """What indices visit over ``range(extent)`` of each iteration."""
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
        """How many visits there are, those of the same element counted each time."""
        return prod(self.extents.values())

    def same(self, other: Visits) -> bool:
        """Whether both visit the same elements, each equally often."""
        return (
            self.first == other.first
            and self._factors == other._factors
            and prod(self.extents[n] for n in self.repeated)
            == prod(other.extents[n] for n in other.repeated)
        )

    @property
    def _factors(self) -> Mapping[Vector, int]:
        """Exponents of ``1 - x**u``, without those that are zero."""
        exponents = Counter[Vector]()
        for name, step in self.steps.items():
            forward = _forward(step)
            exponents[_times(forward, self.extents[name])] += 1
            exponents[forward] -= 1
        return {u: count for u, count in exponents.items() if count}


def substitution(write: Visits, read: Visits) -> dict[str, Affine] | None:
    """The reading iterations, as indices of the writing ones, at which both visit one element.

    Every iteration that reads is a mixed radix of iterations that write, in one of two
    directions: an affine bijection of boxes is nothing else. So a chain of steps, each the
    one before times its extent, has to make up each of them.

    Args:
        write: visits each element at most once.
        read: the other access.

    Returns:
        an index for each iteration of ``read``; ``None`` if the accesses do not visit the
        same elements once each, or only quotients and remainders would tell the iterations.
    """
    if read.repeated or write.repeated or write.first != read.first:
        return None
    by_step = {_forward(step): name for name, step in write.steps.items()}
    indices = dict.fromkeys(read.extents, Affine())
    for name, step in read.steps.items():
        radix, unit, index = 1, _forward(step), Affine()
        while radix < read.extents[name]:
            digit = by_step.pop(_times(unit, radix), None)
            if digit is None:
                return None
            index += _digit(digit, write) * radix
            radix *= write.extents[digit]
        if radix != read.extents[name]:
            return None
        indices[name] = index if step == unit else index * -1 + (radix - 1)
    return None if by_step else indices


def _digit(name: str, visits: Visits) -> Affine:
    """The iteration, counted so that its element moves forward."""
    forward = visits.steps[name] == _forward(visits.steps[name])
    return Affine(((name, 1),)) if forward else Affine(((name, -1),), visits.extents[name] - 1)


def _forward(step: Vector) -> Vector:
    """The step or its opposite, whichever leads to a later element."""
    return max(step, _times(step, -1))


def _times(step: Vector, factor: int) -> Vector:
    return tuple(factor * each for each in step)
