"""Common fields of schedules of parallel devices: the order of groups, and their fragments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from amos.plan.schedule import Schedule
from amos.plan.structure import LoopBatch, Structure
from amos.plan.variables import variable


@dataclass(frozen=True)
class DeviceBatch(LoopBatch):
    """Schedules of groups of workers as arrays, one row a schedule.

    Attributes:
        raster: int, rows: rows of groups that take turns; 1 if left out.
    """

    raster: np.ndarray | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceSchedule(Schedule):
    """A schedule for groups of workers, which are warps or work-items.

    The groups along the last two of the outer loops are rows and columns.

    Attributes:
        raster: rows of groups that take turns at each column, by default 1; at most the greatest
            common divisor with the number of rows.
        fragments: those of a worker along each loop are next to each other, ``blocked``, the
            default, or ``interleaved`` with those of the other workers.
    """

    raster: int = variable("raster", 1)
    fragments: Literal["blocked", "interleaved"] = variable(
        "fragments", "blocked", words=("blocked", "interleaved")
    )

    def _row(self, structure: Structure) -> dict[str, Any]:
        return {"parallel": len(structure.spatial), "raster": self.raster}
