"""Limits that a CPU's plans depend on: its cores, and each core's private cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from amos.machine.cpu import Cache, cpu
from amos.machine.machine import Level, Machine

#: Bytes of a core's own cache where none is described.
_USUAL = 1 << 18


@dataclass(frozen=True)
class CpuLimits:
    """Cores, and bytes of the largest private cache, which decide shares and places of copies."""

    cores: int
    cache: int

    @staticmethod
    def of(machine: Machine) -> CpuLimits:
        """Return the limits of a machine; its memories need not be measured."""
        return _limits(machine.cores, machine.levels)

    @staticmethod
    def here() -> CpuLimits:
        """Return the limits of the CPU that this process runs on."""
        return _limits(cpu().cores, cpu().caches)

    @property
    def core(self) -> CpuLimits:
        """Limits of one core that runs a kernel by itself while all others do the same."""
        return replace(self, cores=1)


def _limits(cores: int, memories: tuple[Level, ...] | tuple[Cache, ...]) -> CpuLimits:
    private = (x.capacity for x in memories if x.units >= cores)
    return CpuLimits(cores, max(private, default=0) or _USUAL)
