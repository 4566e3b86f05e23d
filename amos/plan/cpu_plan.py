"""The plan of a CPU kernel: what mapping, schedule and machine decide, as named numbers."""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from amos.errors import BuildError
from amos.ir import Affine, dtype
from amos.machine.limits import CpuLimits
from amos.plan.cpu_blocks import CpuBlocks
from amos.plan.cpu_copies import PLACES, CopyBlocks, Place
from amos.plan.cpu_description import describe_plan
from amos.plan.cpu_forms import SourceForm
from amos.plan.packing import group_columns, order_for_reading, pad_operand
from amos.plan.schedule import CpuSchedule, Plan
from amos.plan.split_reduction import PART, SplitReduction, split_reduction
from amos.plan.staging import StagedOperand
from amos.plan.staging_vectors import VectorCopy
from amos.plan.strided import StridedOperand

#: How a source reaches the calls.
Form = Literal["in place", "packed", "strided", "gathered"]
#: Alignment of TVM's allocations in bytes (``kAllocAlignment``).
_ALIGNED = 64


@dataclass(frozen=True)
class SourceCopy:
    """The copy of a source within the kernel.

    Attributes:
        place: where it is made.
        extents: of one copy, along the dimensions of the staged form.
        tail: number of its loops that one step spans; 0 if each row is written in pieces or each
            vector is permuted.
        width: elements that one step moves at most.
        vectors: how fragments are copied in whole vectors; ``None`` if elements are found
            one by one.
        shared: number of its loops that are divided among the cores; 0 inside of the nest.
        spread: the dimension whose steps are padded by a cache line; ``None`` if they are
            contiguous.
        line: elements of a cache line.
    """

    place: Place
    extents: tuple[int, ...]
    tail: int
    width: int
    vectors: VectorCopy | None
    shared: int
    spread: int | None
    line: int


@dataclass(frozen=True)
class Edge:
    """A loop that ends in register tiles with code of their own.

    Attributes:
        extent: steps that have a result.
        cut: steps of the tile that the end cuts; 0 if it cuts none.
        beyond: whether whole tiles lie beyond the end, which do not run.
    """

    loop: str
    tile: int
    extent: int
    cut: int
    beyond: bool


@dataclass(frozen=True)
class Skip:
    """Steps of the reduction that are skipped, because they read only padding.

    Attributes:
        index: of a source, in terms of the nest's loops.
        size: of its tensor there: steps with the index outside of it are skipped.
        loop: the reduction loop whose body is skipped.
    """

    index: Affine
    size: int
    loop: str


@dataclass(frozen=True)
class Fetch:
    """A packed source that is prefetched while others of its fragments are in use.

    Attributes:
        tiles: number of loops that lead from one piece of it to another; see
            :class:`amos.plan.cpu_fetches.FetchBlocks`.
        elements: elements that one step of the reduction fetches.
    """

    op: StagedOperand
    tiles: int
    elements: int


