"""Schedules of warps of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np

from amos.errors import ScheduleError
from amos.plan.device_schedule import DeviceBatch, DeviceSchedule
from amos.plan.structure import LoopBatch, Structure
from amos.plan.variables import Value, variable


@dataclass(frozen=True)
class GpuBatch(DeviceBatch):
    """Schedules of warps as arrays, one row a schedule.

    Attributes:
        warps: int, rows × spatial loops: warps of a thread block; 1 if left out.
        copy_bytes: int, rows: bytes that a thread copies at once; 16 if left out.
        padding: int, rows × sources: elements behind each row in shared memory, -1 if
            rows are swizzled; 0 if left out.
        stages: int, rows: stages of shared memory; 1 if left out.
        realign: bool, rows: whether unaligned rows are copied in wide pieces; no if left out.
    """

    warps: np.ndarray | None = None
    copy_bytes: np.ndarray | None = None
    padding: np.ndarray | None = None
    stages: np.ndarray | None = None
    realign: np.ndarray | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class GpuSchedule(DeviceSchedule):
    """A schedule for warps of a GPU; the outer loops, in ``order``, make the grid.

    Attributes:
        tile: fragments of one warp along each spatial loop, by default 1.
        warps: warps of a thread block along each spatial loop, by default 1.
        steps: steps of the innermost reduction loop that are staged in shared memory
            together, and unrolled; key ``unroll``.
        stages: buffers in shared memory, of which all but the one in use are being
            filled; key ``pipeline``.
        stage: where each gathered source is staged: ``tile``, while copying to shared
            memory, the default, or ``whole``, by a kernel of its own in global memory.
        copy_bytes: bytes that one thread copies at once at most.
        realign: whether copies of rows that begin anywhere read the aligned pieces in which
            they lie, and shift them into place; by default ``off``.
        padding: elements behind each row of a source in shared memory, by default 0; -1
            swizzles rows instead, which takes no memory; key ``align``.
    """

    _blocks: ClassVar[str] = "warps"
    _batch: ClassVar[type[LoopBatch]] = GpuBatch
    earlier_keys: ClassVar[MappingType[str, str]] = {"block": "warps", "vector": "copy_bytes"}

    warps: MappingType[str, int] = variable("warps", 1, per="spatial")
    steps: int = variable("unroll", 1, written_with="reduce")
    stages: int = variable("pipeline", 1)
    stage: MappingType[str, Literal["whole", "tile"]] = variable(
        "stage", "tile", words=("whole", "tile"), per="operand", always=True
    )
    copy_bytes: int = variable("copy_bytes", 16)
    realign: Literal["off", "on"] = variable("realign", "off", words=("off", "on"))
    padding: MappingType[str, int] = variable("align", 0, lowest=-1, per="operand")

    @classmethod
    def keys(cls) -> frozenset[str]:
        """Return the keys of the fields, and two that only say that it is for warps."""
        return super().keys() | {"bind", "parallel"}

    @classmethod
    def _read(cls, values: MappingType[str, Value]) -> Self:
        own = dict(values)
        bind, parallel = own.pop("bind", "warps"), own.pop("parallel", None)
        if bind != "warps":
            raise ScheduleError(f"bind = {bind!r}: expected warps")
        schedule = super()._read(own)
        if parallel is not None and schedule.order and parallel != len(schedule.order):
            raise ScheduleError(
                f"parallel = {parallel!r}: expected {len(schedule.order)}, all loops of the grid"
            )
        return schedule

    def _entries(self) -> Iterator[tuple[str, Value]]:
        yield from super()._entries()
        if self.order is not None:
            yield "parallel", len(self.order)
        if self.order is not None or self.tile or self.warps:
            yield "bind", "warps"

    def _row(self, structure: Structure) -> dict[str, Any]:
        return super()._row(structure) | {
            "unroll": self.steps,
            "ahead": [self.stage[name] == "whole" for name in structure.choices],
            "copy_bytes": self.copy_bytes,
            "warps": [self.warps[loop.name] for loop in structure.spatial],
            "padding": [self.padding[op.name] for op in structure.sources],
            "stages": self.stages,
            "realign": self.realign == "on",
        }
