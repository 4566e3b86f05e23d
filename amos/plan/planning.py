"""``amos.plan``: the plan of a candidate on a machine, without generating any code."""

from __future__ import annotations

from typing import Any

from amos.machine import Machine, catalogue
from amos.machine.limits import CpuLimits
from amos.plan.schedule import Candidate
from amos.plan.target import target_of


def plan(candidate: Candidate, machine: str | Machine = "host") -> Any:
    """Decide everything about a candidate's kernel; print the result to read it.

    Nothing is measured, and no code is generated. The plan is of the kernel with the instruction
    itself; on ``host``, of the loops that emulate it if this CPU lacks it.

    Args:
        candidate: mapping and schedule, or an object with them as ``candidate``: a trial.
        machine: a CPU, a CUDA machine or one with a stream unit, by name or itself.

    Raises:
        BuildError: a CUDA machine has no such intrinsic or not enough memory for the kernel.
        MachineError: the machine is none of these.
        ScheduleError: the schedule is not one of the mapping's, or for another target.
        UnknownNameError: there is no such machine.
    """
    candidate = getattr(candidate, "candidate", candidate)
    mapping, schedule = candidate.mapping, candidate.schedule
    described = None if machine == "host" else _machine(machine)
    return target_of(described).plan(mapping, schedule, described)


def cpu_limits(machine: str | Machine) -> CpuLimits:
    """Return the limits of a machine that plans depend on; ``host`` is not measured."""
    return CpuLimits.here() if machine == "host" else CpuLimits.of(_machine(machine))


def _machine(machine: str | Machine) -> Machine:
    return machine if isinstance(machine, Machine) else catalogue.get(machine)
