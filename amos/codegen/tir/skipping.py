"""Skipping steps of a reduction: those that read only padding, or lie beyond a shorter last part.

Zeros add nothing to a sum of products, nor the smallest value to a maximum. Where the loops outside
the innermost reduction determine that a whole row of a window is padding, the plan skips the inner
loops: for a 3×3 window on a 7×7 image one row in ten. The last part of a divided reduction may be
shorter than the others.
"""

from __future__ import annotations

from typing import Any

from amos._toolchain import tirx
from amos.codegen.tir.program import Program, spatial_variable, step_variable
from amos.codegen.tir.statements import BlockNest, copy_loop, find_block, occurs, replace_loop
from amos.plan.split_reduction import PART


def skip_padding(function: Any, program: Program) -> Any:
    """Skip the steps of a reduction that read only padding, by the plan."""
    main = find_block(function.body, program.main)
    if main is None:
        return function
    values = iterations(program, main)
    for skip in program.plan.skips:
        step = main.values[step_variable(skip.loop)]
        (loop,) = (x for x in main.loops if occurs(x.loop_var, step))
        function = _guard(function, loop, skip.index.evaluate(values), skip.size)
    return function


def shorten_last_part(function: Any, program: Program) -> Any:
    """End the divided loop where the reduction ends, in the part that reaches it."""
    parts, main = program.plan.split, find_block(function.body, program.main)
    if parts is None or parts.even or main is None:
        return function
    step, number = main.values[step_variable(parts.loop)], main.values[spatial_variable(0)]
    divided = next(x for x in main.loops if occurs(x.loop_var, step))
    most, whole = parts.steps // parts.unrolled, parts.extent // parts.unrolled
    extent = tirx.min(most, whole - number * most)
    return replace_loop(function, divided.loop_var, lambda loop: copy_loop(loop, extent=extent))


def iterations(program: Program, main: BlockNest) -> dict[str, Any]:
    """Express each loop of the nest in a call by the enclosing loops."""
    names = {axis[0]: spatial_variable(n) for n, axis in enumerate(program.axes)}
    names |= {x.name: step_variable(x.name) for x in program.plan.nest.reduce}
    values = {loop: main.values[var] for loop, var in names.items() if var in main.values}
    parts = program.plan.split
    if parts is not None and parts.loop in values:
        values[parts.loop] = parts.at(values.pop(PART), values[parts.loop])
    return values


def _guard(function: Any, loop: Any, where: Any, size: int) -> Any:
    """Put the body of one loop under ``0 <= where < size``."""
    live = tirx.all(where >= 0, where < size)

    def guard_body(loop: Any) -> Any:
        return copy_loop(loop, body=tirx.IfThenElse(live, loop.body, None))

    return replace_loop(function, loop.loop_var, guard_body)
