"""A candidate as scheduled TensorIR: the program, and its module."""

from __future__ import annotations

from typing import Any

from amos.codegen.amx.tiles import schedule_tiles
from amos.codegen.naming import Names
from amos.codegen.tir.cpu import schedule_cpu
from amos.codegen.tir.mirroring import mirror
from amos.codegen.tir.program import OWN, Program
from amos.errors import AmosError, BuildError
from amos.machine.limits import CpuLimits
from amos.plan import Candidate, CpuSchedule
from amos.plan.cpu_plan import CpuPlan
from amos.schedule import ScheduleSpace


def schedule_candidate(candidate: Candidate, kind: str, limits: CpuLimits) -> tuple[Program, Any]:
    """Build the program of a candidate, and schedule its module.

    Args:
        kind: ``"native"``, ``"generic"`` or ``"c"``; see :mod:`amos.codegen.tir.tensor_intrin`.

    Raises:
        BuildError: a buffer has too many elements, or TVM refuses the program.
        ScheduleError: the schedule is not one of the mapping's space.
    """
    ScheduleSpace(candidate.mapping).check(candidate.schedule)
    named = Names.of(candidate.mapping.operator, OWN, tensors=False).rename(candidate)
    schedule = CpuSchedule.of(named.schedule.as_dict())
    plan = CpuPlan(mirror(named.mapping), schedule, limits, kind)
    try:
        program = Program(plan)
        program.check_sizes()
        return program, (schedule_tiles if plan.tiled else schedule_cpu)(program)
    except AmosError:
        raise
    except Exception as error:
        raise BuildError(f"{candidate}: TVM cannot schedule it: {last_line(error)}") from error


def last_line(error: BaseException) -> str:
    """Return the message of an error of TVM."""
    lines = [line.strip() for line in str(error).splitlines()]
    # Programs that an error shows begin with a comment of TVM's printer.
    lines = [line for line in lines if line and not line.startswith("# Metadata omitted")]
    return lines[-1] if lines else type(error).__name__
