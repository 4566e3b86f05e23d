"""Parts of a reduction that run in parallel, where the spatial loops are too short.

The outermost reduction loop is divided into ranges. Each has accumulators of its own, which become
one more dimension of the staged destination; they are added up when they are moved to the output.
Ranges start at multiples of the same number of steps, so that addresses stay affine; the last one
may be shorter than the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amos.plan.nest import Nest
from amos.plan.schedule import CpuSchedule

#: The loop over parts. The dot keeps it apart from the operator's iterations.
PART = "reduce.part"


@dataclass(frozen=True)
class SplitReduction:
    """How the outermost reduction loop is divided.

    Attributes:
        steps: steps of every part but the last, which may have fewer.
        unrolled: steps that are unrolled into one; they divide ``extent`` and ``steps``.
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

    def at(self, number: Any, step: Any) -> Any:
        """Return the position of the loop in a step of a part."""
        return number * self.steps + step


def split_reduction(nest: Nest, schedule: CpuSchedule) -> SplitReduction | None:
    """Return how a schedule divides the reduction of a nest; ``None`` if it leaves it whole.

    A loop that is also the innermost one is divided into whole unrolled steps. No part is empty:
    there are fewer parts if there are too few steps.
    """
    if schedule.split == 1:
        return None
    loop, *inner_loops = schedule.reduce_order(nest)
    unroll = 1 if inner_loops else schedule.unroll
    unrolled = 1 if loop.extent % unroll else unroll
    steps = part_steps(loop.extent, schedule.split, unrolled)
    return SplitReduction(loop.name, loop.extent, steps, unrolled)


def part_steps(extent: Any, split: Any, unrolled: Any) -> Any:
    """Return the steps of every part but the last, a multiple of ``unrolled``."""
    return -(-extent // unrolled // split) * unrolled
