"""From a schedule of the space to a block program, and what the space believes of it."""

from __future__ import annotations

from dataclasses import dataclass

from amos.codegen.cuda.program import BlockProgram, capability
from amos.errors import BuildError
from amos.machine import Machine
from amos.machine.gpu_costs import WARP
from amos.mapping.mapping import Mapping
from amos.plan import Schedule
from amos.plan.gpu_registers import granted
from amos.plan.nest import Nest
from amos.schedule import ScheduleSpace

__all__ = [
    "Registers",
    "architecture_of",
    "believed_registers",
    "believed_shared",
    "block_program",
]


@dataclass(frozen=True)
class Registers:
    """What the space believes of a schedule's registers.

    Attributes:
        counted: that a thread needs.
        granted: that it may use, the most that leave room for all ``blocks``.
        blocks: of one multiprocessor that the count promises.
    """

    counted: int
    granted: int
    blocks: int


def architecture_of(machine: Machine) -> str:
    """The newest architecture that a machine runs.

    Raises:
        BuildError: it runs no CUDA.
    """
    if not machine.architecture:
        raise BuildError(f"machine {machine.name!r} has no CUDA architecture among its features")
    return f"sm_{machine.architecture}"


def block_program(mapping: Mapping, schedule: Schedule, architecture: str) -> BlockProgram:
    """The kernel that a schedule describes.

    ``tile.LOOP`` is a warp's, ``block.LOOP`` counts warps, ``unroll`` steps of the
    reduction are one stage, and ``pipeline`` stages are in flight.

    Args:
        mapping: what goes where.
        schedule: of the mapping's space on a CUDA machine.
        architecture: as ``"sm_80"``.

    Raises:
        BuildError: the schedule is none of warps, stages an operand in global memory,
            or exceeds a limit of the architecture.
    """
    nest = Nest(mapping)
    live = [loop.name for loop in nest.spatial if loop.extent > 1]
    if live and schedule.get("bind") != "warps":
        raise BuildError(
            f"schedule of {mapping.name}: it is not one of warps, but of another machine"
        )
    names = [operand.tensor.name for operand in mapping.intrinsic.sources]
    for name in names:
        if schedule.get(f"stage.{name}", "tile") != "tile":
            raise BuildError(
                f"schedule of {mapping.name}: stage.{name} = whole needs a buffer in global "
                "memory; CUDA kernels gather while they copy (tile)"
            )
    return BlockProgram(
        mapping,
        architecture,
        tile={name: schedule.tile(name) for name in live},
        block={name: schedule.block(name) for name in live},
        steps=int(schedule.get("unroll", 1)),
        stages=int(schedule.get("pipeline", 1)),
        split=int(schedule.get("split", 1)),
        vector=int(schedule.get("vector", 16)),
        padding={name: int(schedule.get(f"align.{name}", 0)) for name in names},
        order=tuple(loop.name for loop in schedule.order(nest)),
        reduce_order=tuple(loop.name for loop in schedule.reduce_order(nest)),
    )


def believed_shared(space: ScheduleSpace, schedule: Schedule) -> int:
    """Bytes of shared memory that the space counts for a schedule.

    A kernel has exactly as many, unless its reduction is shorter than the stages that
    the schedule asks for, or its fragments are not square: then it has no more.
    """
    values = space.values(schedule)
    out = space.mapping.intrinsic.destination.tensor.name
    return max(values.get("shared.used", 0), values.get(f"shared.{out}", 0))


def believed_registers(space: ScheduleSpace, schedule: Schedule, architecture: str) -> Registers:
    """Registers that the space counts for a thread, and what follows from the count.

    Args:
        space: of a machine with warps.
        schedule: one of it.
        architecture: of the kernel, as ``"sm_80"``.
    """
    values = space.values(schedule)
    counted = values["registers.thread"]
    most, blocks = granted(values.get("threads", WARP), counted, capability(architecture))
    return Registers(counted, most, blocks)
