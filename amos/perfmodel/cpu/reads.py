"""Reads of sources from beyond the nearest cache, and hardware's prefetches of them."""

from __future__ import annotations

import numpy as np

from amos.machine.machine import Machine
from amos.perfmodel.traffic import CoreNest, first_fitting_depth, flat_positions, pick_at
from amos.plan.operand import PAGE, Operand

#: Rows that hardware prefetches at a time, and lines of one that it misses before it does
#: (`docs/evidence.md`, late reads).
PREFETCHED_ROWS, LINES_BEFORE_PREFETCH = 8, 8
#: Factor by which a read takes longer where no line was prefetched.
LATE_READ_FACTOR = 4.0


def scatter_penalty(operand: Operand, machine: Machine, nest: CoreNest) -> np.ndarray:
    """Predict the relative extra time of out-of-order reads from beyond the nearest cache.

    Hardware follows rows of an operand, prefetches the next lines of each, and never crosses a
    page. A loop order that moves to other rows after a short piece of each misses the first lines
    of every piece. A packed operand is stored in the order in which it is read, and so is the copy
    of a tile.
    """
    if operand.packed:
        return np.zeros(len(nest.steps))
    pitch, rows = operand.size, np.ones(1)
    for dim in reversed(operand.dims):
        if pitch >= PAGE and dim.extent > 1:
            rows = rows * nest.along(dim)
        pitch *= dim.extent
    if rows.ndim < 2:
        return np.zeros(len(nest.steps))
    depth = first_fitting_depth(rows, PREFETCHED_ROWS)
    here = flat_positions(depth)
    lines = pick_at(nest.elements(operand), here) * operand.size / machine.line
    pieces = pick_at(rows, here) * LINES_BEFORE_PREFETCH / np.maximum(lines, 1.0)
    late = np.minimum(pieces, 1.0)
    in_order = depth == 0
    if (copy := nest.steps.blocks.copies.get(operand.name)) is not None:
        in_order |= copy.is_made & ~copy.ahead
    return np.asarray(np.where(in_order, 0.0, (LATE_READ_FACTOR - 1.0) * late))
