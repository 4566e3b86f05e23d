"""Prefetches of weights and residuals.

A core reads the weights of a register tile from far memory, and then again for each tile that
shares them. Hardware alone does not hide the latency of the first reads. So each step of the
reduction prefetches a small piece of the next tile's weights, and the tiles that share weights
fetch all of them together. To prefetch a line that is cached already, or beyond the end, does no
harm.

An epilogue reads its tensors once, after the reduction of a register tile. They are cached by then
if they are prefetched before the reduction begins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from amos._toolchain import ir, sym, tirx, tvm_ffi
from amos.codegen.tir.program import STORED, Program, step_variable
from amos.codegen.tir.skipping import iterations
from amos.codegen.tir.statements import (
    BlockNest,
    collect_nodes,
    common_loops,
    copy_loop,
    find_block,
    occurs,
    replace_loop,
)
from amos.ir import dtype
from amos.plan.cpu_copies import LINE_BYTES

#: Arguments of LLVM's prefetch: for reading, into the second or the first cache, of data.
_SECOND, _FIRST = (0, 2, 1), (0, 3, 1)


def fetch_ahead(function: Any, program: Program) -> Any:
    """Let each step of a scheduled function prefetch weights of the next register tile."""
    fetch, main = program.plan.fetch, find_block(function.body, program.main)
    if fetch is None or main is None:
        return function
    op = fetch.op
    enclosing, steps = _loops(program, main)
    at = defaultdict(int, iterations(program, main))
    same = {loop.loop_var: loop.loop_var for loop in enclosing}
    # Of the fragment that a step begins with: register tiles are unrolled.
    index = [_substitute(dim.at(at), same) for dim in op.dims]
    tiles, sharing = enclosing[: fetch.tiles], enclosing[fetch.tiles :]
    following = _next_step(tiles)
    *first, _ = [_substitute(each, following) for each in index]
    start = _number((*sharing, *steps)) * fetch.elements
    tensors = [argument.tensor for argument in program.inputs]
    buffer = function.params[tensors.index(op.load.tensor.name)]
    pieces = range(0, fetch.elements, LINE_BYTES * 8 // dtype(op.kind).bits)
    fetches = [_fetch(buffer, [*first, start + n], _SECOND) for n in pieces]

    def add_fetches(loop: Any) -> Any:
        return copy_loop(loop, body=tirx.SeqStmt([*fetches, loop.body]))

    return replace_loop(function, steps[-1].loop_var, add_fetches)


def fetch_residuals(function: Any, program: Program) -> Any:
    """Prefetch the large tensors that an epilogue reads, tile by tile."""
    main, stored = find_block(function.body, program.main), find_block(function.body, STORED)
    if main is None or stored is None:
        return function
    enclosing = common_loops(main, STORED)
    read = {load.source: load for load in collect_nodes(stored.block.body, ir.TensorLoad)}
    inputs = zip(function.params, program.inputs, strict=False)
    names = program.plan.fetched_residuals
    large = [read[each] for each, x in inputs if each in read and x.tensor in names]
    if not large or not enclosing:
        return function
    fetches = [fetch for load in large for fetch in _fetch_tile(load, stored, len(enclosing))]

    def add_fetches(loop: Any) -> Any:
        statements = list(loop.body.seq) if isinstance(loop.body, tirx.SeqStmt) else [loop.body]
        return copy_loop(loop, body=tirx.SeqStmt([*fetches, *statements]))

    return replace_loop(function, enclosing[-1].loop_var, add_fetches)


def _fetch_tile(load: Any, stored: BlockNest, depth: int) -> list[Any]:
    """Prefetch the lines that a register tile reads, within the outermost ``depth`` loops."""
    enclosing, tile = stored.loops[:depth], stored.loops[depth:]
    values = {x.var: stored.values[x.var.name] for x in stored.block.iter_vars}
    index = [_substitute(each, values) for each in load.indices]
    same = {loop.loop_var: loop.loop_var for loop in enclosing}
    # The lanes of a fragment are in one line.
    single = tirx.ForKind.VECTORIZED
    steps = [range(1 if loop.kind == single else int(loop.extent)) for loop in tile]
    line_elements, lines = LINE_BYTES * 8 // dtype(str(load.source.dtype)).bits, dict[str, Any]()
    for numbers in product(*steps):
        at = {x.loop_var: tirx.const(n, "int32") for x, n in zip(tile, numbers, strict=True)}
        *rows, last = [_substitute(each, same | at) for each in index]
        line = _substitute((last - _substitute(index[-1], same)) // line_elements, same)
        lines.setdefault(f"{rows} {line}", _fetch(load.source, [*rows, last], _FIRST))
    return list(lines.values())


def _fetch(buffer: Any, index: Sequence[Any], how: tuple[int, int, int]) -> Any:
    address = tirx.address_of(tirx.BufferLoad(buffer, list(index)))
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, *how))


def _loops(program: Program, main: BlockNest) -> tuple[list[Any], list[Any]]:
    """List the loops around the calls: of register tiles, and of the reduction."""
    kinds = tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL
    loops = [loop for loop in main.loops if loop.kind in kinds and int(loop.extent) > 1]
    at = [main.values[step_variable(name)] for name in program.plan.reduce]
    steps = [loop for loop in loops if any(occurs(loop.loop_var, each) for each in at)]
    return [loop for loop in loops if loop not in steps], steps


def _number(loops: Sequence[Any]) -> Any:
    """Number the current step of all the loops, the last of which moves first."""
    number: Any = 0
    for loop in loops:
        number = number * int(loop.extent) + loop.loop_var
    return number


def _next_step(loops: Sequence[Any]) -> dict[Any, Any]:
    """Return each loop variable's value in the next step."""
    number, following = _number(loops) + 1, {}
    for loop in reversed(loops[1:]):
        following[loop.loop_var] = number % int(loop.extent)
        number = number // int(loop.extent)
    return following | {loops[0].loop_var: number}


def _substitute(value: Any, variables: Mapping[Any, Any]) -> Any:
    """Substitute some variables of an expression, and 0 for all others."""
    none = tirx.const(0, "int32")
    expression = tirx.convert(value)
    substituted = tvm_ffi.structural_map(
        expression, (tirx.Var, lambda variable: variables.get(variable, none))
    )
    return sym.Analyzer().simplify(substituted)
