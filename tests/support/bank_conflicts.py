"""What a kernel loses to the banks of shared memory, with its own rows and its own lanes."""

from __future__ import annotations

import numpy as np

from amos.intrinsics.expression import evaluate
from amos.machine.gpu_costs import WARP
from amos.plan.banks import BANK_BYTES, WORD, matrix_cycles, swizzled, wavefronts
from amos.plan.shared_operand import SharedOperand

__all__ = ["bank_conflicts"]


def bank_conflicts(source: SharedOperand) -> int:
    """Cycles beyond the fewest possible that a warp needs to load one fragment.

    Sources of 16 bits come by ``ldmatrix``, others with ``mma.sync`` as their lanes hold
    them. WMMA hides how it loads; compilers take ``ldmatrix`` for 16 bits from sm_75 on,
    and rows of 16 bytes are assumed for the rest.
    """
    tile, size = source.tile, source.size
    rows, width, stride = tile.rows.lanes, tile.columns.lanes * size, source.row * size
    swizzle = source.padding < 0
    memory = tile.nest.mapping.intrinsic.memory
    layout = next(m.layout for m in memory if m.operand == source.name)
    if size == 2 or layout is None:
        found = matrix_cycles(rows, width, stride, swizzle=swizzle)
        return found - matrix_cycles(rows, width, 16)
    along = tile.columns.target == "r1"
    wide = max(size, WORD) if along else size
    total = 0
    for e in range(0, layout.elements, wide // size):
        places = []
        for lane in range(WARP):
            at = {index: evaluate(text, {"lane": lane, "e": e}) for index, text in layout.where}
            row, column = at[tile.rows.target], at[tile.columns.target] * size
            if swizzle:
                column = int(swizzled(np.array(row), np.array(column), width))
            places.append(row * stride + column)
        total += wavefronts(np.array([places]), wide) - max(1, WARP * wide // BANK_BYTES)
    return total
