"""The plan of a CUDA kernel: blocks, warps, fragments, stages of the reduction.

>>> import amos
>>> op = amos.operators.get("gemm", dtype="f16", m=64, n=64, k=64)
>>> unit = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
>>> mapping = amos.enumerate_mappings(op, unit)[0]
>>> print(GpuPlan(mapping, "sm_80", tile={"i1.tile": 2}, block={"i2.tile": 4}, stages=2))
gemm m-n-k on sm_80 by wmma_m16n16k16_f16_f32
grid: 2 blocks (i1.tile 2) x 1 of the reduction
block: 4 warps (i2.tile 4), 9216 bytes of shared memory, 5 on a multiprocessor
warp: 2 accumulators (i1.tile 2), all fragments of Src2 at once, 88 registers a thread
reduction: 4 steps (r1.tile 4), 1 a stage, 4 stages a block, 2 in flight
Src1 (a): 2 fragments of 16 rows of 16 (r1), rows of 24 elements, 1536 bytes
  copied 16 bytes at once by cp.async, 1 by each thread
Src2 (b): 4 fragments of 16 rows of 16 (i2), rows of 24 elements, 3072 bytes
  copied 16 bytes at once by cp.async, 1 by each thread
"""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from amos.errors import BuildError
from amos.machine.gpu_costs import (
    ASYNC,
    ROW_ALIGNMENT,
    Multiprocessor,
    capability,
    multiprocessor,
)
from amos.machine.machine import Machine
from amos.mapping.mapping import Mapping
from amos.plan.blocks import Blocks
from amos.plan.gpu_limits import check
from amos.plan.gpu_registers import granted
from amos.plan.nest import Loop, Nest
from amos.plan.schedule import GpuSchedule, Schedule
from amos.plan.shared_operand import SharedOperand
from amos.plan.staging import StagedOperand
from amos.plan.structure import LoopBatch, Structure

__all__ = ["STATIC_LIMIT", "GpuPlan", "architecture_of"]

#: Shared memory that a kernel may declare statically.
STATIC_LIMIT = 48 * 1024


def architecture_of(machine: Machine) -> str:
    """The newest architecture that a machine runs.

    Raises:
        BuildError: it runs no CUDA.
    """
    if not machine.architecture:
        raise BuildError(f"machine {machine.name!r} has no CUDA architecture among its features")
    return f"sm_{machine.architecture}"


