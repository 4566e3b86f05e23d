"""``amos.plan``: the plan of a candidate on a machine, without generating any code."""

from __future__ import annotations

from amos.errors import MachineError
from amos.intrinsics import implementations
from amos.machine import Machine, catalogue
from amos.machine.cpu import cpu
from amos.machine.limits import CpuLimits
from amos.plan.cpu_plan import CpuPlan
from amos.plan.gpu_plan import GpuPlan, architecture_of
from amos.plan.schedule import Candidate, CpuSchedule
from amos.plan.stream_plan import StreamPlan
from amos.plan.structure import Structure


def plan(candidate: Candidate, machine: str | Machine = "host") -> CpuPlan | GpuPlan | StreamPlan:
    """Decide everything that a kernel of a candidate is made of; print the result to read it.

    Nothing is measured for it, and no code is generated. The plan is of the kernel with the
    instruction itself; on ``host``, of the loops that stand for it if this CPU lacks it.

    Args:
        candidate: mapping and schedule, or what holds them as ``candidate``: a trial.
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
    if described is not None and described.architecture:
        return GpuPlan.of(mapping, schedule, architecture_of(described))
    if described is not None and described.stream is not None:
        return StreamPlan.of(mapping, schedule, described)
    if described is not None and not described.cached:
        raise MachineError(
            f"machine {described.name!r}: expected a CPU, a CUDA machine or a stream unit"
        )
    cpu_schedule = CpuSchedule.of(schedule.as_dict())
    cpu_schedule.batch(Structure(mapping))
    native = "llvm" in implementations(mapping.intrinsic.name)
    if machine == "host":
        native = native and {*mapping.intrinsic.requires} <= cpu().features
    return CpuPlan(mapping, cpu_schedule, cpu_limits(machine), "native" if native else "generic")


def cpu_limits(machine: str | Machine) -> CpuLimits:
    """Limits that plans depend on, of a machine by name or itself; ``host`` is not measured."""
    return CpuLimits.here() if machine == "host" else CpuLimits.of(_machine(machine))


def _machine(machine: str | Machine) -> Machine:
    return machine if isinstance(machine, Machine) else catalogue.get(machine)
