"""A scheduled loop nest as the model sees it, and the data its parts touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, Protocol

from amos.ir import dtype
from amos.mapping.nest import Nest
from amos.mapping.staging import StagedOperand

__all__ = [
    "LoopSchedule",
    "Role",
    "ScheduledLoop",
    "divided",
    "element_bytes",
    "footprint",
    "traffic",
    "trips",
]

Role = Literal["parallel", "serial", "register"]


@dataclass(frozen=True)
class ScheduledLoop:
    """One loop of the scheduled nest.

    Attributes:
        loop: the loop of the nest that it is, or is a part of.
        extent: its trip count.
        stride: how far one step moves the nest's loop.
        role: divided over cores, run in order, or unrolled into registers.
    """

    loop: str
    extent: int
    stride: int
    role: Role


class LoopSchedule(Protocol):
    """Anything that can say how it orders the loops of a nest."""

    def loops(self, nest: Nest) -> tuple[ScheduledLoop, ...]:
        """Scheduled loops from the outermost to the innermost."""
        ...

    def stages_ahead(self, operand: str) -> bool:
        """True if a gathered source is staged before the nest, not tile by tile."""
        ...


def _indexed_by(staged: StagedOperand) -> frozenset[str]:
    return frozenset(name for dim in staged.dims for name in dim.index.names)


def element_bytes(staged: StagedOperand) -> float:
    """Bytes of one element as the intrinsic takes it."""
    names = [load.tensor.name for load in staged.nest.mapping.intrinsic.operands]
    kind = staged.nest.mapping.intrinsic.dtypes[names.index(staged.name)]
    return dtype(kind).bits / 8


def footprint(staged: StagedOperand, inner: Sequence[ScheduledLoop]) -> float:
    """Bytes of a staged operand that the loops ``inner`` touch in one execution.

    Exact for windows with stride 1; with gaps, the smaller of the window and the
    number of points.
    """
    elements = 1
    groups = {g.lane: g.lanes for g in staged.nest.groups.values()}
    for dim in staged.dims:
        reach, points = 0, 1
        for name, c in dim.index.terms:
            if name in groups:
                reach += abs(c) * (groups[name] - 1)
                points *= groups[name]
            for loop in inner:
                if loop.loop == name:
                    reach += abs(c) * loop.stride * (loop.extent - 1)
                    points *= loop.extent
        elements *= min(reach + 1, points, dim.extent)
    return elements * element_bytes(staged)


def traffic(staged: StagedOperand, loops: Sequence[ScheduledLoop], depth: int) -> float:
    """Bytes to move so that ``loops[depth:]`` always find the operand inside.

    Loops directly around ``depth`` that do not index the operand find it where
    it is and move nothing.
    """
    indexed = _indexed_by(staged)
    outside = list(loops[:depth])
    while outside and (outside[-1].loop not in indexed or outside[-1].extent == 1):
        outside.pop()
    return footprint(staged, loops[depth:]) * trips(outside)


def trips(loops: Sequence[ScheduledLoop]) -> int:
    """How often what is inside these loops runs."""
    return prod(loop.extent for loop in loops)


def divided(loops: Sequence[ScheduledLoop], parts: int) -> tuple[ScheduledLoop, ...]:
    """The loops of one part when the parallel ones are shared out among ``parts``.

    The outermost parallel loop is cut first, as a fused parallel loop is when its
    range is split into contiguous chunks. The largest part is returned.
    """
    result = []
    for loop in loops:
        if loop.role == "parallel" and parts > 1:
            ways = min(loop.extent, parts)
            loop, parts = replace(loop, extent=-(-loop.extent // ways)), -(-parts // ways)
        result.append(loop)
    return tuple(result)
