"""What one kernel does: blocks, warps, fragments, stages of the reduction.

Every spatial loop of the mapping is cut twice: a warp holds ``tile`` of its steps in
accumulators, a block has ``block`` warps along it. The reduction loops are one
sequence of steps, ``steps`` of which are staged in shared memory together; ``stages``
such stages are in flight. With ``split`` the sequence is divided over that many
blocks, whose sums meet in atomic additions.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from amos.codegen.cuda.staging import SharedOperand
from amos.codegen.cuda.types import CudaType, cuda_type
from amos.errors import BuildError
from amos.machine.gpu_costs import ASYNC, MAX_THREADS, ROW_ALIGNMENT, WARP
from amos.mapping.mapping import Mapping
from amos.plan.gpu_registers import fragment_registers, granted, thread_registers
from amos.plan.nest import Loop, Nest
from amos.plan.staging import StagedOperand, staged_destination

__all__ = ["STATIC_LIMIT", "BlockProgram", "capability"]

#: Shared memory that a kernel may declare statically.
STATIC_LIMIT = 48 * 1024
#: Shared memory of a block after opting in, by compute capability (CUDA C++ Programming
#: Guide, table of technical specifications).
_SHARED = {70: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 120: 99}
#: Blocks along the second dimension of a grid (the same table), and the largest ``int``.
_GRID_Y, _INT = 65535, 2**31 - 1
#: Architectures beyond this one are not known to exist.
_NEWEST = 121


def capability(architecture: str) -> int:
    """``80`` for ``"sm_80"``.

    Raises:
        BuildError: that is no architecture.
    """
    digits = architecture.removeprefix("sm_").rstrip("a")
    if not architecture.startswith("sm_") or not digits.isdigit():
        raise BuildError(f"architecture {architecture!r}: expected a name such as 'sm_80'")
    if int(digits) > _NEWEST:
        raise BuildError(f"architecture {architecture!r}: sm_{_NEWEST} is the newest known here")
    return int(digits)


@dataclass(frozen=True)
class BlockProgram:
    """One mapping, cut for a GPU.

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
        BuildError: the architecture lacks the instruction, or the program exceeds a
            limit of it.
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
        intrinsic, where = self.mapping.intrinsic, f"{self.mapping.name} on {self.architecture}"
        here = capability(self.architecture)
        if intrinsic.family not in ("wmma", "mma"):
            raise BuildError(f"{intrinsic.name}: CUDA kernels use intrinsics of Tensor Cores only")
        if here < intrinsic.architecture:
            raise BuildError(
                f"{intrinsic.name} needs sm_{intrinsic.architecture}, "
                f"which {self.architecture} is not"
            )
        for name in ("steps", "stages", "split"):
            if getattr(self, name) < 1:
                raise BuildError(f"{where}: {name}: expected at least 1, got {getattr(self, name)}")
        if self.stages > 2 and here < ASYNC:
            raise BuildError(
                f"{where}: {self.stages} stages need cp.async, which begins with sm_80"
            )
        if self.threads > MAX_THREADS:
            raise BuildError(
                f"{where}: {self.threads} threads in a block, but {MAX_THREADS} are allowed"
            )
        if self.split > 1 and self.mapping.operator.epilogue is not None:
            raise BuildError(
                f"{where}: a split reduction has no whole sum in any block, which the epilogue "
                f"{self.mapping.operator.epilogue} needs"
            )
        if self.split > 1 and not self.result.atomic:
            raise BuildError(
                f"{where}: a split reduction cannot add to {self.result.name} atomically"
            )
        for source in self.sources:
            if not intrinsic.open_registers and (source.padding or 0) < 0:
                raise BuildError(
                    f"{where}: WMMA reads rows as they lie; rows of {source.name} cannot be "
                    "swizzled"
                )
            if source.row * source.element.bytes % ROW_ALIGNMENT:
                raise BuildError(
                    f"{where}: rows of {source.name} with {self.padding[source.name]} elements of "
                    f"padding do not begin at multiples of {ROW_ALIGNMENT} bytes"
                )
        if self.shared_bytes > self.shared_limit:
            raise BuildError(
                f"{where}: {self.shared_bytes} bytes of shared memory in a block, but "
                f"{self.shared_limit} are there"
            )
        self._check_counts(where)

    def _check_counts(self, where: str) -> None:
        """What is counted in integers of 32 bits, and the launch, stay within their limits."""
        for count, most, what in (
            (self.grid[0], _INT, "blocks along x"),
            (self.grid[1], _GRID_Y, "blocks along y"),
            (self.sequence * self.staged, _INT, "steps of the reduction"),
            *(
                (loop.extent + self.spans.get(loop.name, 1), _INT, f"steps of {loop.name}")
                for loop in self.nest.spatial
            ),
            *(
                (
                    group.size + 2 * group.lanes * self.spans.get(group.tile, 1),
                    _INT,
                    f"places along {name}",
                )
                for name, group in self.nest.groups.items()
            ),
        ):
            if count > most:
                raise BuildError(f"{where}: {count} {what}, but a kernel counts to {most}")

    @cached_property
    def nest(self) -> Nest:
        """Loops of the mapping."""
        return Nest(self.mapping)

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
        return {x.name: self.tile_of(x.name) * self.warps_of(x.name) for x in self.spatial}

    @cached_property
    def blocks(self) -> dict[str, int]:
        """Blocks along each spatial loop."""
        return {x.name: -(-x.extent // self.spans[x.name]) for x in self.spatial}

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks of the launch."""
        return prod(self.blocks.values()), self.parts, 1

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return prod(self.warps_of(x.name) for x in self.spatial)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps

    @property
    def reduction(self) -> int:
        """Steps of the whole reduction."""
        return prod(x.extent for x in self.reduce)

    @property
    def staged(self) -> int:
        """Steps of one stage: never more than the reduction has."""
        return min(self.steps, self.reduction)

    @cached_property
    def sequence(self) -> int:
        """Stages of the whole reduction."""
        return -(-self.reduction // self.staged)

    @property
    def parts(self) -> int:
        """Parts of the reduction that have a stage to do."""
        share = -(-self.sequence // self.split)
        return -(-self.sequence // share)

    @property
    def share(self) -> int:
        """Stages of one part; the last one may have fewer."""
        return -(-self.sequence // self.split)

    @cached_property
    def depth(self) -> int:
        """Stages of shared memory: never more than a part has to do."""
        return min(self.stages, self.share)

    @property
    def is_async(self) -> bool:
        """Whether copies of 4 bytes and more are made by ``cp.async``."""
        return self.depth > 1 and capability(self.architecture) >= ASYNC

    @cached_property
    def sources(self) -> tuple[SharedOperand, ...]:
        """The intrinsic's sources in shared memory."""
        return tuple(
            SharedOperand(
                operand.tensor.name,
                m,
                self.mapping.pairing.loads[m],
                self.nest,
                tuple(index.names[0] for index in operand.indices),
                self.spans,
                self.staged,
                self.mapping.intrinsic.dtypes[m],
                self.padding.get(operand.tensor.name),
                self.vector,
            )
            for m, operand in enumerate(self.mapping.intrinsic.sources)
        )

    @cached_property
    def destination(self) -> StagedOperand:
        """The destination's fragments."""
        return staged_destination(self.nest)

    @property
    def result(self) -> CudaType:
        """Type of an accumulator."""
        return cuda_type(self.mapping.intrinsic.dtypes[-1])

    @property
    def stored_dtype(self) -> str:
        """Canonical type of an element of the output."""
        accumulator, epilogue = self.mapping.intrinsic.dtypes[-1], self.mapping.operator.epilogue
        return accumulator if epilogue is None else epilogue.result(accumulator)

    @property
    def stored(self) -> CudaType:
        """Type of an element of the output."""
        return cuda_type(self.stored_dtype)

    @cached_property
    def arguments(self) -> dict[str, str]:
        """Canonical type of each argument of the kernel: inputs in order, then the output."""
        op = self.mapping.operator
        kinds = {source.load.tensor.name: source.dtype for source in self.sources}
        for load in op.epilogue.loads if op.epilogue is not None else ():
            kinds[load.tensor.name] = str(load.tensor.dtype)
        made = {tensor.name: kinds[tensor.name] for tensor in op.inputs}
        return made | {op.output.tensor.name: self.stored_dtype}

    @property
    def staging_bytes(self) -> int:
        """Shared memory of all stages."""
        return self.depth * sum(source.bytes for source in self.sources)

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
    def scratch_bytes(self) -> int:
        """Shared memory that accumulators leave through; it takes the place of the stages."""
        if self.mapping.intrinsic.open_registers:
            return 0
        return self.warps * prod(self.scratch_shape) * self.result.bytes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block."""
        return max(self.staging_bytes, self.scratch_bytes)

    @property
    def shared_limit(self) -> int:
        """Shared memory that a block of this architecture may have."""
        known = max((c for c in _SHARED if c <= capability(self.architecture)), default=70)
        return _SHARED[known] * 1024

    @property
    def is_dynamic(self) -> bool:
        """Whether the launch has to ask for the shared memory."""
        return self.shared_bytes > STATIC_LIMIT

    @cached_property
    def accumulators(self) -> int:
        """Accumulators of one warp."""
        return prod(self.tile_of(x.name) for x in self.spatial)

    @cached_property
    def held(self) -> int:
        """Number of the source whose fragments a warp holds all at once.

        Of the other one they are loaded one by one, each used and forgotten.
        """
        sizes = fragment_registers(self.mapping.intrinsic)
        needs = [self._own(source) * sizes[source.number] for source in self.sources]
        rest = [sum(sizes[:-1]) - sizes[source.number] for source in self.sources]
        both = [need + other for need, other in zip(needs, rest, strict=True)]
        return both.index(min(both))

    @cached_property
    def registers(self) -> int:
        """Registers that a thread needs, as the schedule space counts them."""
        counts = [self._own(source) for source in self.sources]
        arrays = [np.asarray(count) for count in (*counts, self.accumulators)]
        return int(thread_registers(self.mapping.intrinsic, arrays))

    @property
    def granted(self) -> tuple[int, int]:
        """Registers that the compiler may use for a thread, and the blocks that they allow."""
        return granted(self.threads, self.registers, capability(self.architecture))

    def _own(self, source: SharedOperand) -> int:
        """Fragments of a source that a warp needs in one step."""
        return prod(self.tile_of(name) for name in source.loops)

    @cached_property
    def zeroed(self) -> bool:
        """Whether the output must be zero before the launch: added to, or not written whole."""
        op = self.mapping.operator
        written = prod(it.extent for it in op.spatial)
        return self.parts > 1 or written != op.output.tensor.elements


def _ordered(loops: tuple[Loop, ...], order: tuple[str, ...]) -> tuple[Loop, ...]:
    live = {loop.name: loop for loop in loops if loop.extent > 1}
    names = [*order, *(name for name in live if name not in order)]
    return tuple(live[name] for name in names if name in live)
