"""Weights that are on their way before they are needed.

A core reads the weights of a register tile from far memory, and then again for each tile that
shares them. Left to the hardware, all of that first reading is waited for. So each step of the
reduction fetches a small piece of the weights of the tile that comes next, and all the tiles
that share weights fetch all of them. To fetch what is there, or beyond the end, does no harm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from amos.codegen.tir.program import Program, step_variable
from amos.codegen.tir.skipping import iterations
from amos.codegen.tir.statements import BlockNest, find, loop_with, occurs, with_loop
from amos.ir import dtype

#: Bytes that are fetched together.
_LINE = 64
#: A fetch in LLVM's words: for reading, into the second cache, of data.
_FETCH = 0, 2, 1


def fetch_ahead(function: Any, program: Program) -> Any:
    """A scheduled function whose steps fetch the weights of the next register tile."""
    from tvm import tirx

    op, main = program.plan.fetched_ahead, find(function.body, program.main)
    if op is None or main is None:
        return function
    around, steps = _loops(program, main)
    at = defaultdict(int, iterations(program, main))
    same = {loop.loop_var: loop.loop_var for loop in around}
    # Of the fragment that a step begins with: register tiles are unrolled.
    index = [_replaced(dim.at(at), same) for dim in op.dims]
    moving = [n for n, loop in enumerate(around) if any(occurs(loop.loop_var, x) for x in index)]
    if not moving or not steps:
        return function
    tiles, sharing = around[: moving[-1] + 1], around[moving[-1] + 1 :]
    if not sharing:  # what is read once, in order, hardware fetches as well
        return function
    following = _following(tiles)
    *first, _ = [_replaced(each, following) for each in index]
    still = [not any(occurs(loop.loop_var, each) for loop in tiles) for each in index]
    size = prod(extent for extent, inside in zip(op.shape, still, strict=True) if inside)
    piece = -(-size // prod(int(loop.extent) for loop in (*sharing, *steps)))
    start = _number((*sharing, *steps)) * piece
    tensors = [argument.tensor for argument in program.inputs]
    buffer = function.params[tensors.index(op.load.tensor.name)]
    fetches = []
    for n in range(0, piece, _LINE * 8 // dtype(op.kind).bits):
        address = tirx.address_of(tirx.BufferLoad(buffer, [*first, start + n]))
        fetches.append(tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, *_FETCH)))

    def fetching(loop: Any) -> Any:
        return loop_with(loop, body=tirx.SeqStmt([*fetches, loop.body]))

    return with_loop(function, steps[-1].loop_var, fetching)


def _loops(program: Program, main: BlockNest) -> tuple[list[Any], list[Any]]:
    """The loops that stay loops around the calls: of register tiles, and of the reduction."""
    from tvm import tirx

    kept = tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL
    loops = [loop for loop in main.loops if loop.kind in kept and int(loop.extent) > 1]
    at = [main.values[step_variable(name)] for name in program.plan.reduce]
    steps = [loop for loop in loops if any(occurs(loop.loop_var, each) for each in at)]
    return [loop for loop in loops if loop not in steps], steps


def _number(loops: Sequence[Any]) -> Any:
    """Which step of all the loops this is, the last of which moves first."""
    number: Any = 0
    for loop in loops:
        number = number * int(loop.extent) + loop.loop_var
    return number


def _following(loops: Sequence[Any]) -> dict[Any, Any]:
    """The variable of each loop in the step after this one."""
    number, following = _number(loops) + 1, {}
    for loop in reversed(loops[1:]):
        following[loop.loop_var] = number % int(loop.extent)
        number = number // int(loop.extent)
    return following | {loops[0].loop_var: number}


def _replaced(value: Any, variables: Mapping[Any, Any]) -> Any:
    """An expression with other values of some variables, and 0 for all others."""
    import tvm_ffi
    from tvm import sym, tirx

    none = tirx.const(0, "int32")
    expression = tirx.convert(value)
    whole = tvm_ffi.structural_map(expression, (tirx.Var, lambda each: variables.get(each, none)))
    return sym.Analyzer().simplify(whole)
