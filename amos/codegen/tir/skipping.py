"""Leaving out steps of a reduction: those that read nothing but padding, or have none to make.

Where an operator reads zero outside of a tensor, this adds nothing to a sum of products, and
neither does the smallest value to a maximum. Where the
loops around the inner reduction tell that a whole row of a window lies outside,
the inner loops are skipped: for a 3×3 window on a 7×7 image one row in ten is.
The last part of a divided reduction may be shorter than the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amos.codegen.tir.program import Program, spatial_variable, step_variable
from amos.codegen.tir.statements import BlockNest, find, loop_with, occurs, with_loop
from amos.ir import Affine
from amos.plan.split_reduction import PART

_INIT = "main_init"


def skip_padding(function: Any, program: Program) -> Any:
    """A scheduled function whose reduction skips what is known to be padding.

    Only whole steps of an inner loop are skipped, never single calls: a branch
    there would cost more than it saves.
    """
    main = find(function.body, program.main)
    if main is None:
        return function
    values = iterations(program, main)
    for index, size in _padded(program):
        # An index that no loop moves is the same in every step.
        if index.names and set(index.names) <= values.keys():
            function = _guard(function, main.loops, index.evaluate(values), size)
    return function


def shorten_last_part(function: Any, program: Program) -> Any:
    """End the divided loop where the reduction ends, in the part that reaches it."""
    from tvm import tirx

    parts, main = program.plan.split, find(function.body, program.main)
    if parts is None or parts.even or main is None:
        return function
    step, part = main.values[step_variable(parts.loop)], main.values[spatial_variable(0)]
    divided = next(x for x in main.loops if occurs(x.loop_var, step))
    most, whole = parts.steps // parts.unrolled, parts.extent // parts.unrolled
    extent = tirx.min(most, whole - part * most)
    return with_loop(function, divided.loop_var, lambda loop: loop_with(loop, extent=extent))


def iterations(program: Program, main: BlockNest) -> dict[str, Any]:
    """Where each loop of the nest is in a call, in terms of the loops around it."""
    names = {axis[0]: spatial_variable(n) for n, axis in enumerate(program.axes)}
    names |= {x.name: step_variable(x.name) for x in program.plan.nest.reduce}
    values = {loop: main.values[var] for loop, var in names.items() if var in main.values}
    parts = program.plan.split
    if parts is not None and parts.loop in values:
        values[parts.loop] = parts.at(values.pop(PART), values[parts.loop])
    return values


def _padded(program: Program) -> Iterator[tuple[Affine, int]]:
    """Indices that leave their tensor for what counts for nothing, and its size there."""
    operator = program.plan.mapping.operator
    extents, kind = operator.extents, program.plan.mapping.intrinsic.dtypes[-1]
    if not operator.compute.accumulates or not operator.compute.fills_lanes(
        kind, arbitrary_source=True
    ):
        return
    empty = operator.compute.neutral(kind)
    for op in program.plan.sources:
        for index, size in zip(op.load.indices, op.load.tensor.shape, strict=True):
            low, high = index.bounds(extents)
            if op.load.padded and op.load.padding == empty and (low < 0 or high >= size):
                yield index, size


def _guard(function: Any, loops: tuple[Any, ...], where: Any, size: int) -> Any:
    """The function with the body of one loop under ``0 <= where < size``."""
    from tvm import tirx

    depths = [n for n, loop in enumerate(loops) if occurs(loop.loop_var, where)]
    if not depths:
        return function
    loop, *inner = loops[depths[-1] :]
    serial = any(x.kind == tirx.ForKind.SERIAL and int(x.extent) > 1 for x in inner)
    if not serial or find(loop.body, _INIT) is not None:
        return function
    live = tirx.all(where >= 0, where < size)

    def guarded(loop: Any) -> Any:
        return loop_with(loop, body=tirx.IfThenElse(live, loop.body, None))

    return with_loop(function, loop.loop_var, guarded)
