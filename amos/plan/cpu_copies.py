"""Copies of gathered sources in kernels for CPUs: arrays with one column a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from amos.plan.cpu_forms import SourceForm
from amos.plan.staging_vectors import VectorCopy
from amos.plan.strided import StridedOperand

if TYPE_CHECKING:
    from amos.plan.cpu_blocks import CpuBlocks

#: Place of a copy: before the nest, in each range of parallel steps, in each step.
Place = Literal["ahead", "range", "step"]
#: The places in the order of their numbers in :attr:`CopyBlocks.place`.
PLACES: tuple[Place, ...] = ("ahead", "range", "step")
#: Bytes of a cache line, and between steps of a copy that share an eighth of a cache's sets.
LINE_BYTES, _CROWDED_BYTES = 64, 512
#: Tasks for each core that balance a copy among the cores.
_TASKS_PER_CORE = 4


def divide_width(width: np.ndarray, extent: np.ndarray) -> np.ndarray:
    """Return the elements of one step of a copy: ``width``, halved until it divides the extent.

    >>> divide_width(np.array([64, 16]), np.array([96, 96])).tolist()
    [32, 16]
    """
    width = np.array(width)
    while (uneven := (width > 1) & (extent % width > 0)).any():
        width[uneven] //= 2
    return width


@dataclass(frozen=True, eq=False)
class CopyBlocks:
    """The copies of one gathered source under each schedule of a batch.

    Attributes:
        scheduled_ahead: bool, schedules: staged before the nest if the schedule is followed.
        is_made: bool, schedules: false where the source is read in place instead.
    """

    blocks: CpuBlocks
    source: SourceForm
    scheduled_ahead: np.ndarray
    is_made: np.ndarray

    @cached_property
    def ahead(self) -> np.ndarray:
        """Whether a copy is made before the nest, or there is no loop to place it in."""
        return np.asarray(self.scheduled_ahead | ~self.blocks.has_outer_loops)

    @cached_property
    def share(self) -> np.ndarray:
        """Fused steps that one copy inside the nest serves.

        It is made once for a range if that takes no more than half of a core's own cache, and in
        each step otherwise. So no core waits for another, or reads lines that another has just
        written.
        """
        blocks = self.blocks
        extents = blocks.loops.box_extents(self.source.dims, blocks.share)
        needed_bytes = np.prod(extents, axis=0, dtype=float) * self.source.size_bits / 8
        return np.where(needed_bytes <= blocks.limits.cache // 2, blocks.share, 1)

    @cached_property
    def place(self) -> np.ndarray:
        """Number of the place in :data:`PLACES`: schedules."""
        return np.where(self.ahead, 0, np.where(self.share > 1, 1, 2))

    @cached_property
    def extents(self) -> np.ndarray:
        """Extents of one copy: dimensions × schedules."""
        loops, dims = self.blocks.loops, self.source.dims
        whole, local = loops.whole(dims), loops.box_extents(dims, self.share)
        return np.where(self.ahead, np.stack(whole), np.stack(local))

    @cached_property
    def elements(self) -> np.ndarray:
        """Elements of one copy: schedules."""
        return np.asarray(self.extents.prod(axis=0, dtype=float))

    @property
    def strided(self) -> bool:
        """Whether whole rows of the tensor are copied, each in pieces."""
        return isinstance(self.source.staged, StridedOperand)

    @property
    def line(self) -> int:
        """Elements of a cache line."""
        return LINE_BYTES * 8 // self.source.size_bits

    @cached_property
    def in_vectors(self) -> np.ndarray:
        """Whether fragments are copied in whole vectors and permuted: bool, schedules.

        They are where a copy covers all positions of a vector.
        """
        chosen, in_vectors = self._vectors, np.zeros(len(self.place), dtype=bool)
        if not self.blocks.copies_vectors.any():
            return in_vectors
        runs_whole = self.ahead | self.blocks.loops.runs_whole(self.share)
        for number, form in enumerate(chosen.forms):
            if form is not None:
                count = len(self.source.dims)
                dims = [*form.written_out, *range(count - form.unit, count)]
                loops = [loop for d in dims for loop, _ in self.source.dims[d].terms]
                in_vectors |= (chosen.number == number) & runs_whole[loops].all(axis=0)
        return in_vectors

    @cached_property
    def element_tail(self) -> np.ndarray:
        """Innermost loops that one step spans of a copy by elements, with one loop around them."""
        if self.strided:
            return np.zeros_like(self.place)
        local = (self.extents > 1).sum(axis=0)
        loops = np.where(self.ahead, len(self.source.dims) - 1, local)
        return np.minimum(self._loops_of_a_step, loops)

    @cached_property
    def element_tail_elements(self) -> np.ndarray:
        """Elements of those loops: schedules."""
        elements, missing = np.ones_like(self.place), self.element_tail.copy()
        for extent in self.extents[::-1]:
            counts = (missing > 0) & (self.ahead | (extent > 1))
            elements *= np.where(counts, extent, 1)
            missing -= counts
        return elements

    @cached_property
    def element_width(self) -> np.ndarray:
        """Elements that one step of a copy by elements, or of a row, moves: schedules."""
        widest = self.blocks.copy_width
        return widest if self.strided else divide_width(widest, self.element_tail_elements)

    @cached_property
    def tail(self) -> np.ndarray:
        """Innermost loops that one step spans; 0 if rows or vectors are copied whole."""
        return np.where(self.in_vectors, 0, self.element_tail)

    @cached_property
    def width(self) -> np.ndarray:
        """Elements that one step moves at most: schedules."""
        return np.where(self.in_vectors, self._vector_elements, self.element_width)

    @cached_property
    def vector_instructions(self) -> np.ndarray:
        """Instructions for an element of a copy in vectors, on average; 0 for others."""
        forms = self._vectors.forms
        instructions = np.array([0.0 if x is None else x.instructions for x in forms])
        return np.asarray(instructions[self._vectors.number])

    @cached_property
    def shared(self) -> np.ndarray:
        """Outermost loops of a copy that are divided among the cores; 0 inside the nest."""
        dims = len(self.source.dims)
        loops = max(0, dims - self._loops_of_a_step)
        if not self.strided and not self.in_vectors.any():
            return np.where(self.ahead, loops, 0)
        whole = np.full_like(self.place, dims - 1)
        if not self.strided:
            forms = self._vectors.forms
            whole = np.array([loops if x is None else min([dims - x.unit, *x.written_out])
                              for x in forms])[self._vectors.number]  # fmt: skip
        # As few loops as keep the cores evenly busy: fused positions are divided again in every
        # step.
        tasks = np.cumprod(np.vstack([np.ones_like(whole), self.extents[:-1]]), axis=0)
        outermost = np.arange(dims)[:, None] < whole
        few = (outermost & (tasks < _TASKS_PER_CORE * self.blocks.limits.cores)).sum(axis=0)
        return np.where(self.ahead, np.where(self.tail > 0, loops, few), 0)

    @cached_property
    def shared_steps(self) -> np.ndarray:
        """Steps of the divided loops: schedules."""
        outermost = np.arange(len(self.source.dims))[:, None] < self.shared
        return np.asarray(self.extents.prod(axis=0, where=outermost))

    @cached_property
    def spread(self) -> np.ndarray:
        """The dimension whose steps get a cache line of padding between them; or -1.

        Otherwise they would map to few sets of the nearest cache. A register tile reads all of
        them, and few of their lines would remain cached.
        """
        spread, elements = np.full_like(self.place, -1), np.ones_like(self.place)
        decided = self.tail == 0
        # Fragments stay whole.
        first = len(self.source.dims) - max(len(self.source.staged.fragment), 1)
        for d in range(len(self.source.dims) - 1, -1, -1):
            size_bytes = elements * self.source.size_bits // 8
            large = ~decided & (size_bytes >= _CROWDED_BYTES) & (d < first)
            spread[large & (size_bytes % _CROWDED_BYTES == 0)] = d
            decided = decided | large
            elements = elements * self.extents[d]
        return spread

    @property
    def spread_bytes(self) -> np.ndarray:
        """Bytes of the lines between steps of that dimension: schedules."""
        outer = np.arange(len(self.source.dims))[:, None] <= self.spread
        return np.where(self.spread < 0, 0, LINE_BYTES * self.extents.prod(axis=0, where=outer))

    def vectors(self, column: int) -> VectorCopy | None:
        """Return how fragments of one schedule are copied in vectors; ``None`` if they are not."""
        form = self._vectors.forms[int(self._vectors.number[column])]
        return form if self.in_vectors[column] else None

    @property
    def _loops_of_a_step(self) -> int:
        # Generic code needs LLVM's loop vectorizer, which must see no fused lanes
        # (amos.codegen.tir.target).
        native = self.blocks.implementation == "native"
        return len(self.source.staged.fragment) + 1 if native else 1

    @property
    def _vector_elements(self) -> np.ndarray:
        elements = np.array([0 if v is None else v.elements for v in self._vectors.forms])
        return np.asarray(elements[self._vectors.number])

    @cached_property
    def _vectors(self) -> _Vectors:
        blocks, tiles = self.blocks, list(self.source.tiles)
        if not blocks.copies_vectors.any():
            return _Vectors((None,), np.zeros(len(blocks), dtype=np.intp))
        grown = blocks.loops.grown[tiles]
        if not grown.any():
            return _Vectors((None, self.source.vector_copy(())), 1 * blocks.copies_vectors)
        # Tiles of a padded loop may be longer vectors.
        code = np.zeros(len(blocks), dtype=np.int64)
        for steps in grown:
            code = code * (int(steps.max()) + 1) + steps
        code[~blocks.copies_vectors] = -1
        codes, first, number = np.unique(code, return_index=True, return_inverse=True)
        loops = [blocks.structure.spatial[tile] for tile in tiles]
        forms: list[VectorCopy | None] = []
        for value, column in zip(codes, first, strict=True):
            added = [(x, int(n)) for x, n in zip(loops, grown[:, column], strict=True) if n]
            longer = tuple((loop.name, loop.extent + steps) for loop, steps in added)
            forms.append(None if value < 0 else self.source.vector_copy(longer))
        return _Vectors(tuple(forms), number)


@dataclass(frozen=True)
class _Vectors:
    """How vectors are copied: the different ones of a batch, and the number of each column's."""

    forms: tuple[VectorCopy | None, ...]
    number: np.ndarray
