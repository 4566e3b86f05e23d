"""Conflicts of lines that map to the same sets of the nearest cache."""

from __future__ import annotations

from math import gcd

import numpy as np

from amos.perfmodel.traffic import CoreNest
from amos.plan.operand import PAGE, Operand


def conflict_bytes(operand: Operand, nest: CoreNest) -> np.ndarray | None:
    """Return the bytes of the nearest cache that an operand's set conflicts make useless to it.

    Rows whose distance is a multiple of a large power of two map to few of the sets. The cache
    holds as much of them as if all its sets were equally full.

    Returns:
        depths × schedules; nothing if its lines fall into all sets.
    """
    sets, pitch, aligned = PAGE // nest.line, operand.size, False
    reached = np.ones(1)
    spacing = np.full(1, PAGE)
    for dim in reversed(operand.dims):
        if dim.extent > 1:
            steps = np.asarray(nest.along(dim))
            far = nest.line if pitch < nest.line else max(gcd(int(pitch), PAGE), nest.line)
            lines = np.ceil(steps * pitch / nest.line) if pitch < nest.line else steps
            reached = reached * np.minimum(lines, PAGE // far)
            spacing = np.gcd(spacing, np.where(lines > 1, far, PAGE))
            aligned = aligned or far > nest.line
        pitch *= dim.extent
    if not aligned:
        return None
    share = np.minimum(reached, PAGE // spacing) / sets
    return np.asarray(nest.footprint(operand) * (1.0 / share - 1.0))
