"""Measuring on a simulated unit, in the worker that has limits of time and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from amos.intrinsics import Intrinsic
from amos.ir import dtype
from amos.machine import Machine
from amos.measure.executor import DescribedExecutor
from amos.measure.task import Place, Task
from amos.plan import Candidate
from amos.records.canonical import identity_of
from amos.streams.runtime import StreamKernel


@dataclass(frozen=True)
class SimulatedUnit(Place):
    """A machine with a stream unit, simulated."""

    machine: Machine

    def build(self, candidate: Candidate) -> StreamKernel:
        """The candidate as a stream."""
        return StreamKernel(candidate, self.machine)


class SimulatorExecutor(DescribedExecutor):
    """A described machine whose streams are simulated here."""

    exact = True

    def __init__(self, machine: Machine, timeout: float, memory: int | None) -> None:
        super().__init__(machine, identity_of(machine), timeout, memory)

    def _placed(self, task: Task) -> Task:
        return replace(task, place=SimulatedUnit(self._machine))


def missing_of_buffers(unit: Intrinsic) -> list[str]:
    """Return why no queues can fill the buffers of an intrinsic; nothing if they can."""
    missing = []
    pads = {name: pad for pad in unit.scratchpads for name in pad.operands}
    for load in unit.operands:
        if load.tensor.name not in pads:
            missing.append(f"{unit.name}: expected the capacity of {load.tensor.name}'s buffer")
    for pad in unit.scratchpads:
        tiles = [x.tensor for x in unit.operands if x.tensor.name in pad.operands]
        need = sum(x.elements * dtype(str(x.dtype)).bits // 8 for x in tiles)
        if need > pad.capacity:
            missing.append(
                f"{unit.name}: buffer {pad.name}: expected at least {need} bytes for one fragment "
                f"of {' and '.join(x.name for x in tiles)}, got {pad.capacity}"
            )
    return missing
