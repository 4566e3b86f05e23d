"""Copies of a tensor's rows with zeros around them: in whole vectors, whatever their length.

A copy that reads a window's padding tests every element for lying in the tensor. Except for a few
elements at either end of a row the answer is known, so a row is written in pieces: zeros, whole
vectors, the remainder in ever shorter ones, zeros.
"""

from __future__ import annotations

from typing import Any

from amos._toolchain import tirx
from amos.codegen.tir.statements import rewrite, write_pieces
from amos.plan.cpu_plan import CpuPlan
from amos.plan.strided import StridedOperand


def write_rows(body: Any, plan: CpuPlan) -> Any:
    """Write the rows of staged sources, which a function's body copies in loops, in pieces."""
    rows = {
        f"stage_{op.name}": (op, plan.copies[op.name].width)
        for op in plan.sources
        if isinstance(op, StridedOperand) and op.name in plan.copies
    }

    def copy_in_pieces(loop: Any) -> Any:
        copy = loop.body
        if type(copy).__name__ != "SBlockRealize" or copy.block.name_hint not in rows:
            return None
        row = copy.iter_values[-1].same_as(loop.loop_var)
        return _copy_in_pieces(loop, *rows[copy.block.name_hint]) if row else None

    return rewrite(body, "For", copy_in_pieces)


def _copy_in_pieces(loop: Any, op: StridedOperand, width: int) -> Any:
    last, size, extent = op.dims[-1], op.sizes[-1], int(loop.extent)
    begin, end = max(0, -last.offset), min(extent, size - last.offset)
    ranges = ((0, begin), (begin, end), (end, extent))
    loops = [each for first, past in ranges for each in write_pieces(loop, first, past, width)]
    return tirx.SeqStmt(loops) if len(loops) > 1 else loops[0]
