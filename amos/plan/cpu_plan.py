"""The plan of a CPU kernel: what mapping, schedule and machine decide, as named numbers."""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np

from amos.errors import BuildError
from amos.intrinsics import Intrinsic, implementations
from amos.ir import dtype
from amos.machine.limits import CpuLimits
from amos.plan.nest import Loop
from amos.plan.packing import grouped, in_reading_order, pad_operand
from amos.plan.schedule import CpuSchedule, Plan
from amos.plan.shared_loops import SharedLoops, even_ranges
from amos.plan.split_reduction import PART, SplitReduction, split_reduction
from amos.plan.staging import StagedOperand, staged_destination, staged_sources
from amos.plan.staging_vectors import VectorCopy, vector_copy
from amos.plan.strided import StridedOperand, destination_form, source_forms

#: How a source reaches the calls.
Form = Literal["in place", "packed", "strided", "gathered"]
#: Where a copy stands: before the nest, in each range of shared steps, in each of them.
Place = Literal["ahead", "range", "step"]
#: Bytes that what TVM allocates begins at multiples of (``kAllocAlignment``).
_ALIGNED = 64
#: Bytes of a cache line, and between steps of a copy that share an eighth of a cache's sets.
_LINE, _CROWDED = 64, 512
#: Tasks for each core that keep the cores evenly busy with a copy.
_SHARES = 4


def partial_sums(intrinsic: Intrinsic, kind: str = "native") -> int:
    """Parts of each sum that an implementation keeps apart, to be added up in the end.

    Args:
        kind: ``"native"``, ``"generic"`` or ``"c"``.
    """
    source = implementations(intrinsic.name).get("llvm")
    return source.partial if source is not None and kind == "native" else 1


def dividing_width(width: int, extent: int) -> int:
    """Elements of one step of a copy: ``width``, halved until it divides the extent."""
    while width > 1 and extent % width:
        width //= 2
    return width


def live_fragments(accumulators: Any, sources: Sequence[Any]) -> Any:
    """Fragments that one step of the reduction holds in registers.

    Those of the source that changes least stay, those of another take turns.

    Args:
        accumulators: how many there are: an integer, or an array of them.
        sources: fragments of each source in one step.
    """
    least = np.min(sources, axis=0) if len(sources) else 0
    return accumulators + least + (len(sources) > 1)


