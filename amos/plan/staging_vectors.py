"""Staging whole fragments: a few vector loads, and a permutation of their elements.

Where the lanes of a fragment move through the tensor in steps that are the same for
every fragment, its elements lie in a few runs at known distances. Loading the runs and permuting
them in registers stages a fragment in a few instructions; a copy by elements takes several for each
element. A window of four columns of 16 channels, say, is four loads of 16 bytes and one
permutation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from amos.plan.memoizing import memoize
from amos.plan.staging import StagedOperand

#: Most elements of one vector of a copy, and of a run.
_MOST = 64
#: Most runs of a vector.
_RUNS = 16
#: Positions of tiles that are written out one after another.
_WRITTEN_OUT = 16
#: Elements of a run that is shorter than a register, and is inserted into one.
_SHORT = 16
#: Place of an element that is known to be padding with another value than zero.
_PADDING = -(1 << 62)
#: Instructions of such an insertion, all of which use one port (measured on runs of 4).
_INSERTED = 5


@dataclass(frozen=True)
class VectorPlan:
    """The plan of one vector of a staged operand.

    Attributes:
        runs: start of each run in the tensor, in elements from the one at the vector's first
            position, and its length.
        picks: for each position of the vector, the run and the element within it; ``None``
            where it holds zero.
    """

    runs: tuple[tuple[int, int], ...]
    picks: tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True)
class VectorCopy:
    """The copy of a staged operand in vectors.

    Attributes:
        unit: number of trailing dimensions that form one vector.
        written_out: dimensions before them whose positions differ in their plan.
    """

    op: StagedOperand
    unit: int
    written_out: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Elements of a vector."""
        return prod(dim.extent for dim in self.op.dims[-self.unit :])

    @cached_property
    def instructions(self) -> float:
        """Loads, permutations and stores for one element, on average."""
        plans = [plan for plan in map(self.plan, self.places()) if plan is not None]
        runs = [n for plan in plans for _, n in plan.runs]
        # A run whose length is no power of two is read by two loads that overlap.
        steps = [(1 + bool(n & (n - 1))) * (2 if n >= _SHORT else _INSERTED) for n in runs]
        return (sum(steps) + 2 * len(plans)) / (len(plans) * self.elements)

    def places(self) -> Iterator[tuple[int, ...]]:
        """Yield the positions along the dimensions that are written out."""
        return product(*(range(self.op.dims[d].extent) for d in self.written_out))

    def positions(self) -> Iterator[tuple[int, ...]]:
        """Yield the positions of a vector's elements along its dimensions, in order."""
        return product(*(range(dim.extent) for dim in self.op.dims[-self.unit :]))

    @memoize
    def plan(self, place: tuple[int, ...]) -> VectorPlan | None:
        """Return the plan at a position of the unrolled dimensions; ``None`` if there is none.

        There is none where a slot is known to hold a padding's value: it may also be a lane beyond
        its loop, which holds zero, and only the step tells.
        """
        fixed = {
            self.op.dims[d].index.names[0]: at
            for d, at in zip(self.written_out, place, strict=True)
        }
        names = [dim.index.names[0] for dim in self.op.dims[-self.unit :]]
        places: list[int | None] = []
        for position in self.positions():
            at = fixed | dict(zip(names, position, strict=True))
            where = self._lanes.element(at)
            if where == _PADDING:
                return None
            places.append(where)
        first = self._lanes.element(fixed | dict.fromkeys(names, 0), live=False)
        return _plan(places, first or 0)

    @cached_property
    def _lanes(self) -> _Lanes:
        return _Lanes(self.op)


