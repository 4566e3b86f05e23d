"""Schedules of work-groups of an OpenCL device."""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from amos.plan.device_schedule import DeviceBatch, DeviceSchedule
from amos.plan.structure import LoopBatch, Structure
from amos.plan.variables import variable


@dataclass(frozen=True)
class OpenClBatch(DeviceBatch):
    """Schedules of work-groups as arrays, one row a schedule.

    Attributes:
        items: int, rows × spatial loops: work-items of a group; 1 if left out.
        steps: int, rows: steps of the reduction that are staged together; 1 if left out.
        local: bool, rows × sources: staged in local memory; none if left out.
    """

    flags: ClassVar[frozenset[str]] = LoopBatch.flags | {"local"}

    items: np.ndarray | None = None
    steps: np.ndarray | None = None
    local: np.ndarray | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenClSchedule(DeviceSchedule):
    """A schedule for work-groups; the outer loops, in ``order``, make the groups.

    Attributes:
        tile: fragments of one work-item along each spatial loop, by default 1.
        items: work-items of a group along each spatial loop, by default 1.
        steps: steps of the reduction that are staged together in local memory, by default 1.
        place: where work-items read each source: ``direct``, from its tensor, the default, or
            ``local``, from local memory, into which the group copies it.
    """

    _blocks: ClassVar[str] = "items"
    _batch: ClassVar[type[LoopBatch]] = OpenClBatch

    items: MappingType[str, int] = variable("items", 1, per="spatial")
    steps: int = variable("steps", 1, written_with="reduce")
    place: MappingType[str, Literal["direct", "local"]] = variable(
        "place", "direct", words=("direct", "local"), per="operand", always=True
    )

    def _row(self, structure: Structure) -> dict[str, Any]:
        return super()._row(structure) | {
            "unroll": 1,
            "ahead": [False] * len(structure.choices),
            "items": [self.items[loop.name] for loop in structure.spatial],
            "steps": self.steps,
            "local": [self.place[op.name] == "local" for op in structure.sources],
        }