@dataclass(frozen=True)
class SourceCopy:
    """The copy of a source within the kernel.

    Attributes:
        place: where it stands.
        extents: of what it covers each time, along the dimensions of the staged form.
        tail: how many of its loops one step of it spans; 0 if each row is written in pieces
            or each vector is permuted.
        width: elements that one step moves at most.
        vectors: how fragments are copied in whole vectors; ``None`` if elements are found
            one by one.
        shared: how many of its loops are shared out to the cores; 0 inside of the nest.
        spread: the dimension whose steps lie a cache line further apart than what they hold;
            ``None`` if each begins where the one before ends.
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
class CpuPlan(Plan):
    """A kernel of one mapping under one schedule on CPUs of certain limits.

    Equal plans have equal code, whatever machine it is generated on.

    Attributes:
        limits: of the CPU.
        implementation: ``"native"``, ``"generic"`` or ``"c"``; see
            :mod:`amos.codegen.tir.tensor_intrin`.
    """

    schedule: CpuSchedule
    limits: CpuLimits
    implementation: str = "native"

    def __post_init__(self) -> None:
        # Loops that stand for the instruction read any address.
        for said in self.mapping.intrinsic.memory if self.implementation != "generic" else ():
            if said.alignment == 1:
                continue
            (op,) = (x for x in (*self.sources, self.destination) if x.name == said.operand)
            aligned = dtype(op.kind).bits // 8 if op.in_place else _ALIGNED
            if said.alignment > aligned:
                where = "in place" if op.in_place else "in a copy"
                raise BuildError(
                    f"{self.mapping.name}: {op.name} is read {where}, at multiples of {aligned} "
                    f"bytes; {self.mapping.intrinsic.name} asks for {said.alignment}"
                )

    @property
    def tiled(self) -> bool:
        """Whether accumulators live in registers that the generator numbers itself."""
        return self.implementation == "native" and self.mapping.intrinsic.tile_registers

    @property
    def partial(self) -> int:
        """Parts of each sum that the implementation keeps in its lanes."""
        return partial_sums(self.mapping.intrinsic, self.implementation)

    @cached_property
    def padded(self) -> dict[str, int]:
        """New extent of each spatial loop that its tiles and blocks do not divide."""
        return self.schedule.padded(self.nest)

    @cached_property
    def order(self) -> tuple[Loop, ...]:
        """Spatial loops with more than one step, outermost first, padded."""
        return tuple(Loop(x.name, self.padded.get(x.name, x.extent), x.kind) for x in self.spatial)

    @cached_property
    def split(self) -> SplitReduction | None:
        """How the outermost reduction is divided; ``None`` if it is whole."""
        return split_reduction(self.nest, self.schedule)

    @cached_property
    def reduce(self) -> dict[str, int]:
        """Steps of each reduction loop, outermost first; of one part if it is divided."""
        steps = {x.name: x.extent for x in self.reduce_loops}
        return steps if self.split is None else steps | {self.split.loop: self.split.steps}

    @cached_property
    def unrolled(self) -> int:
        """Steps of the innermost reduction that are one in the code."""
        if self.split is not None and len(self.reduce) == 1:
            return self.split.unrolled
        last = next(reversed(self.reduce.values()), 1)
        return 1 if last % self.schedule.unroll else self.schedule.unroll

    @cached_property
    def tile(self) -> dict[str, int]:
        """Steps of each loop in the register tile, longest first, which stands outside.

        What the innermost one indexes is held in registers for all steps of the others,
        so that few fragments of sources live beside the accumulators.
        """
        tiles = {x.name: self.schedule.tile[x.name] for x in self.order}
        longest = sorted(tiles.items(), key=lambda pair: -pair[1])
        return {name: steps for name, steps in longest if steps > 1}

    @cached_property
    def blocks(self) -> dict[str, int]:
        """Register tiles of each loop that follow one another inside the outer loops."""
        blocks = {x.name: self.schedule.block[x.name] for x in self.order}
        return {name: count for name, count in blocks.items() if count > 1}

    @cached_property
    def outer(self) -> dict[str, int]:
        """Steps of each loop around blocks and reduction, outermost first."""
        steps = {PART: self.split.count} if self.split is not None else {}
        for loop in self.order:
            count = loop.extent // self.tile.get(loop.name, 1) // self.blocks.get(loop.name, 1)
            if count > 1:
                steps[loop.name] = count
        return steps

    @cached_property
    def fused(self) -> dict[str, int]:
        """The outermost of these, which are fused and shared out to the cores."""
        count = max(1, self.schedule.parallel + (self.split is not None))
        return dict(list(self.outer.items())[:count])

    @property
    def steps(self) -> int:
        """Fused steps."""
        return int(self._shared.steps[0])

    @property
    def ranges(self) -> int:
        """Ranges of equally many consecutive steps, each of which one core runs at a time.

        TVM allocates the buffers of a parallel loop's body anew in every step, which
        costs as much as a small tile does. So only as many run in parallel as keep the
        cores evenly busy.
        """
        return even_ranges(self.steps, self.limits.cores)

    @cached_property
    def sources(self) -> tuple[StagedOperand, ...]:
        """Staged sources for the padded loops, in the intrinsic's order."""
        forms = source_forms(self.nest) if self.tiled else staged_sources(self.nest)
        sources = tuple(op if op.in_place else self._arranged(op) for op in forms)
        if not self.tiled:
            return sources
        first, second = sources
        return first, grouped(second)

    def _arranged(self, op: StagedOperand) -> StagedOperand:
        op = pad_operand(op, self.padded)
        return in_reading_order(op, self.schedule) if op.constant else op

    @cached_property
    def destination(self) -> StagedOperand:
        """The staged destination, unpadded."""
        return (destination_form if self.tiled else staged_destination)(self.nest)

    def form(self, op: StagedOperand) -> Form:
        """How a source reaches the calls."""
        if op.in_place:
            return "in place"
        if op.constant:
            return "packed"
        return "strided" if isinstance(op, StridedOperand) else "gathered"

    @property
    def fetched_ahead(self) -> StagedOperand | None:
        """The packed source that a core's own cache cannot keep from one call to the next.

        None where registers are nearly all taken: around fetches LLVM would spill some.
        """
        packed = (op for op in self.sources if self.form(op) == "packed")
        large = (
            op for op in packed if prod(op.shape) * dtype(op.kind).bits > 8 * self.limits.cache
        )
        room = self.mapping.intrinsic.registers
        full = room and self.registers > room - len(self.sources)
        return None if self.tiled or full else next(large, None)

    @property
    def copy_width(self) -> int:
        """Elements that one step of a copy moves at most."""
        return self.schedule.copy_width

    @cached_property
    def copies(self) -> dict[str, SourceCopy]:
        """The copies within the kernel, by the intrinsic's name of the source."""
        return {
            op.name: self._copy(op)
            for op in self.sources
            if self.form(op) in ("strided", "gathered")
        }

    def _copy(self, op: StagedOperand) -> SourceCopy:
        """Where and how a source is copied."""
        place, extents = self._place(op)
        loops = [n for n in extents if n > 1] if place != "ahead" else list(extents)
        vectors = vector_copy(op) if self.schedule.copy == "vectors" else None
        if vectors is not None:
            shared = min([len(op.dims) - vectors.unit, *vectors.written_out])
            tail, width = 0, vectors.elements
        elif isinstance(op, StridedOperand):
            shared, tail = len(op.dims) - 1, 0
            width = self.copy_width
        else:
            # Generic code needs LLVM's loop vectorizer, which must see no fused lanes
            # (amos.codegen.tir.target).
            tail = len(op.fragment) + 1 if self.implementation == "native" else 1
            shared = max(0, len(loops) - tail)
            # Some loop around is left.
            tail = min(tail, len(loops) - (place == "ahead"))
            width = dividing_width(self.copy_width, prod(loops[len(loops) - tail :]))
        spread = self._spread(op, extents) if tail else None
        line = _LINE * 8 // dtype(op.kind).bits
        if place != "ahead":
            return SourceCopy(place, extents, tail, width, vectors, 0, spread, line)
        if not tail:
            # As few loops as keep the cores evenly busy: they have to be taken apart again.
            counts = np.cumprod([1, *extents[:shared]])
            shared = int((counts[:-1] < _SHARES * self.limits.cores).sum())
        return SourceCopy(place, extents, tail, width, vectors, shared, spread, line)

    def _spread(self, op: StagedOperand, extents: tuple[int, ...]) -> int | None:
        """The dimension of a copy whose steps would fall into few sets of the nearest cache.

        A register tile reads one after the other, and few of their lines would stay.
        """
        # Fragments stay whole.
        first = len(extents) - max(len(op.fragment), 1)
        for d in range(first - 1, -1, -1):
            size = prod(extents[d + 1 :]) * dtype(op.kind).bits // 8
            if size >= _CROWDED:
                return d if size % _CROWDED == 0 else None
        return None

    def _place(self, op: StagedOperand) -> tuple[Place, tuple[int, ...]]:
        """Where a copy stands, and the extents of what it covers."""
        if self.schedule.stage[op.name] == "whole" or not self.outer:
            return "ahead", op.shape
        dims = self.structure.dimensions(op)
        share = int(self._shared.copied_together(dims, dtype(op.kind).bits / 8, self.limits)[0])
        return "range" if share > 1 else "step", self.covered(op, share)

    def covered(self, op: StagedOperand, share: int) -> tuple[int, ...]:
        """Extents of what a copy covers that stands in so many consecutive steps."""
        box = self._shared.covered(self.structure.dimensions(op), np.array([share]))
        return tuple(int(extent[0]) for extent in box)

    @cached_property
    def _shared(self) -> SharedLoops:
        batch = self.schedule.batch(self.structure)
        loops = SharedLoops.of(self.structure, batch, None if self.split is None else batch.split)
        # Sources have been made longer already.
        return replace(loops, grown=np.zeros_like(loops.grown))

    @property
    def accumulators(self) -> int:
        """Fragments of the destination that a register tile holds."""
        return prod(self.tile.values())

    @property
    def registers(self) -> int:
        """Fragments that one step of the reduction holds in registers."""
        sources = [self._fragments(op) for op in self.sources]
        return int(live_fragments(self.accumulators, sources))

    def _fragments(self, op: StagedOperand) -> int:
        """Distinct fragments of a source in one step of the reduction."""
        return prod(steps for name, steps in self.tile.items() if name in op.names)

    def __str__(self) -> str:
        return "\n".join(described(self))


