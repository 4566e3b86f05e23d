"""A candidate as scheduled TensorIR: the program, and its module."""

from __future__ import annotations

from typing import Any

from amos.codegen.amx.program import TileProgram
from amos.codegen.amx.tiles import schedule_tiles
from amos.codegen.naming import Names
from amos.codegen.tir.cpu import schedule_cpu
from amos.codegen.tir.mirroring import mirrored
from amos.codegen.tir.program import OWN, Program
from amos.codegen.tir.tensor_intrin import partial
from amos.errors import AmosError, BuildError
from amos.plan import Candidate, CpuSchedule
from amos.plan.nest import Nest
from amos.schedule import ScheduleSpace

__all__ = ["last_line", "scheduled", "tiled"]


def scheduled(candidate: Candidate, kind: str) -> tuple[Program, Any]:
    """The program of a candidate, and its module after scheduling.

    Args:
        candidate: mapping and schedule.
        kind: ``"native"``, ``"generic"`` or ``"c"``; see :mod:`amos.codegen.tir.tensor_intrin`.

    Raises:
        BuildError: a buffer has too many elements, or TVM refuses the program.
        ScheduleError: the schedule is not one of the mapping's space.
    """
    ScheduleSpace(candidate.mapping).check(candidate.schedule)
    named = Names.of(candidate.mapping.operator, OWN, tensors=False).candidate(candidate)
    mapping, schedule = mirrored(named.mapping), CpuSchedule.of(named.schedule.as_dict())
    padded = schedule.padded(Nest(mapping))
    program: Program
    try:
        if tiled(candidate, kind):
            program = TileProgram(mapping, padded, schedule)
            program.check_sizes()
            return program, schedule_tiles(program, schedule)
        program = Program(mapping, padded, schedule, partial(mapping.intrinsic, kind))
        program.check_sizes()
        return program, schedule_cpu(program, schedule, kind).mod
    except AmosError:
        raise
    except Exception as error:
        raise BuildError(f"{candidate}: TVM cannot schedule it: {last_line(error)}") from error


def tiled(candidate: Candidate, kind: str) -> bool:
    """Whether accumulators live in registers that the generator numbers itself."""
    return kind == "native" and candidate.mapping.intrinsic.tile_registers


def last_line(error: BaseException) -> str:
    """What an error of TVM comes to."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
