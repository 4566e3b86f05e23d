"""Parts of a reduction that run side by side, where too little else could.

The outermost reduction loop is divided into ranges. Each has accumulators of its own,
which become one more dimension of the staged destination; what moves them to the
output adds them up. Ranges start at multiples of the same number of steps, so that
addresses stay affine; the last one may be shorter than the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amos.codegen.tir.loops import changed, find, occurs
from amos.plan import CpuSchedule
from amos.plan.nest import Nest

__all__ = ["PART", "SplitReduction", "split_reduction", "shorten_last_part"]

#: The loop over parts. The dot keeps it apart from the operator's iterations.
PART = "reduce.part"


@dataclass(frozen=True)
class SplitReduction:
    """How the outermost reduction loop is divided.

    Attributes:
        loop: its name.
        extent: its steps.
        steps: steps of every part but the last, which may have fewer.
        unrolled: steps that are one in the kernel; they divide ``extent`` and ``steps``.
    """

    loop: str
    extent: int
    steps: int
    unrolled: int = 1

    @property
    def count(self) -> int:
        """Parts that have a step."""
        return -(-self.extent // self.steps)

    @property
    def even(self) -> bool:
        """Whether the last part is as long as the others."""
        return self.extent % self.steps == 0

    def at(self, part: Any, step: Any) -> Any:
        """Where the loop is in a step of a part."""
        return part * self.steps + step


def split_reduction(nest: Nest, schedule: CpuSchedule | None) -> SplitReduction | None:
    """How a schedule divides the reduction of a nest; ``None`` if it leaves it whole.

    A loop that is also the innermost one is divided into as many whole unrolled steps
    as there are. No part is empty: there are fewer if the steps do not suffice.
    """
    if schedule is None or schedule.split == 1:
        return None
    loop, *others = schedule.reduce_order(nest)
    unroll = 1 if others else schedule.unroll
    unrolled = 1 if loop.extent % unroll else unroll
    return SplitReduction(
        loop.name, loop.extent, -(-loop.extent // unrolled // schedule.split) * unrolled, unrolled
    )


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