@dataclass(frozen=True)
class GpuPlan:
    """One mapping, cut for a GPU; every number is that of :class:`amos.plan.blocks.Blocks`.

    Attributes:
        mapping: what goes where; its intrinsic is of family ``wmma`` or ``mma``.
        architecture: for which the kernel is written, as ``"sm_80"``.
        tile: fragments of a warp along each spatial loop, by default 1.
        block: warps along each spatial loop, by default 1.
        steps: reduction steps staged together.
        stages: stages of shared memory in flight.
        split: parts of the reduction that run at the same time.
        vector: bytes that one copy moves at most.
        padding: elements added to the rows of an operand in shared memory, by its
            name, or -1 for rows that are swizzled; those of an operand left out are as few
            as keep its banks apart.
        order: names of spatial loops, outermost first, in which blocks are numbered.
        reduce_order: names of reduction loops, outermost first.

    Raises:
        BuildError: the architecture lacks the instruction, or the plan exceeds a limit
            of it.
    """

    mapping: Mapping
    architecture: str
    tile: MappingType[str, int] = field(default_factory=dict)
    block: MappingType[str, int] = field(default_factory=dict)
    steps: int = 1
    stages: int = 1
    split: int = 1
    vector: int = ROW_ALIGNMENT
    padding: MappingType[str, int] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    reduce_order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def of(cls, mapping: Mapping, schedule: Schedule, architecture: str) -> GpuPlan:
        """The kernel that a schedule describes.

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
        if live and not isinstance(schedule, GpuSchedule):
            raise BuildError(
                f"schedule of {mapping.name}: it is not one of warps, but of another machine"
            )
        # Without a loop to share out, a dictionary does not tell its target.
        chosen = GpuSchedule.of(schedule.as_dict())
        names = [operand.tensor.name for operand in mapping.intrinsic.sources]
        for name in names:
            if chosen.stage[name] != "tile":
                raise BuildError(
                    f"schedule of {mapping.name}: stage.{name} = whole needs a buffer in global "
                    "memory; CUDA kernels gather while they copy (tile)"
                )
        return cls(
            mapping,
            architecture,
            tile={name: chosen.tile[name] for name in live},
            block={name: chosen.warps[name] for name in live},
            steps=chosen.steps,
            stages=chosen.stages,
            split=chosen.split,
            vector=chosen.copy_bytes,
            padding={name: chosen.padding[name] for name in names},
            order=tuple(loop.name for loop in chosen.spatial_order(nest)),
            reduce_order=tuple(loop.name for loop in chosen.reduce_order(nest)),
        )

    @cached_property
    def unit(self) -> Multiprocessor:
        """Limits of the architecture."""
        return multiprocessor(capability(self.architecture))

    @cached_property
    def structure(self) -> Structure:
        """Loops and fragments of the mapping."""
        return Structure(self.mapping)

    @property
    def nest(self) -> Nest:
        """Loops of the mapping."""
        return self.structure.nest

    @cached_property
    def counts(self) -> Blocks:
        """All numbers of the plan, as a batch of one."""
        names = [loop.name for loop in self.structure.spatial]
        sources = self.structure.tiles[:-1]
        padding = [self.padding.get(t.staged.name, t.least_padding) for t in sources]
        one = np.ones(1, dtype=np.int64)
        batch = LoopBatch(
            tile=np.array([[self.tile_of(name) for name in names]]),
            order=np.zeros((1, len(names))),
            reduce=np.zeros((1, len(self.structure.reduce))),
            parallel=one,
            unroll=one * self.steps,
            ahead=np.zeros((1, 0), dtype=bool),
            copy_bytes=one * self.vector,
            warps=np.array([[self.warps_of(name) for name in names]]),
            padding=np.array([padding]),
            stages=one * self.stages,
            split=one * self.split,
        )
        return Blocks(self.structure, self.unit, batch)

    @cached_property
    def spatial(self) -> tuple[Loop, ...]:
        """Spatial loops with more than one step, in the order that blocks are numbered in."""
        return _ordered(self.nest.spatial, self.order)

    @cached_property
    def reduce(self) -> tuple[Loop, ...]:
        """Reduction loops with more than one step, outermost first."""
        return _ordered(self.nest.reduce, self.reduce_order)

    def tile_of(self, loop: str) -> int:
        """Fragments of a warp along a loop."""
        return self.tile.get(loop, 1)

    def warps_of(self, loop: str) -> int:
        """Warps of a block along a loop."""
        return self.block.get(loop, 1)

    @cached_property
    def spans(self) -> dict[str, int]:
        """Steps that a block makes along each spatial loop."""
        return self._along(self.counts.span)

    @cached_property
    def blocks(self) -> dict[str, int]:
        """Blocks along each spatial loop."""
        return self._along(self.counts.blocks)

    def _along(self, counts: np.ndarray) -> dict[str, int]:
        names = [loop.name for loop in self.structure.spatial]
        count = dict(zip(names, counts[:, 0], strict=True))
        return {loop.name: int(count[loop.name]) for loop in self.spatial}

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks of the launch."""
        return prod(self.blocks.values()), self.parts, 1

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return int(self.counts.warps[0])

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return int(self.counts.threads[0])

    @property
    def reduction(self) -> int:
        """Steps of the whole reduction."""
        return prod(x.extent for x in self.reduce)

    @property
    def staged(self) -> int:
        """Steps of one stage: never more than the reduction has."""
        return int(self.counts.staged[0])

    @property
    def sequence(self) -> int:
        """Stages of the whole reduction."""
        return int(self.counts.sequence[0])

    @property
    def parts(self) -> int:
        """Parts of the reduction that have a stage to do."""
        return int(self.counts.parts[0])

    @property
    def share(self) -> int:
        """Stages of one part; the last one may have fewer."""
        return int(self.counts.share[0])

    @property
    def depth(self) -> int:
        """Stages of shared memory: never more than a part has to do."""
        return int(self.counts.depth[0])

    @property
    def is_async(self) -> bool:
        """Whether copies of 4 bytes and more are made by ``cp.async``."""
        return self.depth > 1 and self.unit.architecture >= ASYNC

    @cached_property
    def sources(self) -> tuple[SharedOperand, ...]:
        """The intrinsic's sources in shared memory."""
        numbers = range(len(self.structure.tiles) - 1)
        return tuple(SharedOperand.of(self.counts, number, self.spans) for number in numbers)

    @property
    def destination(self) -> StagedOperand:
        """The destination's fragments."""
        return self.structure.tiles[-1].staged

    @property
    def accumulator(self) -> str:
        """Canonical type of an element of an accumulator."""
        return self.mapping.intrinsic.dtypes[-1]

    @property
    def stored_dtype(self) -> str:
        """Canonical type of an element of the output."""
        epilogue = self.mapping.operator.epilogue
        return self.accumulator if epilogue is None else epilogue.result(self.accumulator)

    @cached_property
    def arguments(self) -> dict[str, str]:
        """Canonical type of each argument of the kernel: inputs in order, then the output."""
        op = self.mapping.operator
        kinds = {t.staged.load.tensor.name: t.dtype for t in self.structure.tiles[:-1]}
        for load in op.epilogue.loads if op.epilogue is not None else ():
            kinds[load.tensor.name] = str(load.tensor.dtype)
        made = {tensor.name: kinds[tensor.name] for tensor in op.inputs}
        return made | {op.output.tensor.name: self.stored_dtype}

    @cached_property
    def scratch_shape(self) -> tuple[int, int]:
        """Rows and columns of an accumulator on its way out; columns are contiguous in the output.

        Stored by columns if the output is contiguous along the first index.
        """
        m, n = (self.nest.groups[t].lanes for t in self.destination.fragment)
        return (n, m) if self.by_columns else (m, n)

    @cached_property
    def by_columns(self) -> bool:
        """Whether the output is contiguous along the first index of its fragment."""
        load = self.destination.load
        flat: dict[str, int] = {}
        shape = load.tensor.shape
        for d, index in enumerate(load.indices):
            for name, c in index.terms:
                flat[name] = flat.get(name, 0) + c * prod(shape[d + 1 :])
        strides = []
        for target in self.destination.fragment:
            members = self.nest.groups[target].members
            strides.append(flat.get(members[-1], 1 << 62) if members else 1 << 62)
        return strides[0] < strides[1]

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block; accumulators leave through that of the stages."""
        return int(self.counts.shared[0])

    @property
    def is_dynamic(self) -> bool:
        """Whether the launch has to ask for the shared memory."""
        return self.shared_bytes > STATIC_LIMIT

    @property
    def accumulators(self) -> int:
        """Accumulators of one warp."""
        return int(self.counts.own(-1)[0])

    @property
    def whole_source(self) -> int:
        """Number of the source whose fragments a warp holds all at once."""
        return int(self.counts.whole_source[0])

    @property
    def registers(self) -> int:
        """Registers that a thread needs, as the schedule space counts them."""
        return int(self.counts.registers[0])

    @property
    def granted(self) -> tuple[int, int]:
        """Registers that the compiler may use for a thread, and the blocks that they allow."""
        return granted(self.threads, self.registers, capability(self.architecture))

    @cached_property
    def zeroed(self) -> bool:
        """Whether the output must be zero before the launch: added to, or not written whole."""
        op = self.mapping.operator
        written = prod(it.extent for it in op.spatial)
        return self.parts > 1 or written != op.output.tensor.elements

    def __str__(self) -> str:
        steps = _counted({x.name: x.extent for x in self.reduce})
        whole, blocks = self.sources[self.whole_source].name, _counted(self.blocks)
        return "\n".join(
            [
                f"{self.mapping.operator.name} {self.mapping.name} on {self.architecture} by "
                f"{self.mapping.intrinsic.name}",
                f"grid: {self.grid[0]} blocks{blocks} x {self.parts} of the reduction",
                f"block: {self.warps} warps{_counted(self.block)}, {self.shared_bytes} bytes of "
                f"shared memory, {int(self.counts.occupancy[0])} on a multiprocessor",
                f"warp: {self.accumulators} accumulators{_counted(self.tile)}, all fragments of "
                f"{whole} at once, {self.registers} registers a thread",
                f"reduction: {self.reduction} steps{steps}, {self.staged} a stage, "
                f"{self.share} stages a block, {self.depth} in flight",
                *map(str, self.sources),
            ]
        )


def _counted(counts: MappingType[str, int]) -> str:
    several = " x ".join(f"{name} {count}" for name, count in counts.items() if count > 1)
    return f" ({several})" if several else ""


def _ordered(loops: tuple[Loop, ...], order: tuple[str, ...]) -> tuple[Loop, ...]:
    live = {loop.name: loop for loop in loops if loop.extent > 1}
    names = [*order, *(name for name in live if name not in order)]
    return tuple(live[name] for name in names if name in live)
