"""Leaving out the steps of a reduction that read nothing but padding.

What an operator reads outside of a tensor is zero, and adds nothing. Where the
loops around the inner reduction tell that a whole row of a window lies outside,
the inner loops are skipped: for a 3×3 window on a 7×7 image one row in ten is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amos.codegen.tir.loops import Found, changed, find, occurs
from amos.codegen.tir.program import MAIN, Program, spatial_variable, step_variable
from amos.codegen.tir.rewriting import with_body
from amos.ir import Affine
from amos.plan.split_reduction import PART

__all__ = ["skip_padding"]

_INIT = "main_init"


def skip_padding(function: Any, program: Program) -> Any:
    """A scheduled function whose reduction skips what is known to be padding.

    Only whole steps of an inner loop are skipped, never single calls: a branch
    there would cost more than it saves.

    Args:
        function: what a schedule has made, after tensorization.
        program: what was scheduled.
    """
    found = find(function.body, MAIN)
    if found is None:
        return function
    values = _iterations(program, found)
    for index, size in _padded(program):
        # An index that no loop moves is the same in every step.
        if index.names and set(index.names) <= values.keys():
            function = _guard(function, found.loops, index.evaluate(values), size)
    return function


def _iterations(program: Program, found: Found) -> dict[str, Any]:
    """Where each loop of the nest is in a call, in terms of the loops around it."""
    names = {name: spatial_variable(n) for n, name in enumerate(program.dimensions)}
    names |= {x.name: step_variable(x.name) for x in program.plan.nest.reduce}
    values = {loop: found.values[var] for loop, var in names.items() if var in found.values}
    parts = program.plan.split
    if parts is not None and parts.loop in values:
        values[parts.loop] = parts.at(values.pop(PART), values[parts.loop])
    return values


def _padded(program: Program) -> Iterator[tuple[Affine, int]]:
    """Indices that leave their tensor, and its size there."""
    extents = program.plan.mapping.operator.extents
    for op in program.plan.sources:
        for index, size in zip(op.load.indices, op.load.tensor.shape, strict=True):
            low, high = index.bounds(extents)
            if op.load.padded and (low < 0 or high >= size):
                yield index, size


def _guard(function: Any, loops: tuple[Any, ...], where: Any, size: int) -> Any:
    """The function with the body of one loop under ``0 <= where < size``."""
    from tvm import tirx

    depths = [n for n, loop in enumerate(loops) if occurs(loop.loop_var, where)]
    if not depths:
        return function
    depth = depths[-1]
    inside = [x for x in loops[depth + 1 :] if x.kind == tirx.ForKind.SERIAL and int(x.extent) > 1]
    if not inside or find(loops[depth].body, _INIT) is not None:
        return function
    live = tirx.all(where >= 0, where < size)

    def guarded(loop: Any) -> Any:
        return with_body(loop, tirx.IfThenElse(live, loop.body, None))

    return function.with_body(changed(function.body, loops[depth].loop_var, guarded))
