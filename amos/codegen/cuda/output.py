"""Accumulators to the output: through shared memory, or from the registers that hold them."""

from __future__ import annotations

from math import prod

from amos.codegen.cuda.copies import element_at, loop_values
from amos.codegen.cuda.epilogue import SUM, finished
from amos.codegen.cuda.expression import Expr, Value, at_most, text, variable
from amos.codegen.cuda.fragments import result_layout
from amos.codegen.cuda.text import block, identifier
from amos.codegen.cuda.types import cuda_type
from amos.intrinsics.expression import to_c
from amos.machine.gpu_costs import WARP
from amos.plan.gpu_plan import GpuPlan

__all__ = ["output_code"]


def output_code(program: GpuPlan) -> list[str]:
    """Every live element of every accumulator of the warp is stored, or added if split."""
    opened = program.mapping.intrinsic.open_registers
    body = _from_registers(program) if opened else _through_memory(program)
    tiled = [x.name for x in program.spatial if program.tile_of(x.name) > 1]
    for name in reversed(tiled):
        t = f"t_{identifier(name)}"
        body = [
            "#pragma unroll",
            f"for (int {t} = 0; {t} < {program.tile_of(name)}; ++{t}) {{",
            *block(body),
            "}",
        ]
    if opened:
        return body
    kind, size = cuda_type(program.accumulator).name, prod(program.scratch_shape)
    head = f"{kind} *const leaving = reinterpret_cast<{kind} *>(shared_memory) + warp * {size};"
    return [head, *body]


def _accumulator(program: GpuPlan) -> str:
    code = ""
    for loop in program.spatial:
        count = program.tile_of(loop.name)
        if count > 1:
            t = f"t_{identifier(loop.name)}"
            code = t if not code else f"({code}) * {count} + {t}"
    return f"c[{code or '0'}]"


def _through_memory(program: GpuPlan) -> list[str]:
    """WMMA hides which lane holds what: the fragment is stored, then read by element."""
    rows, columns = program.scratch_shape
    first, second = program.destination.fragment
    slow, fast = (second, first) if program.by_columns else (first, second)
    lanes = dict(zip((slow, fast), _element(rows, columns), strict=True))
    return [
        f"store_c(leaving, {_accumulator(program)});",
        "__syncwarp();",
        "#pragma unroll",
        f"for (int k = 0; k < {rows * columns // 32}; ++k) {{",
        *block(_store(program, lanes, "leaving[k * 32 + lane]")),
        "}",
        "__syncwarp();",
    ]


def _element(rows: int, columns: int) -> tuple[Value, Value]:
    """Row and column of element ``k * 32 + lane``.

    Where a row holds half of a warp or less, the column is the lane's own, and rows follow
    each other at a constant distance: the stores need one address and immediate offsets.
    """
    if WARP % columns:
        at = Expr(f"k * {WARP} + lane", 0, rows * columns - 1, False)
        return at // columns, at % columns
    lane, together = Expr("lane", 0, WARP - 1), WARP // columns
    row = variable("k", rows // together) * together + lane // columns
    return row, lane % columns


def _from_registers(program: GpuPlan) -> list[str]:
    """Each lane knows its elements (PTX ISA, matrix fragments of mma)."""
    layout = result_layout(program)
    sizes = {it.name: it.extent for it in program.mapping.intrinsic.iterations}
    lanes: dict[str, Value] = {}
    lines = ["#pragma unroll", f"for (int e = 0; e < {layout.elements}; ++e) {{"]
    for index, formula in layout.where:
        lines.append(f"  const int lane_{index} = {to_c(formula)};")
        lanes[index] = Expr(f"lane_{index}", 0, sizes[index] - 1)
    value = f"element({_accumulator(program)}, e)"
    return [*lines, *block(_store(program, lanes, value)), "}"]


def _store(program: GpuPlan, lanes: dict[str, Value], value: str) -> list[str]:
    local: dict[str, Value] = {}
    for loop in program.spatial:
        tile, warps, name = program.tile_of(loop.name), program.warps_of(loop.name), loop.name
        at: Value = 0
        if warps > 1:
            at = Expr(f"warp_{identifier(name)}", 0, warps - 1) * tile
        if tile > 1:
            at = at + Expr(f"t_{identifier(name)}", 0, tile - 1)
        local[name] = at
    values, guards = loop_values(program, local, [x.name for x in program.spatial])
    for target in program.destination.fragment:
        group = program.nest.groups[target]
        fused = values.get(group.tile, 0) * group.lanes + lanes[target]
        if at_most(fused) >= group.size:
            guards.append(f"{text(fused)} < {group.size}")
        values |= group.decode(fused)
    load = program.destination.load
    known = {name: values.get(name, 0) for name in load.names}
    place = element_at(load.tensor.shape, [index.evaluate(known) for index in load.indices])
    out = load.tensor.name
    if program.mapping.operator.epilogue is not None:
        lines = [
            f"const {cuda_type(program.accumulator).name} {SUM} = {value};",
            f"{out}[{place}] = {finished(program, known)};",
        ]
    elif program.parts > 1:
        lines = [f"atomicAdd({out} + {place}, {value});"]
    else:
        lines = [f"{out}[{place}] = {value};"]
    when = f"if ({' && '.join(dict.fromkeys(guards))}) " if guards else ""
    return [f"{when}{{", *block(lines), "}"] if when or len(lines) > 1 else lines
