"""Common fields of schedules of parallel devices: the order of groups, and their fragments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Literal

import numpy as np

from amos.plan.nest import Nest
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

    def canonical(self, nest: Nest) -> DeviceSchedule:
        """Return the schedule whose ``raster`` is the number of rows that do take turns."""
        loops = self.spatial_order(nest) if self.raster > 1 else ()
        counts = [-(-x.extent // (self.tile[x.name] * self.blocks[x.name])) for x in loops[-2:]]
        rows, columns = counts if len(counts) == 2 else (1, 1)
        raster = gcd(self.raster, rows) if columns > 1 else 1
        return self if raster == self.raster else replace(self, raster=raster)

    def _row(self, structure: Structure) -> dict[str, Any]:
        return {"parallel": len(structure.spatial), "raster": self.raster}
