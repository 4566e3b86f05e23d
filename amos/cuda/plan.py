"""The plan of a CUDA kernel: blocks, warps, fragments, stages of the reduction.

>>> import amos
>>> from amos.cuda import GpuSchedule
>>> op = amos.operators.get("gemm", dtype="f16", m=64, n=64, k=64)
>>> unit = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
>>> mapping = amos.enumerate_mappings(op, unit)[0]
>>> schedule = GpuSchedule(tile={"i1.tile": 2}, warps={"i2.tile": 4}, stages=2)
>>> print(GpuPlan(mapping, schedule, "sm_80"))
m-n-k of gemm on wmma_m16n16k16_f16_f32 (sm_80)
  grid      i1.tile 2: 2 blocks
  block     i2.tile 4: 4 warps, 6144 bytes of shared memory, 5 on a multiprocessor
  tile      i1.tile 2: 2 accumulators, all fragments of Src2 at once, 88 registers a thread
  reduction r1.tile 4: 1 steps a stage, 4 stages a block, 2 in flight
  Src1      a: 2 fragments of 16 rows of 16 (r1), rows of 16 elements, 1024 bytes,
            copied 16 bytes at once by cp.async, 1 by each thread
  Src2      b: 4 fragments of 16 rows of 16 (i2), rows of 16 elements, 2048 bytes,
            copied 16 bytes at once by cp.async, 1 by each thread
  Dst       out: through shared memory
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from amos.cuda.blocks import Blocks
from amos.cuda.fragment_tiles import tiles_of
from amos.cuda.registers import grant_registers
from amos.cuda.schedule import GpuSchedule
from amos.cuda.shared_operand import SharedOperand
from amos.errors import BuildError, ScheduleError
from amos.intrinsics import implementations
from amos.ir import dtype
from amos.machine.gpu_costs import (
    ASYNC,
    MAX_THREADS,
    ROW_ALIGNMENT,
    Multiprocessor,
    capability,
    multiprocessor,
)
from amos.machine.machine import Machine
from amos.mapping.mapping import Mapping
from amos.plan.device_plan import DevicePlan, narrow_results
from amos.plan.nest import Nest
from amos.plan.schedule import Schedule, batch_of
from amos.plan.staging import StagedOperand

#: Shared memory that a kernel may declare statically.
STATIC_LIMIT = 48 * 1024
#: Blocks along the second dimension of a grid (CUDA C++ Programming Guide, Technical
#: Specifications per Compute Capability), and the largest ``int``.
_GRID_Y, _INT = 65535, 2**31 - 1
#: Bytes that fragments in shared memory begin at multiples of.
_ALIGNMENT = 32
#: Accumulators that ``atomicAdd`` takes on every architecture.
_ATOMIC = ("float32", "float64", "int32")


def architecture_of(machine: Machine) -> str:
    """Return the newest architecture that a machine runs; raise BuildError if it runs no CUDA."""
    if not machine.architecture:
        raise BuildError(f"machine {machine.name!r} has no CUDA architecture among its features")
    return f"sm_{machine.architecture}"


@dataclass(frozen=True)
class GpuPlan(DevicePlan):
    """A kernel of one mapping under one schedule on GPUs of one architecture.

    Attributes:
        architecture: for which the kernel is written, as ``"sm_80"``.

    The others are the numbers of :class:`amos.cuda.blocks.Blocks` under the same names.

    Raises:
        BuildError: the architecture lacks the instruction, or the plan exceeds a limit
            of it.
        ScheduleError: an order does not name the mapping's loops.
    """

    schedule: GpuSchedule
    architecture: str
    warps: int = field(init=False)
    threads: int = field(init=False)
    registers: int = field(init=False)
    share: int = field(init=False)
    parts: int = field(init=False)
    depth: int = field(init=False)
    shared_bytes: int = field(init=False)
    occupancy: int = field(init=False)

    def __post_init__(self) -> None:
        self._refuse(self._missing())
        self._set_numbers()
        self._refuse(self._excess())

    @classmethod
    def of(cls, mapping: Mapping, schedule: Schedule, architecture: str) -> GpuPlan:
        """Plan the kernel of any schedule.

        Raises:
            BuildError: the schedule stages an operand in global memory, or exceeds a limit
                of the architecture.
            ScheduleError: it is of another target.
        """
        where = f"schedule of {mapping.name}"
        if not isinstance(schedule, GpuSchedule):
            if any(loop.extent > 1 for loop in Nest(mapping).spatial):
                got = type(schedule).__name__
                raise ScheduleError(f"{where}: expected one of warps, got a {got}")
            # Without a loop to share out, a dictionary does not tell its target.
            schedule = GpuSchedule.of(schedule.as_dict())
        intrinsic = mapping.intrinsic
        if intrinsic.staged_dtypes != intrinsic.dtypes:
            raise BuildError(f"{intrinsic.name}: CUDA kernels stage sources in their own dtypes")
        if (kind := intrinsic.compute.arithmetic) != "multiply-add":
            raise BuildError(
                f"{intrinsic.name}: CUDA kernels add up products, its arithmetic is {kind}"
            )
        for operand in intrinsic.sources:
            if schedule.stage[operand.tensor.name] != "tile":
                raise BuildError(
                    f"{where}: stage.{operand.tensor.name} = whole needs a buffer in global "
                    "memory; CUDA kernels gather while they copy (tile)"
                )
        return cls(mapping, schedule, architecture)

    @property
    def device(self) -> str:
        """The architecture."""
        return self.architecture

    @cached_property
    def unit(self) -> Multiprocessor:
        """Limits of the architecture."""
        return multiprocessor(capability(self.architecture))

    @cached_property
    def counts(self) -> Blocks:
        """All numbers of the plan, as a batch of one."""
        return Blocks(self.structure, self.unit, batch_of(self.structure, [self.schedule]))

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks of the launch."""
        return prod(self.blocks.values()), self.parts, 1

    @property
    def is_async(self) -> bool:
        """Whether copies of 4 bytes and more are made by ``cp.async``."""
        return self.depth > 1 and self.unit.architecture >= ASYNC

    @cached_property
    def sources(self) -> tuple[SharedOperand, ...]:
        """The intrinsic's sources in shared memory."""
        numbers = range(len(tiles_of(self.structure)) - 1)
        return tuple(SharedOperand.of(self.counts, number, self.spans) for number in numbers)

    @property
    def destination(self) -> StagedOperand:
        """The destination's fragments."""
        return tiles_of(self.structure)[-1].staged

    @cached_property
    def by_columns(self) -> bool:
        """Whether the output is contiguous along the first index of its fragment."""
        return tiles_of(self.structure)[-1].by_columns

    @property
    def scratch_shape(self) -> tuple[int, int]:
        """Rows and columns of an accumulator on its way out; columns are contiguous in the output.

        Stored by columns if the output is contiguous along the first index.
        """
        m, n = (self.nest.groups[t].lanes for t in tiles_of(self.structure)[-1].statement.indices)
        return (n, m) if self.by_columns else (m, n)

    @property
    def dynamic_bytes(self) -> int:
        """Shared memory that the launch has to ask for; 0 where the kernel declares it."""
        return self.shared_bytes if self.shared_bytes > STATIC_LIMIT else 0

    @property
    def granted(self) -> tuple[int, int]:
        """Registers that the compiler may use for a thread, and the blocks that they allow."""
        return grant_registers(self.threads, self.registers, capability(self.architecture))

    @cached_property
    def zeroed(self) -> bool:
        """Whether the output must be zero before the launch: added to, or not written whole."""
        return self.parts > 1 or super().zeroed

    def _missing(self) -> Iterator[str]:
        """Yield capabilities that the architecture or the generator lacks."""
        intrinsic, here = self.mapping.intrinsic, capability(self.architecture)
        if "cuda" not in implementations(intrinsic.name):
            yield f"{intrinsic.name}: CUDA kernels use intrinsics of Tensor Cores only"
        if here < intrinsic.architecture:
            yield (
                f"{intrinsic.name} needs sm_{intrinsic.architecture}, which {self.architecture} "
                "is not"
            )
        for statement in intrinsic.memory:
            strides = (intrinsic.placements[statement.operand].strides, statement.strides)
            if any(value > 1 and text.isdigit() for value, text in zip(*strides, strict=True)):
                yield (
                    f"{intrinsic.name}: kernels choose how far rows of {statement.operand} are "
                    f"apart; expected a symbol as stride, got {statement}"
                )
            if statement.alignment > _ALIGNMENT:
                yield (
                    f"{intrinsic.name}: fragments of {statement.operand} begin at multiples of "
                    f"{_ALIGNMENT} bytes, not of {statement.alignment}"
                )
        for kind in map(dtype, intrinsic.dtypes):
            if kind.bits % 8:
                yield (
                    f"CUDA kernels have no elements of type {kind.short}, which fill no whole bytes"
                )
        if self.schedule.stages > 2 and here < ASYNC:
            yield f"{self.schedule.stages} stages need cp.async, which begins with sm_80"
        yield from narrow_results(self.mapping, "CUDA")
        if self.schedule.split > 1 and (epilogues := self.mapping.operator.epilogues):
            yield (
                "a split reduction has no whole sum in any block, which the epilogue "
                f"{epilogues[0]} needs"
            )
        if self.schedule.split > 1 and self.keeps_elements:
            yield (
                "a split reduction adds to zeros, but an output that is not written whole, "
                f"{self.mapping.operator.store}, keeps its other elements"
            )
        if self.schedule.split > 1 and self.accumulator not in _ATOMIC:
            yield f"a split reduction cannot add to {dtype(self.accumulator).short} atomically"

    def _excess(self) -> Iterator[str]:
        """Yield quantities beyond a limit of the architecture, or counts of 32 bits."""
        if self.threads > MAX_THREADS:
            yield f"{self.threads} threads in a block, but {MAX_THREADS} are allowed"
        for source in self.sources:
            if source.padding < 0 and not self.mapping.intrinsic.open_registers:
                yield f"WMMA reads rows as they lie; rows of {source.name} cannot be swizzled"
            if source.row * source.size % ROW_ALIGNMENT:
                yield (
                    f"rows of {source.name} with {source.padding} elements of padding do not "
                    f"begin at multiples of {ROW_ALIGNMENT} bytes"
                )
        room = self.unit.block_shared
        if self.shared_bytes > room:
            yield f"{self.shared_bytes} bytes of shared memory in a block, but {room} are there"
        counted = {
            "blocks along x": self.grid[0],
            "steps of the reduction": self.sequence * self.staged,
        }
        for loop in self.nest.spatial:
            counted[f"steps of {loop.name}"] = loop.extent + self.spans.get(loop.name, 1)
        for name, group in self.nest.groups.items():
            places = group.size + 2 * group.lanes * self.spans.get(group.tile, 1)
            counted[f"places along {name}"] = places
        for what, count in counted.items():
            if count > _INT:
                yield f"{count} {what}, but a kernel counts to {_INT}"
        if self.parts > _GRID_Y:
            yield f"{self.parts} blocks along y, but a kernel counts to {_GRID_Y}"

    def __str__(self) -> str:
        whole, schedule = self.sources[self.whole_source].name, self.schedule
        steps = {loop.name: loop.extent for loop in self.reduce_loops}
        fragments = "interleaved " * (schedule.fragments == "interleaved")
        lines = {
            "grid": f"{_loops(self.blocks)}{self.grid[0]} blocks"
            + f" x {self.parts} parts of the reduction" * (self.parts > 1)
            + f", {self.raster} rows take turns" * (self.raster > 1),
            "block": f"{_loops(schedule.warps)}{self.warps} warps, {self.shared_bytes} bytes of "
            f"shared memory, {self.occupancy} on a multiprocessor",
            "tile": f"{_loops(schedule.tile)}{self.accumulators} {fragments}accumulators, "
            f"all fragments of {whole} at once, {self.registers} registers a thread",
            "reduction": f"{_loops(steps)}{self.staged} steps a stage, {self.share} stages a "
            f"block, {self.depth} in flight",
        }
        lines |= {source.name: str(source) for source in self.sources}
        opened = self.mapping.intrinsic.open_registers
        path = "from registers" if opened else "through shared memory"
        lines[self.destination.name] = f"{self.mapping.operator.result.name}: {path}"
        head = f"{self.mapping.title} ({self.architecture})"
        return "\n".join([head, *(f"  {name:9} {line}" for name, line in lines.items())])


def _loops(counts: MappingType[str, int]) -> str:
    several = " x ".join(f"{name} {count}" for name, count in counts.items() if count > 1)
    return several and f"{several}: "
