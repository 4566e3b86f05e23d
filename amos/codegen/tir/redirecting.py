"""Results to where they belong: another tensor than the accumulators', or several of them.

Up to here a kernel has stored each accumulator at its own position of a buffer that
stands for the results. Every such store becomes those of the results, each finished and
where the operator puts it. So a schedule need not know where that is, nothing is moved
twice, and elements that the operator does not reach are left alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from amos.codegen.tir.arrays import held
from amos.codegen.tir.epilogue import finished
from amos.codegen.tir.program import Program

__all__ = ["redirect_results"]


def redirect_results(function: Any, program: Program) -> Any:
    """A scheduled function that stores accumulators, made to store results instead.

    Args:
        function: what a schedule has made, after tensorization.
        program: what was scheduled.
    """
    import tvm_ffi
    from tvm import s_tir, tirx

    if not program.redirects:
        return function
    *sources, stand_in = function.params
    names = [argument.tensor for argument in program.arguments[:-1]]
    tensors = dict(zip(names, sources, strict=True))
    last = program.arguments[-1]
    result = tirx.decl_buffer(last.shape, held(last.dtype), f"{last.tensor}_{len(names)}")
    root = function.body.block

    def redirected(block: Any, mutator: Any) -> Any:
        store = block.body
        if type(store).__name__ != "BufferStore" or not store.buffer.same_as(stand_in):
            return mutator.default_mutate(block)
        body = _stored(program, block, result, tensors)
        bare = s_tir.SBlock(block.iter_vars, [], [], block.name_hint, body)
        buffers = [*function.params[:-1], result, *root.alloc_buffers]
        reads, writes = s_tir.analysis.get_sblock_read_write_region(
            bare, {buffer: buffer for buffer in buffers}
        )
        return s_tir.SBlock(block.iter_vars, reads, writes, block.name_hint, body)

    body = tvm_ffi.structural_mutate(function.body, (s_tir.SBlock, redirected))
    return tirx.PrimFunc([*sources, result], body, function.ret_type, function.attrs)


def _stored(program: Program, block: Any, result: Any, tensors: Mapping[str, Any]) -> Any:
    """What a block stores of an accumulator."""
    from tvm import sym, tirx

    operator, store = program.plan.mapping.operator, block.body
    analyzer = sym.Analyzer()
    for each in block.iter_vars:
        analyzer.bind(each.var, each.dom)
    point, guards = program.point(store.indices)
    at = defaultdict(int, {name: analyzer.simplify(_expression(x)) for name, x in point.items()})
    where = [analyzer.simplify(_expression(index)) for index in operator.stored.at(at)]
    value = finished(operator, store.value, at, tensors)
    stored = tirx.BufferStore(result, value, where)
    return tirx.IfThenElse(tirx.all(*guards), stored, None) if guards else stored


def _expression(value: Any) -> Any:
    from tvm import tirx

    return tirx.const(value, "int32") if isinstance(value, int) else value
