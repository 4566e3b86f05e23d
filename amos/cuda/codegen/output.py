"""Accumulators to the output: through shared memory, or from the registers that hold them."""

from __future__ import annotations

from math import prod

from amos.codegen.device.access import locate_result
from amos.codegen.device.arithmetic import SUM
from amos.codegen.device.text import (
    block,
    fragment_at,
    identifier,
    over_fragments,
    result_at,
    unroll,
)
from amos.cuda.codegen.epilogue import write_result
from amos.cuda.codegen.fragments import result_layout
from amos.cuda.codegen.reductions import combine_element, combine_lanes
from amos.cuda.codegen.text import cuda_type
from amos.cuda.fragment_tiles import tiles_of
from amos.cuda.plan import GpuPlan
from amos.intrinsics.expression import to_c
from amos.ir import Result
from amos.ir.index_text import Expr, Value, variable
from amos.machine.gpu_costs import WARP


def output_code(plan: GpuPlan) -> list[str]:
    """Store each live element of each accumulator of the warp; add it if the sum is split."""
    tile = plan.schedule.tile
    tiled = [x.name for x in plan.spatial if tile[x.name] > 1]
    accumulator = f"c[{fragment_at(tile, tiled)}]"
    if plan.mapping.intrinsic.open_registers:
        return over_fragments(tile, tiled, _from_registers(plan, accumulator))
    kind, size = cuda_type(plan.accumulator), prod(plan.scratch_shape)
    head = f"{kind} *const leaving = reinterpret_cast<{kind} *>(shared_memory) + warp * {size};"
    return [head, *over_fragments(tile, tiled, _through_memory(plan, accumulator))]


def _through_memory(plan: GpuPlan, accumulator: str) -> list[str]:
    """Store a WMMA fragment, whose layout is hidden, in memory and read it by element."""
    rows, columns = plan.scratch_shape
    first, second = tiles_of(plan.structure)[-1].statement.indices
    slow, fast = (second, first) if plan.by_columns else (first, second)
    lanes = dict(zip((slow, fast), _element(rows, columns), strict=True))
    return [
        f"store_c(leaving, {accumulator});",
        "__syncwarp();",
        *unroll("k", rows * columns // 32, _store(plan, lanes, "leaving[k * 32 + lane]")),
        "__syncwarp();",
    ]


def _element(rows: int, columns: int) -> tuple[Value, Value]:
    """Write row and column of element ``k * 32 + lane``.

    Where a row holds half of a warp or less, the column is the lane's own, and rows follow
    each other at a constant distance: the stores need one address and immediate offsets.
    """
    if WARP % columns:
        at = Expr(f"k * {WARP} + lane", 0, rows * columns - 1, False)
        return at // columns, at % columns
    lane, rows_per_warp = Expr("lane", 0, WARP - 1), WARP // columns
    row = variable("k", rows // rows_per_warp) * rows_per_warp + lane // columns
    return row, lane % columns


def _from_registers(plan: GpuPlan, accumulator: str) -> list[str]:
    """Store elements from the lanes that hold them (PTX ISA, matrix fragments of mma)."""
    layout = result_layout(plan)
    sizes = {it.name: it.extent for it in plan.mapping.intrinsic.iterations}
    lines = [f"const int lane_{index} = {to_c(formula)};" for index, formula in layout.where]
    lanes: dict[str, Value] = {
        index: Expr(f"lane_{index}", 0, sizes[index] - 1) for index, _ in layout.where
    }
    lines += _store(plan, lanes, f"element({accumulator}, e)")
    return unroll("e", layout.elements, lines)


def _store(plan: GpuPlan, lanes: dict[str, Value], value: str) -> list[str]:
    local: dict[str, Value] = {}
    for loop in plan.spatial:
        name, tile = identifier(loop.name), plan.schedule.tile[loop.name]
        warp = variable(f"warp_{name}", plan.schedule.warps[loop.name])
        local[loop.name] = plan.step(loop.name, warp, variable(f"t_{name}", tile))
    point = locate_result(plan, plan.destination.fragment, local, lanes)
    at, condition, kind = point.at, point.condition, plan.accumulator
    named = [f"const {cuda_type(kind)} {SUM} = {value};"]
    reductions = [
        line
        for result, bits in _meeting(plan).items()
        for line in combine_lanes(result, kind, result_at(result.store, at), at, condition, bits)
    ]
    lines = _results(plan, at, SUM if reductions else value)
    when = f"if ({condition}) " if condition else ""
    if when or len(lines) > 1:
        lines = [f"{when}{{", *block(lines), "}"]
    return ["{", *block([*named, *lines, *reductions]), "}"] if reductions else lines


def _meeting(plan: GpuPlan) -> dict[Result, tuple[int, ...]]:
    """List reductions in which lanes of a warp share an element, and the bits that differ."""
    tile = tiles_of(plan.structure)[-1]
    meetings = {x: tile.meeting(x.store.names) for x in plan.mapping.operator.further if x.reduces}
    return {result: bits for result, bits in meetings.items() if bits}


def _results(plan: GpuPlan, at: dict[str, Value], value: str) -> list[str]:
    """Store each result of an accumulator that no two lanes share."""
    op, kind, lines = plan.mapping.operator, plan.accumulator, []
    meeting = _meeting(plan)
    if op.epilogues and value != SUM:
        lines, value = [f"const {cuda_type(kind)} {SUM} = {value};"], SUM
    if op.epilogue is not None:
        value = write_result(op.epilogue, kind, at)
    out, place = op.stored.tensor.name, result_at(op.stored, at)
    if plan.parts > 1:
        lines.append(f"atomicAdd({out} + {place}, {value});")
    else:
        lines.append(f"{out}[{place}] = {value};")
    for result in (each for each in op.further if each not in meeting):
        out, place = result.store.tensor.name, result_at(result.store, at)
        if result.reduces:
            lines.append(combine_element(result, kind, place, at))
        else:
            lines.append(f"{out}[{place}] = {write_result(result.epilogue, kind, at)};")
    return lines
