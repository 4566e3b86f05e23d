"""Staged operands for longer loops, and in the order in which they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from amos.ir import dtype
from amos.plan.schedule import CpuSchedule
from amos.plan.staging import StagedDim, StagedOperand


def pad_operand(op: StagedOperand, extents: Mapping[str, int]) -> StagedOperand:
    """Pad a staged operand to longer loops, which the tiles divide.

    Slots of sources beyond a loop's extent hold zero; those of the destination are dropped.

    Args:
        extents: new extent of each loop that becomes longer.
    """
    loops = {loop.name: loop.extent for loop in op.nest.loops}
    grown = {name: extent - loops[name] for name, extent in extents.items()}
    return replace(op, dims=tuple(_pad(dim, grown) for dim in op.dims))


def _pad(dim: StagedDim, grown: Mapping[str, int]) -> StagedDim:
    steps = [c * grown.get(name, 0) for name, c in dim.index.terms]
    before, after = -sum(min(s, 0) for s in steps), sum(max(s, 0) for s in steps)
    if not before and not after:
        return dim
    return StagedDim(
        dim.extent + before + after, dim.index + before, dim.dimension, dim.offset - before
    )


def order_for_reading(op: StagedOperand, schedule: CpuSchedule) -> StagedOperand:
    """Order the fragments of a staged operand as the kernel reads them.

    The dimensions come in the order of the loops: outer spatial loops, reductions,
    then the positions of a register tile along a spatial loop. Each step of the reduction
    reads a contiguous range right after that of the step before: a stream that the
    prefetchers of every CPU follow.
    """
    nest = op.nest
    outer = {loop.name: n for n, loop in enumerate(schedule.spatial_order(nest))}
    steps = {loop.name: n for n, loop in enumerate(schedule.reduce_order(nest))}
    count = len(op.dims) - len(op.fragment)
    ranked: list[tuple[tuple[int, int], StagedDim]] = []
    for dim in op.dims[:count]:
        name = dim.index.names[0] if dim.index.names else ""
        if name in steps:
            ranked.append(((1, steps[name]), dim))
            continue
        tile = schedule.tile[name] if name in outer and dim.dimension < 0 else 1
        if tile > 1:
            tile_dim = replace(dim, extent=tile, modulo=tile)
            ranked.append(((2, -tile), tile_dim))
            dim = replace(dim, extent=dim.extent // tile, divide=tile)
        ranked.append(((0, outer.get(name, -1)), dim))
    # Python's sort is stable: dimensions of equal rank stay in the tensor's order.
    leading = [dim for _, dim in sorted(ranked, key=lambda pair: pair[0])]
    return replace(op, dims=(*leading, *op.dims[count:]))


def group_columns(op: StagedOperand) -> StagedOperand:
    """Lay out a tile's second source: rows of 64 bytes, groups of 32 bits by column.

    Elements that follow one another along the reduction share a column.
    """
    *leading, depth, column = op.dims
    group = 32 // dtype(op.kind).bits
    rows = StagedDim(depth.extent // group, depth.index, divide=group)
    group_dim = StagedDim(group, depth.index, modulo=group)
    return replace(op, dims=(*leading, rows, column, group_dim))