def described(plan: CpuPlan) -> list[str]:
    """A plan in words: who runs what, the loops from the outermost in, and the operands."""
    limits, each = plan.limits, plan.steps // plan.ranges
    lines = [
        f"{plan.mapping.title} ({plan.implementation})",
        f"  machine   {limits.cores} cores, {limits.cache >> 10} KiB of cache for each alone",
    ]
    if plan.padded:
        loops = {x.name: x.extent for x in plan.nest.spatial}
        longer = (f"{name} {loops[name]} -> {extent}" for name, extent in plan.padded.items())
        lines.append(f"  padded    {', '.join(longer)}")
    if plan.fused:
        lines.append(
            f"  shared    {_loops(plan.fused)}: {plan.steps} steps in {plan.ranges} ranges of "
            f"{each}, at most {-(-plan.ranges // limits.cores)} ranges for a core"
        )
    inside = {name: n for name, n in plan.outer.items() if name not in plan.fused}
    rows = {"outer": inside, "blocks": plan.blocks, "reduction": plan.reduce, "tile": plan.tile}
    lines += [f"  {kind:9} {_loops(loops)}" for kind, loops in rows.items() if loops]
    room = plan.mapping.intrinsic.registers
    lines.append(
        f"  calls     {plan.unrolled} steps of the reduction unrolled, {plan.accumulators} "
        f"accumulators, {plan.registers} of {room or 'unlimited'} registers"
    )
    lines += [f"  {op.name:9} {_operand(plan, op)}" for op in plan.sources]
    stored = "in place" if plan.destination.in_place else "copied to the output at the end"
    operator = plan.mapping.operator
    if operator.store is not None:
        stored = f"stored to {operator.store}"
    lines.append(f"  {plan.destination.name:9} {operator.result.name}: {stored}")
    return lines


def _loops(loops: MappingType[str, int]) -> str:
    return " x ".join(f"{name} {steps}" for name, steps in loops.items())


def _operand(plan: CpuPlan, op: StagedOperand) -> str:
    """Form of a source, and where and how it is copied."""
    said = f"{op.load.tensor.name}: {plan.form(op)}"
    if op.prologue is not None:
        said += f" from {', '.join(tensor.name for tensor in op.prologue.tensors)}"
    if (copy := plan.copies.get(op.name)) is None:
        return said
    where = {"ahead": "ahead of the nest", "range": "once a range", "step": "in each step"}
    how = "elements at a time" if copy.vectors is None else "elements a vector, permuted"
    size = " x ".join(map(str, copy.extents))
    return f"{said}, copied {where[copy.place]}, {size} elements, {copy.width} {how}"
