"""Leaving out the steps of a reduction that read nothing but padding.

What an operator reads outside of a tensor is zero, and adds nothing. Where the
loops around the inner reduction tell that a whole row of a window lies outside,
the inner loops are skipped: for a 3×3 window on a 7×7 image one row in ten is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amos.codegen.program import Program
from amos.codegen.rewriting import rebuilt, with_body
from amos.ir import Affine

__all__ = ["skip_padding"]

_MAIN, _INIT = "main_update_o", "main_init"


def skip_padding(module: Any, program: Program) -> Any:
    """A scheduled module whose reduction skips what is known to be padding.

    Only whole steps of an inner loop are skipped, never single calls: a branch
    there would cost more than it saves.

    Args:
        module: the module of a schedule, after tensorization.
        program: what was scheduled.
    """
    import tvm

    (name,) = module.functions
    function = module[name]
    found = _find(function.body, _MAIN, [])
    if found is None:
        return module
    loops, realize = found
    bound = dict(
        zip((x.var.name for x in realize.block.iter_vars), realize.iter_values, strict=True)
    )
    names = {dim.index.names[0]: f"v_i{n}_o" for n, dim in enumerate(program.destination.dims)}
    names |= {x.name: f"v_{x.name.replace('.', '_')}_o" for x in program.nest.reduce}
    values = {loop: bound[block] for loop, block in names.items() if block in bound}
    for index, size in _padded(program):
        if set(index.names) <= values.keys():
            function = _guard(function, loops, index.evaluate(values), size)
    return tvm.IRModule({name: function})


def _padded(program: Program) -> Iterator[tuple[Affine, int]]:
    """Indices that leave their tensor, and its size there."""
    extents = program.mapping.operator.extents
    for op in program.sources:
        for index, size in zip(op.load.indices, op.load.tensor.shape, strict=True):
            low, high = index.bounds(extents)
            if op.load.padded and (low < 0 or high >= size):
                yield index, size


def _guard(function: Any, loops: list[Any], where: Any, size: int) -> Any:
    """The function with the body of one loop under ``0 <= where < size``."""
    from tvm import tirx

    used = {x.name for x in tirx.analysis.undefined_vars(where)}
    depths = [n for n, loop in enumerate(loops) if loop.loop_var.name in used]
    if not depths:
        return function
    depth = depths[-1]
    inside = [x for x in loops[depth + 1 :] if x.kind == tirx.ForKind.SERIAL and int(x.extent) > 1]
    if not inside or _find(loops[depth].body, _INIT, []) is not None:
        return function
    live = tirx.all(where >= 0, where < size)
    return function.with_body(_wrapped(function.body, loops[depth].loop_var, live))


def _find(stmt: Any, block: str, loops: list[Any]) -> tuple[list[Any], Any] | None:
    """A block of that name, and the loops around it from the outermost inward."""
    kind = type(stmt).__name__
    if kind == "SBlockRealize":
        if stmt.block.name_hint == block:
            return loops, stmt
        return _find(stmt.block.body, block, loops)
    if kind == "SeqStmt":
        inner = (_find(each, block, loops) for each in stmt.seq)
        return next((found for found in inner if found is not None), None)
    if kind == "For":
        return _find(stmt.body, block, [*loops, stmt])
    return _find(stmt.then_case, block, loops) if kind == "IfThenElse" else None


def _wrapped(stmt: Any, variable: Any, condition: Any) -> Any:
    """The statement with the body of one loop under a condition."""
    from tvm import tirx

    if type(stmt).__name__ == "For" and stmt.loop_var.same_as(variable):
        return with_body(stmt, tirx.IfThenElse(condition, stmt.body, None))
    return rebuilt(stmt, lambda each: _wrapped(each, variable, condition))
