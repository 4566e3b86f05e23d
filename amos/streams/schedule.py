"""Schedules of units that load tiles into buffers of their own, as VTA does."""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from amos.plan.schedule import Schedule
from amos.plan.structure import LoopBatch, Structure
from amos.plan.variables import variable


@dataclass(frozen=True, kw_only=True)
class StreamBatch(LoopBatch):
    """Schedules of a stream unit as arrays, one row a schedule.

    Attributes:
        steps: int, rows × reductions: steps that are loaded together.
        buffers: int, rows × operands: tiles that have room on chip.
    """

    steps: np.ndarray
    buffers: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamSchedule(Schedule):
    """A schedule for a unit with queues of load, compute and store instructions.

    The loops around tiles go in ``order``, those over the reduction inside them in
    ``reduce``. A tile of an operand is loaded when it is not on chip: what stays follows
    from the orders.

    Attributes:
        tile: steps of each spatial loop whose accumulators are on chip together, by
            default 1.
        steps: steps of each reduction loop that are loaded together, by default 1; key
            ``step``.
        buffers: tiles of each operand that have room on chip, by default 1; with two, one
            is filled or emptied while the other is in use.
    """

    _batch: ClassVar[type[LoopBatch]] = StreamBatch

    steps: MappingType[str, int] = variable("step", 1, per="reduce", always=True)
    buffers: MappingType[str, int] = variable("buffers", 1, per="operand", always=True)

    def _row(self, structure: Structure) -> dict[str, Any]:
        return {
            "parallel": 1,
            "unroll": 1,
            "ahead": [False] * len(structure.choices),
            "steps": [self.steps[loop.name] for loop in structure.reduce],
            "buffers": [self.buffers[op.name] for op in structure.operands],
        }
