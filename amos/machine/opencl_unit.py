"""Limits of an OpenCL device's work-groups, and their costs besides the calls."""

from __future__ import annotations

from dataclasses import dataclass

from amos.errors import MachineError


@dataclass(frozen=True)
class OpenClUnit:
    """A compute unit, which runs one work-group after another; costs in cycles of a core.

    The cores of a machine are the lanes of all its units.

    Attributes:
        platform: word in the name of a platform whose devices are such machines.
        units: compute units (``CL_DEVICE_MAX_COMPUTE_UNITS``).
        group_items: work-items of a group at most (``CL_DEVICE_MAX_WORK_GROUP_SIZE``).
        local_bytes: local memory of a group at most (``CL_DEVICE_LOCAL_MEM_SIZE``).
        item_bytes: vector registers of a work-item.
        serial: whether a unit is a core of a CPU, which computes the work-items of a group one
            after another.
        threads: work-items that a core holds at the same time, to fill its latencies.
        read: cycles of reading a fragment from local memory or a cache.
        copy: cycles of copying an element or a vector.
        copy_lanes: contiguous scalars that a serial unit copies at once.
        line: extra cycles for each cache line of a copy, divided among the pieces that share it.
        row: extra cycles for the first piece that a stage copies of a tensor's row, and for a read
            that misses the TLB, on a serial unit.
        guard: extra cycles for the conditions of a copied piece and each division in its address.
        issue: cycles of issuing an instruction.
        barrier: cycles of a work-item at a barrier.
        save: cycles of saving an accumulator across a barrier, on a serial unit.
        start: cycles of starting a group.
    """

    platform: str
    units: int
    group_items: int
    local_bytes: int
    item_bytes: int
    serial: bool = False
    threads: int = 1
    read: float = 0.5
    copy: float = 1.0
    copy_lanes: int = 8
    line: float = 0.0
    row: float = 0.0
    guard: float = 0.5
    issue: float = 0.0
    barrier: float = 10.0
    save: float = 0.0
    start: float = 200.0

    def __post_init__(self) -> None:
        for name in ("units", "group_items", "item_bytes", "threads", "copy_lanes"):
            if getattr(self, name) < 1:
                raise MachineError(f"opencl: {name}: expected 1 or more, got {getattr(self, name)}")
        if self.local_bytes < 0:
            raise MachineError(f"opencl: local_bytes: expected 0 or more, got {self.local_bytes}")
        for name in ("read", "copy", "line", "row", "guard", "issue", "barrier", "save", "start"):
            if not 0 <= getattr(self, name) < 1e9:
                raise MachineError(
                    f"opencl: {name}: expected 0 or more cycles, got {getattr(self, name)}"
                )

    def __str__(self) -> str:
        return (
            f"OpenCL: {self.units} compute units, groups of {self.group_items} work-items, "
            f"{self.local_bytes:,} bytes of local memory, {self.item_bytes} bytes of registers"
        )