@dataclass(frozen=True)
class CpuPlan(Plan):
    """A kernel of one mapping under one schedule on CPUs of certain limits.

    Equal plans have equal code, whatever machine it is generated on. Its numbers are those of
    :class:`amos.plan.cpu_blocks.CpuBlocks`.

    Attributes:
        limits: of the CPU.
        implementation: ``"native"``, ``"generic"`` or ``"c"``; see
            :mod:`amos.codegen.tir.tensor_intrin`.
    """

    schedule: CpuSchedule
    limits: CpuLimits
    implementation: str = "native"

    def __post_init__(self) -> None:
        # Loops that emulate the instruction read any address.
        native = self.implementation != "generic"
        for statement in self.mapping.intrinsic.memory if native else ():
            if statement.alignment == 1:
                continue
            (op,) = (x for x in (*self.sources, self.destination) if x.name == statement.operand)
            aligned = dtype(op.kind).bits // 8 if op.in_place else _ALIGNED
            if statement.alignment > aligned:
                where = "in place" if op.in_place else "in a copy"
                raise BuildError(
                    f"{self.mapping.name}: {op.name} is read {where}, at multiples of {aligned} "
                    f"bytes; {self.mapping.intrinsic.name} asks for {statement.alignment}"
                )

    @cached_property
    def counts(self) -> CpuBlocks:
        """All numbers of the plan, as a batch of one."""
        batch = self.schedule.batch(self.structure)
        return CpuBlocks(self.structure, self.limits, batch, self.implementation)

    @property
    def tiled(self) -> bool:
        """Whether accumulators live in registers that the generator numbers itself."""
        return self.counts.tiled

    @property
    def partial(self) -> int:
        """Parts of each sum that the implementation keeps in its lanes."""
        return self.counts.partial

    @cached_property
    def padded(self) -> dict[str, int]:
        """New extent of each spatial loop that its tiles and blocks do not divide."""
        longer = zip(self.structure.spatial, self.counts.loops.extents[:, 0], strict=False)
        return {x.name: int(extent) for x, extent in longer if extent > x.extent}

    @cached_property
    def split(self) -> SplitReduction | None:
        """How the outermost reduction is divided; ``None`` if it is whole."""
        return split_reduction(self.nest, self.schedule)

    @cached_property
    def reduce(self) -> dict[str, int]:
        """Steps of each reduction loop, outermost first; of one part if it is divided."""
        number = {loop.name: n for n, loop in enumerate(self.structure.reduce)}
        steps = self.counts.loops.extents[len(self.structure.spatial) :, 0]
        return {loop.name: int(steps[number[loop.name]]) for loop in self.reduce_loops}

    @property
    def unrolled(self) -> int:
        """Steps of the innermost reduction that are one in the code."""
        return int(self.counts.unrolled[0])

    @cached_property
    def tile(self) -> dict[str, int]:
        """Steps of each loop in the register tile, longest first, which stands outside.

        Fragments along the innermost one stay in registers for all steps of the others, so that few
        fragments of sources are live beside the accumulators.
        """
        longest = sorted(self._along(self.counts.tile).items(), key=lambda pair: -pair[1])
        return _several(dict(longest))

    @cached_property
    def blocks(self) -> dict[str, int]:
        """Consecutive register tiles of each loop inside the outer loops."""
        return _several(self._along(self.counts.block))

    @cached_property
    def outer(self) -> dict[str, int]:
        """Steps of each loop around blocks and reduction, outermost first."""
        parts = {PART: self.split.count} if self.split is not None else {}
        return parts | _several(self._along(self.counts.outer))

    @cached_property
    def fused(self) -> dict[str, int]:
        """The outermost of these, which are fused and divided among the cores."""
        count = max(1, self.schedule.parallel + (self.split is not None))
        return dict(list(self.outer.items())[:count])

    @property
    def steps(self) -> int:
        """Fused steps."""
        return int(self.counts.loops.steps[0])

    @property
    def ranges(self) -> int:
        """Ranges of equally many consecutive steps, each of which one core runs at a time."""
        return int(self.counts.ranges[0])

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Loops that end in register tiles with code of their own."""
        if not self.counts.cuts_tiles[0]:
            return ()
        tiles = self._along(self.counts.tile)
        run, steps = self._along(self.counts.run_tiles), self._along(self.counts.run_steps)
        return tuple(
            Edge(
                loop=name,
                tile=tiles[name],
                extent=steps[name],
                cut=steps[name] % tiles[name],
                beyond=extent > run[name] * tiles[name],
            )
            for name, extent in self.padded.items()
        )

    @cached_property
    def skips(self) -> tuple[Skip, ...]:
        """Steps of the reduction that are skipped."""
        borders = zip(self.structure.borders, self.counts.skips[:, 0], strict=True)
        loops = self.reduce_loops
        return tuple(Skip(x.index, x.size, loops[at].name) for x, at in borders if at >= 0)

    @cached_property
    def fetch(self) -> Fetch | None:
        """The packed source that is prefetched; ``None`` if none is."""
        fetches = self.counts.fetches
        if fetches.source[0] < 0:
            return None
        return Fetch(
            op=self.sources[int(fetches.source[0])],
            tiles=int(fetches.tiles[0]),
            elements=int(fetches.elements[0]),
        )

    @cached_property
    def fetched_residuals(self) -> frozenset[str]:
        """Tensors of an epilogue whose elements are prefetched before a register tile runs.

        They are larger than a core's own cache.
        """
        tensors = (load.tensor for load in self.mapping.operator.epilogue_loads)
        return frozenset(
            x.name for x in tensors if x.elements * dtype(str(x.dtype)).bits > 8 * self.limits.cache
        )

    @cached_property
    def sources(self) -> tuple[StagedOperand, ...]:
        """Staged sources for the padded loops, in the intrinsic's order."""
        sources = tuple(map(self._arrange, self.counts.forms.sources))
        if not self.tiled:
            return sources
        first, second = sources
        return first, group_columns(second)

    def _arrange(self, source: SourceForm) -> StagedOperand:
        op = source.staged
        if source.optional and not self.counts.copies[op.name].is_made[0]:
            return replace(op, copied=False)
        if op.in_place:
            return op
        op = pad_operand(op, self.padded)
        return order_for_reading(op, self.schedule) if op.constant else op

    @property
    def destination(self) -> StagedOperand:
        """The staged destination, unpadded."""
        return self.counts.forms.destination

    def form(self, op: StagedOperand) -> Form:
        """Return how a source reaches the calls."""
        if op.in_place:
            return "in place"
        if op.constant:
            return "packed"
        return "strided" if isinstance(op, StridedOperand) else "gathered"

    @property
    def output_width(self) -> int:
        """Elements that one step of moving accumulators to the output writes."""
        return int(self.counts.output_width[0])

    @cached_property
    def copies(self) -> dict[str, SourceCopy]:
        """The copies within the kernel, by the intrinsic's name of the source."""
        forms = {op.name: op for op in self.sources}
        copies = self.counts.copies.items()
        return {name: _source_copy(copy, forms[name]) for name, copy in copies if copy.is_made[0]}

    @property
    def accumulators(self) -> int:
        """Fragments of the destination that a register tile holds."""
        return int(self.counts.accumulators[0])

    @property
    def resident_source(self) -> int:
        """Number of the source whose fragments stay in registers for a whole step."""
        return int(self.counts.resident_source[0])

    @property
    def registers(self) -> int:
        """Fragments that one step of the reduction holds in registers."""
        return int(self.counts.registers[0])

    def __str__(self) -> str:
        return "\n".join(describe_plan(self))


def _several(counts: MappingType[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count > 1}


def _source_copy(copy: CopyBlocks, op: StagedOperand) -> SourceCopy:
    """Describe the copy of a source under the first schedule of a batch."""
    spread, vectors = int(copy.spread[0]), copy.vectors(0)
    return SourceCopy(
        place=PLACES[int(copy.place[0])],
        extents=tuple(map(int, copy.extents[:, 0])),
        tail=int(copy.tail[0]),
        width=int(copy.width[0]),
        vectors=None if vectors is None else replace(vectors, op=op),
        shared=int(copy.shared[0]),
        spread=None if spread < 0 else spread,
        line=copy.line,
    )
