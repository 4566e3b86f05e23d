"""The refined model on CUDA machines: thread blocks, shared memory, copies, waves.

The paper's equation sees a GPU as cores under caches. This is what it leaves out, for
kernels as :mod:`amos.cuda.codegen` writes them; each function says where its term is
from. Whatever a multiprocessor does takes the longest of its resources, smoothly, or
the way that one block has to go through its stages, if that is longer. The second is
where latency counts: with one buffer a stage is copying *and then* multiplying, with
``n`` it is the longer of multiplying and an ``n - 1``\\ th of copying.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from amos.cuda.blocks import Blocks
from amos.cuda.fragment_tiles import SECTOR, Tile, tiles_of
from amos.machine.gpu_costs import ASYNC_BYTES, WARP
from amos.machine.machine import Level, Machine
from amos.perfmodel.terms import BatchPrediction, smooth_maximum
from amos.perfmodel.traffic import CoreNest, LoopNestBatch, pick
from amos.plan.cpu_blocks import CpuBlocks
from amos.plan.operand import Operand
from amos.plan.structure import LoopBatch, Structure

#: Bytes that the banks of shared memory deliver in a cycle.
_BANKS = 128


def predict_blocks(structure: Structure, machine: Machine, batch: LoopBatch) -> BatchPrediction:
    """Predict every schedule of a batch on a CUDA machine."""
    return _Kernels(structure, machine, batch).prediction()


class _Kernels:
    """Kernels of one mapping on a CUDA machine; arrays with one column a schedule.

    Attributes:
        blocks: their thread blocks.
        sub: sub-cores of a multiprocessor, each with a Tensor Core and a scheduler.
        busiest: blocks of the busiest multiprocessor.
        resident_blocks: number of those that it holds at the same time.
        full, last_wave: number of full waves, and blocks of the wave after them.
        active: multiprocessors that have anything to do.
        loads: cycles in which fragments of each source are loaded in one stage.
        fills: the same for filling the stage.
        copying: instructions of the warps that copy a stage.
        draw_cycles: cycles in which a multiprocessor draws a stage from the L2 cache.
    """

    def __init__(self, structure: Structure, machine: Machine, batch: LoopBatch) -> None:
        self.structure, self.machine, self.batch = structure, machine, batch
        self.costs = machine.gpu
        self.peak = machine.peak(structure.mapping.intrinsic.name)
        self.blocks = blocks = Blocks(structure, machine.multiprocessor, batch)
        *self.sources, self.destination = tiles_of(structure)
        self.result = BatchPrediction.empty(len(batch), machine.levels)
        # Blocks go to multiprocessors in turn, and stay until they are done. The last wave takes
        # as long as the others however few blocks it has (CUDA C++ Best Practices Guide, Thread
        # and Block Heuristics; Lai et al., "tail effect").
        units = machine.levels[0].units
        self.sub = max(1.0, machine.cores / units)
        self.busiest = np.ceil(blocks.grid / units)
        self.occupancy = np.maximum(blocks.occupancy, 1.0)
        self.resident_blocks = np.minimum(blocks.occupancy, self.busiest)
        self.full = np.floor(self.busiest / self.occupancy)
        self.last_wave = self.busiest - self.full * self.occupancy
        self.waves = np.ceil(self.busiest / self.occupancy)
        self.active = np.minimum(blocks.grid, units)
        self.loads, self.fills = self._shared_cycles()
        self.copying = self._copy_instructions()

    def prediction(self) -> BatchPrediction:
        result, blocks = self.result, self.blocks
        result.compute[:] = self._compute()
        terms = [result.compute, self._shared_seconds(), *self._outer()]
        bound = smooth_maximum(terms, self.costs.overlap)
        issue = self._issue()
        latency = self.waves * self._block_seconds()
        whole = np.maximum(smooth_maximum([*terms, issue], self.costs.overlap), latency)
        result.staging[:] = whole - bound
        result.launch[:] = self.machine.launch + self._clearing()
        fits = (self.resident_blocks > 0) & (blocks.shared_bytes <= blocks.unit.block_shared)
        result.seconds[:] = np.where(fits, whole + result.launch, np.inf)
        result.notes.update(self._notes(), latency=latency > issue)
        return result

    @cached_property
    def results(self) -> np.ndarray:
        return np.asarray(self.blocks.warps * self.blocks.accumulators)

    def _compute(self) -> np.ndarray:
        """Count the calls of the busiest sub-core.

        A call of the same accumulator waits for the one before. The accumulators of a warp
        and the warps of a sub-core fill that time, in order (AMOS leaves this out; Raihan
        et al., ISPASS 2019, for Tensor Cores).
        """
        blocks, peak = self.blocks, self.peak
        chains, seconds = blocks.accumulators, np.zeros(len(self.batch))
        calls = chains * blocks.share * blocks.staged
        for times, resident in (
            (self.full, self.occupancy),
            (np.minimum(self.last_wave, 1.0), self.last_wave),
        ):
            warps = np.ceil(resident * blocks.warps / self.sub)
            spacing = np.maximum(peak.interval, peak.latency / (chains * np.maximum(warps, 1.0)))
            seconds += times * warps * calls * spacing
        return seconds

    def _shared_cycles(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Count cycles of shared memory for one stage: loading fragments, and filling it.

        Bank conflicts are in here (:mod:`amos.cuda.banks`): each warp loads its
        fragments anew in every step. A copy takes a cycle of the load and store units
        besides, which are 32 (NVIDIA V100 and A100 white papers): narrow ones take more.
        """
        blocks, loads, fills = self.blocks, [], []
        for number, (tile, paddings) in enumerate(zip(self.sources, blocks.padding, strict=True)):
            load = _map_rows(
                tile.loading, paddings, np.full_like(paddings, blocks.unit.architecture)
            )
            fill = _map_rows(tile.filling, paddings, blocks.pieces[number])
            loads.append(blocks.warps * blocks.staged * blocks.own(number) * load)
            units = blocks.copies[number] * blocks.warps
            fills.append(blocks.fragments(number) * fill + units)
        return loads, fills

    def _copy_instructions(self) -> np.ndarray:
        """Count instructions of all warps that copy one stage.

        A copy finds its address by itself; twice the width halves their number (CUDA Pro
        Tip: Increase Performance with Vectorized Memory Access).
        """
        blocks, costs, total = self.blocks, self.costs, np.zeros(len(self.batch))
        for tile, copies, shifted in zip(
            self.sources, blocks.copies, blocks.realigned, strict=True
        ):
            per_copy = costs.copy + costs.digits * tile.divisions + costs.realign * shifted
            total += copies * blocks.warps * per_copy
        return total

    def _shared_seconds(self) -> np.ndarray:
        """Predict seconds of shared memory, one pipe for loads, fills and results."""
        cycles = [load + fill for load, fill in zip(self.loads, self.fills, strict=True)]
        stages = self.busiest * self.blocks.share
        read = stages * np.sum(cycles, axis=0) * _BANKS
        # Accumulators of hidden layout are stored, and read again element by element.
        tile = self.destination
        leaving = 2 * self.results * tile.elements * tile.size if tile.hidden else 0.0
        level, trips = self.machine.levels[0], stages * self.blocks.staged
        self._cross(level, cycles, trips, read / self.sub, self.busiest * leaving / self.sub)
        self.result.read[level.name] = read / level.read_bandwidth
        self.result.write[level.name] = self.busiest * leaving / level.write_bandwidth
        return np.asarray(self.result.read[level.name] + self.result.write[level.name])

    def _cross(
        self,
        level: Level,
        reads: list[np.ndarray],
        trips: np.ndarray,
        into: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Add the bytes that cross a level, and note the source with the most."""
        name, result = level.name, self.result
        result.bytes_in[name], result.bytes_out[name], result.trips[name] = into, out, trips
        result.source[name] = np.stack(reads).argmax(axis=0)

    def _outer(self) -> list[np.ndarray]:
        """Predict seconds of the L2 cache and of the memory behind it."""
        result, terms = self.result, [self._l2()]
        if len(self.machine.levels) > 2:
            resident = replace(self.batch, tile=self._resident_steps())
            nest = CoreNest(
                LoopNestBatch(CpuBlocks.of(self.structure, self.machine, resident)),
                np.ones(len(self.batch)),
                self.machine.line,
            )
        for inner, level in pairwise(self.machine.levels[1:]):
            *reads, writes = _missed_bytes(nest, inner.capacity, self.structure)
            total = np.sum(reads, axis=0)
            self._cross(level, reads, np.ones(len(total)), total, writes)
            result.read[level.name] = total / level.read_bandwidth
            result.write[level.name] = writes / level.write_bandwidth
            terms += [result.read[level.name], result.write[level.name]]
        return terms

    def _resident_steps(self) -> np.ndarray:
        """Count the steps along spatial loops of blocks that run together: schedules × loops.

        These are whole rows of the grid, as many as run at the same time, or the rows of the
        raster. What they share comes from memory once.
        """
        blocks, order = self.blocks, self.batch.order
        steps: np.ndarray = blocks.span.T.astype(np.int64)
        if order.shape[1] > 1:
            number = np.arange(len(order))
            rows, columns = (blocks.blocks[order[:, at], number] for at in (-2, -1))
            running = self.occupancy * self.machine.levels[0].units
            row_count = np.clip(running // columns, blocks.raster, rows)
            steps[number, order[:, -2]] *= row_count.astype(np.int64)
        return steps

    def _l2(self) -> np.ndarray:
        """Count bytes from the L2 cache in sectors of 32 bytes, without padding.

        Sums of a split reduction go there as atomic additions: each part writes the whole
        result, and the cache reads what it adds to.
        """
        blocks, level = self.blocks, self.machine.levels[1]
        reads = [
            blocks.fragments(n) * self._sectors(n, tile) * op.wider * self._valid_share(n)
            for n, (tile, op) in enumerate(zip(self.sources, self.structure.sources, strict=True))
        ]
        trips = self.busiest * blocks.share
        total = trips * np.sum(reads, axis=0)
        stored = self.results * self.destination.sectors * self._valid_share(-1)
        stored = stored * np.where(blocks.parts > 1, self.costs.atomic, 1.0)
        once = self.busiest * (
            stored + self.results * self._further_results[1] * self._valid_share(-1)
        )
        self._cross(level, reads, trips, total, once)
        drawn = [moved / self._draw_bandwidth(n) for n, moved in enumerate(reads)]
        self.draw_cycles = np.sum(drawn, axis=0)
        alone, ones = self.costs.sm_bandwidth * self.machine.clock, np.ones(len(total))
        read, write = (level.rate(self.active, ones, write=out) for out in (False, True))
        seconds = [
            np.maximum(trips * self.draw_cycles / self.machine.clock, total / read),
            once / np.minimum(alone, write),
        ]
        self.result.read[level.name], self.result.write[level.name] = seconds
        return np.asarray(seconds[0] + seconds[1])

    def _draw_bandwidth(self, number: int) -> np.ndarray:
        """Return bytes of a source in a cycle; the L1 cache serves gathers of single elements."""
        wide = self.blocks.pieces[number] >= ASYNC_BYTES
        return np.where(wide, self.costs.row_bandwidth, self.costs.sm_bandwidth)

    def _sectors(self, number: int, tile: Tile) -> np.ndarray:
        """Count bytes that copying a fragment of a source moves, in whole sectors."""
        neighbours, loop = np.ones(len(self.batch)), tile.columns.tile
        spatial = len(self.structure.spatial)
        loops = [x.name for x in (*self.structure.spatial, *self.structure.reduce)]
        if loop in loops[:spatial]:
            neighbours = self.blocks.span[loops.index(loop)]
        elif loop in loops:
            # Stages are steps of the innermost reductions.
            inner = self.batch.reduce[:, -1] == loops.index(loop)
            extent = self.structure.extents[loops.index(loop)]
            neighbours = np.where(inner, np.minimum(self.blocks.staged, extent), 1.0)
        return np.where(
            self.blocks.realigned[number], tile.shared_sectors(neighbours), tile.sectors
        )

    def _valid_share(self, operand: int) -> np.ndarray:
        """Return the share of an operand's fragments that is no padding, which is not moved."""
        op = (*self.structure.sources, self.structure.destination)[operand]
        return np.asarray(op.live / self.blocks.padded[self.blocks.loops[operand]].prod(axis=0))

    def _issue(self) -> np.ndarray:
        """Predict seconds to issue copies and results, one instruction a cycle and sub-core."""
        busy = np.minimum(self.sub, np.maximum(self.resident_blocks * self.blocks.warps, 1.0))
        total = self.busiest * (self.blocks.share * self.copying + self._stores)
        return np.asarray(total / busy / self.machine.clock)

    @cached_property
    def _stores(self) -> np.ndarray:
        """Instructions of the warps of a block that store its results."""
        per_element = self.costs.store + self._further_results[0]
        return np.asarray(self.results * self.destination.elements / WARP * per_element)

    @cached_property
    def _further_results(self) -> tuple[float, float]:
        """What further results take: instructions of an element, bytes of a fragment.

        Lanes that meet in an element of a reduction put theirs together by a shuffle and an
        operation for each bit, and one of them adds that, a sector to the cache.
        """
        tile, instructions, moved = self.destination, 0.0, 0.0
        for result in tile.nest.mapping.operator.further:
            bits = tile.meeting(result.store.names) if result.reduces else ()
            instructions += self.costs.store + 2 * len(bits)
            atomics = tile.elements / 2 ** len(bits) * SECTOR * self.costs.atomic
            moved += atomics if result.reduces else tile.sectors
        return instructions, moved

    def _block_seconds(self) -> np.ndarray:
        """Predict seconds of one block alone on a multiprocessor.

        Copies take the latency of memory and their own time. ``cp.async`` with ``n`` stages
        lets ``n - 1`` of them pass while one is multiplied (CUDA C++ Programming Guide,
        Asynchronous Data Copies).
        """
        costs, blocks, peak = self.costs, self.blocks, self.peak
        warps = np.minimum(self.sub, blocks.warps)
        turns = np.ceil(blocks.warps / self.sub)
        tensor = np.maximum(blocks.accumulators * peak.interval * turns, peak.latency)
        tensor = tensor * self.machine.clock
        fetch = np.sum(self.loads, axis=0) / blocks.staged
        sequential = tensor + fetch + costs.shared_latency
        step = np.where(blocks.prefetched, np.maximum(tensor, fetch), sequential)
        multiply = blocks.staged * step + costs.shared_latency + costs.barrier
        issue = self.copying / warps
        load = self._latency() * blocks.waits + np.maximum.reduce(
            [issue, self.draw_cycles, np.sum(self.fills, axis=0)]
        )
        ahead = blocks.outstanding
        both = load + multiply + costs.barrier
        pipelined = np.maximum(issue + multiply, load / np.maximum(ahead, 1.0))
        stage = np.where(ahead > 0, pipelined, both)
        first = np.where(ahead > 0, load + multiply, both)
        cycles = costs.start + first + (blocks.share - 1) * stage + self._stores / warps
        return np.asarray(cycles / self.machine.clock)

    def _latency(self) -> np.ndarray | float:
        """Count cycles until a copy arrives: from the L2 cache, or for its misses from memory."""
        costs, (_, *levels) = self.costs, self.machine.levels
        if len(levels) < 2:
            return costs.memory_latency
        requested = np.maximum(self.result.bytes_in[levels[0].name] * self.active, 1.0)
        missed = np.minimum(1.0, self.result.bytes_in[levels[1].name] / requested)
        return np.asarray(costs.l2_latency + missed * (costs.memory_latency - costs.l2_latency))

    def _clearing(self) -> np.ndarray:
        """Predict seconds to zero the output ahead of a kernel that adds to it."""
        op, level = self.structure.destination, self.machine.levels[1]
        seconds = self.costs.clear + op.origin * op.size / level.write_bandwidth
        return np.where(self.blocks.parts > 1, seconds, 0.0)

    def _notes(self) -> dict[str, np.ndarray]:
        """Return facts that :func:`amos.cuda.explain.explain` puts into words."""
        blocks, notes = self.blocks, {}
        for number, (tile, paddings) in enumerate(zip(self.sources, blocks.padding, strict=True)):
            here = np.full_like(paddings, blocks.unit.architecture)
            notes[f"conflicts {number}"] = _map_rows(tile.conflicts, paddings, here)
            notes[f"piece {number}"] = blocks.pieces[number]
        places = self.waves * self.resident_blocks * self.machine.levels[0].units
        full = np.divide(blocks.grid, places, out=np.ones(len(places)), where=places > 0)
        return notes | {
            "ahead": blocks.outstanding,
            "blocks": blocks.grid,
            "full": full,
            "parts": blocks.parts,
            "raster": blocks.raster,
            "cleared": self._clearing(),
        }


def _map_rows(
    count: Callable[[int, int], float], first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Apply a function of two integers to each row; they have few values."""
    pairs, where = np.unique(np.stack([first, second]), axis=1, return_inverse=True)
    return np.array([float(count(int(a), int(b))) for a, b in pairs.T])[where]


def _missed_bytes(nest: CoreNest, capacity: int, structure: Structure) -> list[np.ndarray]:
    """Return the bytes of each operand that miss the cache, which is warm.

    Kernels gather from the tensor itself, so that its own size counts, not that of the
    staged form, in which a window repeats elements.
    """
    operands = (*structure.sources, structure.destination)
    used = np.sum([nest.footprint(op) * _repetition(nest, op) for op in operands], axis=0)
    depth = np.minimum((used > capacity).sum(axis=0), nest.count)
    traffic = [nest.traffic(op, windows=True) * _repetition(nest, op) for op in operands]
    return [np.where(depth == 0, 0.0, pick(moved, depth)) for moved in traffic]


def _repetition(nest: CoreNest, op: Operand) -> np.ndarray:
    """Return the bytes of the tensor for each byte of its staged form, at most one."""
    whole = np.maximum(nest.footprint(op)[0].astype(float), 1.0)
    return np.asarray(op.wider * np.minimum(1.0, op.origin * op.size / whole))
