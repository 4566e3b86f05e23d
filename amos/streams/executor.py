"""Measuring on a simulated unit, in the worker that has limits of time and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.measure.executor import DescribedExecutor
from amos.measure.task import Place
from amos.plan import Candidate
from amos.records.canonical import identity_of
from amos.streams.runtime import StreamKernel
from amos.streams.tiles import list_memories


@dataclass(frozen=True)
class SimulatedUnit(Place):
    """A machine with a stream unit, simulated."""

    machine: Machine

    def build(self, candidate: Candidate) -> StreamKernel:
        """Build the candidate's stream."""
        return StreamKernel(candidate, self.machine)


class SimulatorExecutor(DescribedExecutor):
    """A described machine whose streams are simulated here."""

    exact = True

    def __init__(self, machine: Machine, timeout: float, memory: int | None) -> None:
        super().__init__(machine, identity_of(machine), timeout, memory)

    def place(self, task: Any) -> Any:
        """Return a task on the simulated unit."""
        return replace(task, place=SimulatedUnit(self._machine))


def missing_of_buffers(unit: Intrinsic, machine: Machine) -> list[str]:
    """Return why no queues can fill the buffers of an intrinsic; nothing if they can."""
    pads = {name for pad in unit.scratchpads for name in pad.operands}
    names = [load.tensor.name for load in unit.operands]
    missing = [
        f"{unit.name}: expected the capacity of {name}'s buffer"
        for name in names
        if name not in pads
    ]
    for pad in list_memories(unit, machine):
        tiles = [load for load in unit.operands if load.tensor.name in pad.operands]
        sizes = [unit.fragment_bytes(load) for load in tiles]
        what = f"fragment of {' and '.join(load.tensor.name for load in tiles)}"
        if pad.banks == 1:
            need, has, where = sum(sizes), pad.capacity, ""
        else:
            need, has, where = max(sizes), pad.capacity // pad.banks, " in a bank"
        if need > has:
            missing.append(
                f"{unit.name}: buffer {pad.name}: expected at least {need} bytes{where} for one "
                f"{what}, got {has}"
            )
        if pad.banks > 1 and len(tiles) > pad.banks:
            missing.append(
                f"{unit.name}: buffer {pad.name}: expected a bank for each {what}, got {pad.banks}"
            )
    return missing
