"""Thread blocks: how many there are, what each stages, and how many fit a multiprocessor."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from amos.machine.gpu_costs import (
    ASYNC,
    ASYNC_BYTES,
    HELD_COPIES,
    RESERVED,
    THREAD_REGISTERS,
    WARP,
    resident,
)
from amos.machine.machine import Machine
from amos.plan.gpu_registers import blocks_by_registers, fragment_registers, thread_registers
from amos.plan.structure import LoopBatch, Structure

__all__ = ["Blocks", "runs_warps"]


def runs_warps(structure: Structure, machine: Machine) -> bool:
    """Whether warps of a CUDA machine run the intrinsic, on data in shared memory."""
    if not machine.architecture or len(machine.levels) < 2 or not machine.levels[0].scratchpad:
        return False
    memory = structure.mapping.intrinsic.memory
    shared = any(m.scope == machine.levels[0].name for m in memory)
    return shared and bool(structure.tiles)


class Blocks:
    """The thread blocks of each schedule; arrays with one column a schedule.

    Mirrors :class:`amos.codegen.cuda.program.BlockProgram`.

    Attributes:
        tile: spatial loops × schedules: fragments of a warp along each loop.
        warps: of one block.
        grid: blocks of the launch, the parts of a split reduction included.
        padded: spatial loops × schedules: by what share each loop became longer.
        staged: steps of the reduction that are staged together.
        share: stages of one block.
        parts: blocks that add up one result.
        depth: stages of shared memory in flight.
        vectors, paddings: of each source, bytes and elements.
    """

    def __init__(self, structure: Structure, machine: Machine, batch: LoopBatch) -> None:
        self.structure, self.machine = structure, machine
        self.architecture = machine.architecture
        rows, spatial = len(batch), len(structure.spatial)
        one = np.ones(rows)
        extents = structure.extents.astype(float)[:, None]
        self.tile = batch.tile.T.astype(float)
        warps = np.ones_like(self.tile) if batch.warps is None else batch.warps.T.astype(float)
        self.span = self.tile * warps
        blocks = np.ceil(extents[:spatial] / self.span)
        self.warps = warps.prod(axis=0)
        self.padded = blocks * self.span / extents[:spatial]
        steps = float(extents[spatial:].prod())
        self.staged = np.minimum(batch.unroll, steps)
        sequence = np.ceil(steps / self.staged)
        split = one if batch.split is None else batch.split
        self.share = np.ceil(sequence / split)
        self.parts = np.ceil(sequence / self.share)
        self.depth = one if batch.stages is None else np.minimum(batch.stages, self.share)
        self.grid = blocks.prod(axis=0) * self.parts
        self.vector = np.full(rows, 16) if batch.vector is None else np.minimum(batch.vector, 16)
        sources = len(structure.sources)
        whole = np.zeros((sources, rows), dtype=np.int64)
        self.padding = whole if batch.padding is None else batch.padding.T
        numbers = {loop.name: n for n, loop in enumerate(structure.spatial)}
        reduce = {loop.name for loop in structure.reduce}
        self.loops = [[numbers[n] for n in t.indexed if n in numbers] for t in structure.tiles]
        self.reduced = [bool(t.indexed & reduce) for t in structure.tiles]

    @property
    def threads(self) -> np.ndarray:
        """Threads of a block."""
        return np.asarray(self.warps * WARP)

    def own(self, operand: int) -> np.ndarray:
        """Fragments of an operand that a warp needs in one step."""
        return np.asarray(self.tile[self.loops[operand]].prod(axis=0))

    def fragments(self, operand: int) -> np.ndarray:
        """Fragments of a source that a block stages together."""
        count = self.span[self.loops[operand]].prod(axis=0)
        return np.asarray(count * self.staged if self.reduced[operand] else count)

    @cached_property
    def copies(self) -> list[np.ndarray]:
        """Of each source, copies of a thread that fill a stage."""
        found = []
        for number, tile in enumerate(self.structure.tiles[:-1]):
            pieces = self.fragments(number) * tile.elements * tile.size / self.pieces[number]
            found.append(np.ceil(pieces / self.threads))
        return found

    @cached_property
    def pieces(self) -> list[np.ndarray]:
        """Of each source, bytes that one copy moves."""
        widths, where = np.unique(self.vector, return_inverse=True)
        return [
            np.array([tile.vector(int(w)) for w in widths])[where]
            for tile in self.structure.tiles[:-1]
        ]

    @cached_property
    def outstanding(self) -> np.ndarray:
        """Stages whose copies are on their way while one is multiplied; 0 if it waits for them.

        ``cp.async`` fills all other stages. Before sm_80, and for narrower pieces, a few
        copies wait in registers for the multiplication of one stage; more do not fit there.
        """
        ahead = self.depth - 1
        for count, piece in zip(self.copies, self.pieces, strict=True):
            held = np.where(count <= HELD_COPIES, 1.0, 0.0)
            wide = (piece >= ASYNC_BYTES) & (self.architecture >= ASYNC)
            ahead = np.minimum(ahead, np.where(wide, self.depth - 1, held))
        return np.asarray(ahead)

    @property
    def rolled(self) -> list[np.ndarray]:
        """Of each source, whether its copies are too many to be unrolled."""
        return [count > HELD_COPIES for count in self.copies]

    @cached_property
    def shared(self) -> np.ndarray:
        """Bytes of shared memory of a block; what leaves through it takes the same place."""
        *sources, result = self.structure.tiles
        stage = np.zeros(len(self.warps))
        for number, tile in enumerate(sources):
            row = np.array([tile.row(0)]) + (
                np.maximum(self.padding[number], 0) * tile.size
            ).astype(int)
            stage += self.fragments(number) * tile.rows.lanes * row
        leaving = self.warps * result.elements * result.size if result.hidden else 0.0
        return np.maximum(stage * self.depth, leaving)

    @property
    def capacity(self) -> int:
        """Bytes of shared memory that one block may have."""
        return self.machine.levels[0].capacity - self._reserved

    @property
    def _reserved(self) -> int:
        return RESERVED if self.architecture >= ASYNC else 0

    @cached_property
    def registers(self) -> np.ndarray:
        """Registers of a thread, as the schedule space counts them."""
        counts = [self.own(n) for n in range(len(self.structure.tiles))]
        return thread_registers(self.structure.mapping.intrinsic, counts)

    @cached_property
    def prefetched(self) -> np.ndarray:
        """Whether registers are left to load fragments of the next step ahead."""
        sizes = fragment_registers(self.structure.mapping.intrinsic)[:-1]
        more = np.sum([self.own(n) * size for n, size in enumerate(sizes)], axis=0)
        return np.asarray(self.registers + more <= THREAD_REGISTERS)

    @cached_property
    def occupancy(self) -> np.ndarray:
        """Blocks that one multiprocessor holds at the same time; 0 if not even one fits.

        CUDA C++ Programming Guide, Hardware Multithreading: the least of what blocks,
        threads, registers and shared memory allow.
        """
        limit = resident(self.architecture)
        pool = self.machine.levels[0].capacity // (self.shared + self._reserved)
        fits = np.minimum(
            limit.threads // self.threads, blocks_by_registers(self.threads, self.registers)
        )
        return np.asarray(np.minimum(np.minimum(fits, pool), limit.blocks))