def vector_copy(op: StagedOperand) -> VectorCopy | None:
    """Return how to copy an operand in vectors; ``None`` where its elements are no such runs."""
    if op.in_place or not op.fragment or op.nest.mapping.intrinsic.tile_registers:
        return None
    if op.computed:
        return None  # Computed elements have no addresses.
    digits = [
        d
        for d, dim in enumerate(op.dims[: -len(op.fragment)])
        if dim.dimension < 0 and _is_digit(op, dim.index.names[0])
    ]
    unit = len(op.fragment)
    elements = prod(dim.extent for dim in op.dims[-unit:])
    # Tiles right before the fragment, whose positions are known, lengthen the vector.
    while unit < len(op.dims) and len(op.dims) - unit - 1 in digits:
        longer = elements * op.dims[-unit - 1].extent
        if longer > _MOST:
            break
        unit, elements = unit + 1, longer
    enclosing = tuple(d for d in digits if d < len(op.dims) - unit)
    copy = VectorCopy(op, unit, enclosing)
    if not 1 < elements <= _MOST or prod(op.dims[d].extent for d in enclosing) > _WRITTEN_OUT:
        return None
    return copy if all(copy.plan(place) is not None for place in copy.places()) else None


def _is_digit(op: StagedOperand, name: str) -> bool:
    """Return whether iterations of a tile loop are digits of a fused index, not steps along one."""
    groups = [op.nest.groups[t] for t in op.fragment]
    return any(g.tile == name and _takes_apart(op, g.target) for g in groups)


def _takes_apart(op: StagedOperand, target: str) -> bool:
    group = op.nest.groups[target]
    several = sum(radix > 1 for radix in group.radices) > 1
    return group.tiles > 1 and several and bool(set(group.members) & op.load.names)


class _Lanes:
    """Addresses of a fragment's elements, relative to the tile's first."""

    def __init__(self, op: StagedOperand) -> None:
        extents, load = op.nest.mapping.operator.extents, op.load
        self._groups = []
        #: Iterations whose values are exact, not relative to the tile's first.
        exact = {name for name in load.names if extents[name] == 1}
        for target in op.fragment:
            group, long = op.nest.groups[target], None
            if read := bool(set(group.members) & load.names):
                if group.tiles > 1 and not _takes_apart(op, target):
                    long = next(n for n, radix in enumerate(group.radices) if radix > 1)
                else:
                    exact |= set(group.members)
            self._groups.append((group, read, None if long is None else group.members[long]))
        self._has_padding = op.load.padding != op.empty
        #: Elements of the tensor from one iteration of a loop to the next.
        self._steps = dict.fromkeys(load.names, 0)
        self._checked = []
        length = 1
        for index, size in zip(reversed(load.indices), reversed(load.tensor.shape), strict=True):
            for name, coefficient in index.terms:
                self._steps[name] += length * coefficient
            if exact.issuperset(index.names):
                self._checked.append((index.constant, index.terms, size))
            length *= size

    def element(self, at: dict[str, int], *, live: bool = True) -> int | None:
        """Return the place of an element; ``None`` if its slot is known to be zero."""
        values: dict[str, int] = {}
        for group, read, long in self._groups:
            lane = at[group.lane]
            if not read:
                if live and lane and group.kind == "reduce" and not group.members:
                    return None
            elif long is not None:
                values[long] = lane
            else:
                fused = at.get(group.tile, 0) * group.lanes + lane
                if live and fused >= group.size:
                    return None
                values |= group.decode(fused)
        if live:
            for constant, terms, size in self._checked:
                if not 0 <= constant + sum(c * values.get(n, 0) for n, c in terms) < size:
                    return _PADDING if self._has_padding else None
        return sum(self._steps.get(name, 0) * value for name, value in values.items())


def _plan(places: list[int | None], first: int) -> VectorPlan | None:
    """Plan runs for elements at these places, counted from ``first``."""
    runs: list[list[int]] = []
    for place in sorted({p for p in places if p is not None}):
        if runs and place - runs[-1][0] < _MOST:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    if len(runs) > _RUNS:
        return None
    picks: list[tuple[int, int] | None] = []
    for target in places:
        if target is None:
            picks.append(None)
            continue
        run = next(n for n, (_, high) in enumerate(runs) if target <= high)
        picks.append((run, target - runs[run][0]))
    return VectorPlan(tuple((low - first, high - low + 1) for low, high in runs), tuple(picks))
