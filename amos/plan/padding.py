"""Loops made longer, so that tiles which do not divide them come out even.

The slots beyond a loop's extent read zero from what is staged, and nothing of the
destination that belongs to them is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from amos.plan.staging import StagedDim, StagedOperand

__all__ = ["pad_operand"]


def pad_operand(op: StagedOperand, extents: Mapping[str, int]) -> StagedOperand:
    """The staged operand for longer loops.

    Args:
        op: the operand for the loops as they are.
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
