"""Thread blocks: their number, the tiles that each stages, and how many fit a multiprocessor."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from amos.cuda.fragment_tiles import tiles_of
from amos.cuda.registers import blocks_by_registers, fragment_registers
from amos.cuda.schedule import GpuBatch
from amos.machine.gpu_costs import (
    ASYNC,
    ASYNC_BYTES,
    HELD_COPIES,
    LOOPED_COPIES,
    OTHER_REGISTERS,
    ROW_ALIGNMENT,
    THREAD_REGISTERS,
    WARP,
    Multiprocessor,
)
from amos.machine.machine import Machine
from amos.plan.groups import Groups
from amos.plan.structure import LoopBatch, Structure


def runs_warps(structure: Structure, machine: Machine | None) -> bool:
    """Return whether warps of a CUDA machine run the intrinsic, on data in shared memory."""
    if machine is None or not machine.architecture or not machine.levels[0].scratchpad:
        return False
    scopes = [statement.scope for statement in structure.mapping.intrinsic.memory]
    return machine.levels[0].name in scopes and bool(tiles_of(structure))


class Blocks(Groups):
    """The thread blocks of each schedule; arrays with one column a schedule.

    A warp holds ``tile`` steps of each spatial loop in accumulators, a block has warps
    along it. The reduction loops are one sequence of steps, some of which are staged in
    shared memory together; several such stages are in flight. A split reduction divides
    the sequence over blocks, whose sums meet in atomic additions.

    Attributes:
        unit: the multiprocessor that blocks run on.
        grid: blocks of the launch, the parts of a split reduction included.
        share: stages of one block; the last one may have fewer.
        parts: blocks that add up one result.
        depth: stages of shared memory in flight, no more than a block has.
        vector: bytes that one copy moves at most.
        realign: whether copies of unaligned rows shift what they read into place.
        padding: sources × schedules: elements behind each row, -1 if rows are swizzled.
    """

    def __init__(self, structure: Structure, unit: Multiprocessor, loops: LoopBatch) -> None:
        self.unit, batch = unit, GpuBatch.of(loops)
        tiles, sizes = tiles_of(structure), fragment_registers(structure.mapping.intrinsic)
        super().__init__(structure, batch, batch.warps, batch.unroll, tiles, sizes)
        rows = len(batch)
        ones = np.ones(rows)
        split = ones if batch.split is None else batch.split
        self.share = np.ceil(self.sequence / split)
        self.parts = np.ceil(self.sequence / self.share)
        self.depth = ones if batch.stages is None else np.minimum(batch.stages, self.share)
        self.grid = self.blocks.prod(axis=0) * self.parts
        widest = np.full(rows, ROW_ALIGNMENT)
        self.copy_bytes = widest if batch.copy_bytes is None else batch.copy_bytes
        none = np.zeros(rows, dtype=bool)
        self.realign = none if batch.realign is None else batch.realign.astype(bool)
        whole = np.zeros((len(tiles) - 1, rows), dtype=np.int64)
        self.padding = whole if batch.padding is None else batch.padding.T

    @property
    def warps(self) -> np.ndarray:
        """Warps of one block."""
        return np.asarray(self.workers)

    @property
    def threads(self) -> np.ndarray:
        """Threads of a block."""
        return np.asarray(self.warps * WARP)

    def bytes(self, operand: int) -> np.ndarray:
        """Count bytes of shared memory of one stage of a source, padding included."""
        tile = tiles_of(self.structure)[operand]
        rows = self.fragments(operand) * tile.rows.lanes
        return np.asarray(rows * tile.row(self.padding[operand]))

    @cached_property
    def moves(self) -> list[np.ndarray]:
        """Of each source, copies of all threads that fill a stage."""
        return [
            self.fragments(number) * tile.elements * tile.size / self.pieces[number]
            for number, tile in enumerate(tiles_of(self.structure)[:-1])
        ]

    @cached_property
    def copies(self) -> list[np.ndarray]:
        """Of each source, copies of a thread that fill a stage."""
        return [np.ceil(moves / self.threads) for moves in self.moves]

    @cached_property
    def pieces(self) -> list[np.ndarray]:
        """Of each source, bytes that one copy moves."""
        widths, where = np.unique(self.copy_bytes, return_inverse=True)
        return [
            np.where(shifted, ROW_ALIGNMENT, np.array([tile.vector(int(w)) for w in widths])[where])
            for tile, shifted in zip(tiles_of(self.structure), self.realigned, strict=False)
        ]

    @cached_property
    def realigned(self) -> list[np.ndarray]:
        """Of each source, whether copies shift what they read into place."""
        wide = self.realign & (self.copy_bytes == ROW_ALIGNMENT)
        return [wide & tile.realigned for tile in tiles_of(self.structure)[:-1]]

    @cached_property
    def asynchronous(self) -> list[np.ndarray]:
        """Of each source, whether its copies are made by ``cp.async``."""
        able = (self.depth > 1) & (self.unit.architecture >= ASYNC)
        return [
            able & (piece >= ASYNC_BYTES) & ~shifted & (not tile.computed)
            for tile, piece, shifted in zip(
                tiles_of(self.structure), self.pieces, self.realigned, strict=False
            )
        ]

    @cached_property
    def in_registers(self) -> list[np.ndarray]:
        """Of each source, whether copies wait in registers until the stage before is multiplied."""
        return [
            (self.depth > 1) & ~rolled & ~quick
            for rolled, quick in zip(self.rolled, self.asynchronous, strict=True)
        ]

    @cached_property
    def outstanding(self) -> np.ndarray:
        """Stages whose copies are on their way while one is multiplied; 0 if it waits for them.

        ``cp.async`` fills all other stages. Before sm_80, and for narrower pieces, a few
        copies wait in registers for the multiplication of one stage; more do not fit there.
        """
        ahead = self.depth - 1
        for quick, buffered in zip(self.asynchronous, self.in_registers, strict=True):
            ahead = np.minimum(ahead, np.where(quick, self.depth - 1, 1.0 * buffered))
        return np.asarray(ahead)

    @cached_property
    def waits(self) -> np.ndarray:
        """Latencies of memory, one after another, until a thread has filled a stage.

        All copies by ``cp.async`` are on their way at once, and so are those of an unrolled
        loop. A longer loop stores what a few of them brought before it asks for more.
        """
        total = np.zeros(len(self.threads))
        for copies, quick, rolled in zip(self.copies, self.asynchronous, self.rolled, strict=True):
            turns = np.where(rolled, np.ceil(copies / LOOPED_COPIES), 1.0)
            total += np.where(quick, 0.0, turns)
        return np.maximum(total, 1.0)

    @property
    def rolled(self) -> list[np.ndarray]:
        """Of each source, whether its copies are too many to be unrolled."""
        return [count > HELD_COPIES for count in self.copies]

    @cached_property
    def shared_bytes(self) -> np.ndarray:
        """Shared memory of a block; what leaves through it takes the same place."""
        *sources, result = tiles_of(self.structure)
        stage = np.sum([self.bytes(number) for number in range(len(sources))], axis=0)
        leaving = self.warps * result.elements * result.size if result.hidden else 0.0
        return np.asarray(np.maximum(stage * self.depth, leaving))

    @cached_property
    def registers(self) -> np.ndarray:
        """Registers that a thread needs, as the schedule space counts them; 255 exist."""
        return np.asarray(self.footprint + OTHER_REGISTERS)

    @property
    def prefetched(self) -> np.ndarray:
        """Whether registers are left to load fragments of the next step ahead."""
        more = np.sum([self.own(n) * size for n, size in enumerate(self.sizes[:-1])], axis=0)
        return np.asarray(self.registers + more <= THREAD_REGISTERS)

    @cached_property
    def occupancy(self) -> np.ndarray:
        """Blocks that one multiprocessor holds at the same time; 0 if not even one fits.

        CUDA C++ Programming Guide, Hardware Multithreading: the least of what blocks,
        threads, registers and shared memory allow.
        """
        limit = self.unit
        pool = limit.shared // (self.shared_bytes + limit.reserved)
        fits = np.minimum(
            limit.threads // self.threads, blocks_by_registers(self.threads, self.registers)
        )
        return np.asarray(np.minimum(np.minimum(fits, pool), limit.blocks))
