"""The last part of a divided reduction, which may be shorter than the others."""

from __future__ import annotations

from typing import Any

from amos.codegen.tir.loops import changed, find, occurs
from amos.plan.split_reduction import SplitReduction

__all__ = ["shorten_last_part"]


def shorten_last_part(
    function: Any, parts: SplitReduction, block: str, part: str, step: str
) -> Any:
    """End the divided loop where the reduction ends, in the part that reaches it.

    Args:
        function: a scheduled function, after tensorization.
        parts: how the loop is divided.
        block: name of the block that is reduced.
        part: the block's variable that counts parts.
        step: the block's variable that counts the steps of one.
    """
    from tvm import tirx

    found = find(function.body, block)
    if parts.even or found is None:
        return function
    loops, values = found.loops, found.values
    divided = next(x for x in loops if occurs(x.loop_var, values[step]))
    most, whole = parts.steps // parts.unrolled, parts.extent // parts.unrolled
    extent = tirx.min(most, whole - values[part] * most)

    def shorter(loop: Any) -> Any:
        return tirx.For(
            loop.loop_var, loop.min, extent, loop.kind, loop.body, loop.thread_binding,
            loop.annotations,
        )  # fmt: skip

    return function.with_body(changed(function.body, divided.loop_var, shorter))
