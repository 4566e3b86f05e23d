"""What the model needs to know of a mapping, as plain numbers.

Extracted once for a mapping and used for every schedule of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np

from amos.ir import Affine, dtype
from amos.mapping.mapping import Mapping
from amos.mapping.nest import Loop, Nest
from amos.mapping.staging import StagedOperand, staged_destination, staged_sources

__all__ = ["Dimension", "LoopBatch", "Operand", "Structure"]


#: How the elements of a copy are found.
Copy = Literal["run", "stride", "digits"]


@dataclass(frozen=True)
class Dimension:
    """One dimension of a staged operand.

    Attributes:
        terms: index of each loop that moves along it, and by how much.
        reach: how far the lanes of one call reach along it.
        points: how many positions the lanes of one call take.
        extent: its size.
    """

    terms: tuple[tuple[int, int], ...]
    reach: int
    points: int
    extent: int


@dataclass(frozen=True)
class Operand:
    """A staged operand.

    Attributes:
        name: its name in the intrinsic.
        size: bytes of one element.
        dims: its dimensions.
        loads: bytes of the register that one fragment fills, copies that the
            hardware makes of a fragment included.
        copied: elements that are copied within the kernel to stage it; 0 if it
            is used in place or packed ahead.
        origin: elements of the tensor that the copy comes from or goes to.
        copy: how the copy finds its elements: ``"run"`` moves contiguous runs,
            ``"stride"`` single elements at a fixed distance, ``"digits"`` takes
            a fused index apart for each element.
        choice: true if it may be staged ahead of the nest or tile by tile.
    """

    name: str
    size: float
    dims: tuple[Dimension, ...]
    loads: float
    copied: int
    origin: int
    copy: Copy
    choice: bool

    @property
    def indexed(self) -> frozenset[int]:
        """Loops that move along some dimension."""
        return frozenset(loop for dim in self.dims for loop, _ in dim.terms)


@dataclass(frozen=True)
class LoopBatch:
    """Schedules of one mapping as arrays, one row a schedule.

    Loops are numbered as in :class:`Structure`: spatial first, then reductions.

    Attributes:
        tile: int, rows × spatial loops: steps held in registers.
        order: int, rows × spatial loops: loop at each position, outermost first.
        reduce: int, rows × reductions: loop at each position, outermost first.
        parallel: int, rows: how many outermost positions are shared out to cores.
        unroll: int, rows: unrolled steps of the innermost reduction.
        ahead: bool, rows × operands with a choice: staged before the nest.
        block: int, rows × spatial loops: register tiles that follow one another
            inside the outer loops; all 1 if it is left out.
    """

    tile: np.ndarray
    order: np.ndarray
    reduce: np.ndarray
    parallel: np.ndarray
    unroll: np.ndarray
    ahead: np.ndarray
    block: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.block is not None and (self.block == 1).all():
            object.__setattr__(self, "block", None)

    @property
    def span(self) -> np.ndarray:
        """Steps of each spatial loop inside the outer loops: rows × spatial loops."""
        return self.tile if self.block is None else self.tile * self.block

    def __len__(self) -> int:
        return len(self.parallel)

    def rows(self, which: slice) -> LoopBatch:
        """Some of the rows."""

        def cut(name: str) -> Any:
            value = getattr(self, name)
            return value if value is None else value[which]

        return LoopBatch(*(cut(field.name) for field in fields(self)))


@dataclass(frozen=True)
class Structure:
    """The loops and operands of a mapping."""

    mapping: Mapping

    @cached_property
    def nest(self) -> Nest:
        """The mapping's nest."""
        return Nest(self.mapping)

    @cached_property
    def spatial(self) -> tuple[Loop, ...]:
        """Spatial loops with more than one step."""
        return tuple(loop for loop in self.nest.spatial if loop.extent > 1)

    @cached_property
    def reduce(self) -> tuple[Loop, ...]:
        """Reduction loops with more than one step."""
        return tuple(loop for loop in self.nest.reduce if loop.extent > 1)

    @cached_property
    def extents(self) -> np.ndarray:
        """Extent of each loop, spatial ones first."""
        return np.array([x.extent for x in (*self.spatial, *self.reduce)], dtype=np.int64)

    @cached_property
    def sources(self) -> tuple[Operand, ...]:
        """Sources, in the intrinsic's order."""
        return tuple(self._operand(op) for op in staged_sources(self.nest))

    @cached_property
    def destination(self) -> Operand:
        """The destination."""
        return self._operand(staged_destination(self.nest))

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """Names of the sources that may be staged ahead or tile by tile."""
        return tuple(op.name for op in self.sources if op.choice)

    def _operand(self, staged: StagedOperand) -> Operand:
        mapping = self.mapping
        number = {x.name: n for n, x in enumerate((*self.spatial, *self.reduce))}
        lanes = {g.lane: g.lanes for g in self.nest.groups.values()}
        names = [load.tensor.name for load in mapping.intrinsic.operands]
        size = dtype(mapping.intrinsic.dtypes[names.index(staged.name)]).bits / 8
        moved = not staged.in_place and staged.load.tensor.name not in mapping.operator.constants
        return Operand(
            staged.name,
            size,
            tuple(
                Dimension(
                    tuple((number[n], abs(c)) for n, c in dim.index.terms if n in number),
                    sum(abs(c) * (lanes[n] - 1) for n, c in dim.index.terms if n in lanes),
                    prod(lanes[n] for n, _ in dim.index.terms if n in lanes),
                    dim.extent,
                )
                for dim in staged.dims
            ),
            size * prod(self._register(staged)),
            staged.elements if moved else 0,
            staged.load.tensor.elements,
            _copy(staged),
            moved and staged.name != names[-1],
        )

    def _register(self, staged: StagedOperand) -> Sequence[int]:
        """Lanes of the register that a fragment fills, broadcast ones included."""
        targets = list(staged.fragment)
        for statement in self.mapping.intrinsic.memory:
            if statement.operand == staged.name:
                targets += [t for t in statement.broadcast if t not in targets]
        return [self.nest.groups[t].lanes for t in targets]


def _copy(staged: StagedOperand) -> Copy:
    groups = [staged.nest.groups[t] for t in staged.fragment if staged.nest.groups[t].lanes > 1]
    used = [g for g in groups if set(g.members) & staged.load.names]
    if any(len(g.members) > 1 for g in used):
        return "digits"
    if not used:
        return "run"
    last = staged.load.indices[-1]
    inner = used[-1]
    runs = last == Affine(((inner.members[0], 1),), last.constant) and not inner.is_padded
    return "run" if runs else "stride"
