"""The refined model on CUDA machines: thread blocks, shared memory, copies, waves.

The paper's equation sees a GPU as cores under caches. This is what it leaves out, for
kernels as :mod:`amos.codegen.cuda` writes them; each function says where its term is
from. Whatever a multiprocessor does takes the longest of its resources, smoothly, or
the way that one block has to go through its stages, if that is longer. The second is
where latency counts: with one buffer a stage is copying *and then* multiplying, with
``n`` it is the longer of multiplying and an ``n - 1``\\ th of copying.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amos.machine.gpu_costs import WARP, GpuCosts
from amos.machine.machine import Level, Machine
from amos.perfmodel.terms import BatchPrediction, overlapped
from amos.perfmodel.traffic import CoreNest, LoopNestBatch, pick
from amos.plan.blocks import Blocks
from amos.plan.structure import LoopBatch, Operand, Structure

__all__ = ["explain", "predict_blocks"]

#: Bytes that the banks of shared memory deliver in a cycle.
_BANKS = 128


@dataclass(frozen=True)
class _Waves:
    """How blocks are dealt out to multiprocessors.

    Attributes:
        busiest: blocks of the busiest multiprocessor.
        together: of which it holds so many at the same time.
        full, rest: how often it is full, and blocks that it holds after that.
        count: waves, the last one perhaps not full.
        active: multiprocessors that have anything to do.
        sub: sub-cores of a multiprocessor, each with a Tensor Core and a scheduler.
    """

    busiest: np.ndarray
    together: np.ndarray
    full: np.ndarray
    rest: np.ndarray
    count: np.ndarray
    active: np.ndarray
    sub: float


def predict_blocks(structure: Structure, machine: Machine, batch: LoopBatch) -> BatchPrediction:
    """Predict every schedule of a batch on a CUDA machine."""
    blocks = Blocks(structure, machine.multiprocessor, batch)
    result = BatchPrediction.empty(len(batch), machine.levels)
    waves = _waves(blocks, machine)
    result.compute[:] = _compute(blocks, machine, waves)
    loads, fills = _shared_cycles(blocks)
    work = _Work(blocks, waves, loads, fills, _copy_instructions(blocks, machine.gpu))
    terms = [result.compute, *_shared(result, machine, work), *_outer(result, machine, batch, work)]
    bound = overlapped(terms, machine.gpu.overlap)
    issue = _issue(machine, work)
    latency = waves.count * _way(result, machine, work)
    whole = np.maximum(overlapped([*terms, issue], machine.gpu.overlap), latency)
    result.staging[:] = whole - bound
    result.launch[:] = machine.launch + _clearing(blocks, machine)
    fits = (waves.together > 0) & (blocks.shared_bytes <= blocks.unit.block_shared)
    result.seconds[:] = np.where(fits, whole + result.launch, np.inf)
    _note(result, machine, work, issue, latency)
    return result


@dataclass(frozen=True)
class _Work:
    """What blocks do, in cycles of shared memory and instructions.

    Attributes:
        loads: cycles in which fragments of each source are loaded in one stage.
        fills: the same for filling the stage.
        copying: instructions of the warps that copy a stage.
    """

    blocks: Blocks
    waves: _Waves
    loads: list[np.ndarray]
    fills: list[np.ndarray]
    copying: np.ndarray

    @property
    def results(self) -> np.ndarray:
        """Fragments that leave a block."""
        return np.asarray(self.blocks.warps * self.blocks.accumulators)

    @property
    def schedulers(self) -> np.ndarray:
        """Sub-cores that have a warp."""
        busy = np.maximum(self.waves.together * self.blocks.warps, 1.0)
        return np.asarray(np.minimum(self.waves.sub, busy))


def _waves(blocks: Blocks, machine: Machine) -> _Waves:
    """Blocks go to multiprocessors in turn, and stay until they are done.

    The last wave takes as long as the others however few blocks it has (CUDA C++ Best
    Practices Guide, Thread and Block Heuristics; Lai et al., "tail effect").
    """
    units = machine.levels[0].units
    busiest = np.ceil(blocks.grid / units)
    occupancy = np.maximum(blocks.occupancy, 1.0)
    together = np.minimum(blocks.occupancy, busiest)
    full = np.floor(busiest / occupancy)
    return _Waves(
        busiest,
        together,
        full,
        busiest - full * occupancy,
        np.ceil(busiest / occupancy),
        np.minimum(blocks.grid, units),
        max(1.0, machine.cores / units),
    )


def _compute(blocks: Blocks, machine: Machine, waves: _Waves) -> np.ndarray:
    """Calls of the busiest sub-core.

    A call of the same accumulator waits for the one before. The accumulators of a warp
    and the warps of a sub-core fill that time, in order (AMOS leaves this out; Raihan
    et al., ISPASS 2019, for Tensor Cores).
    """
    peak = machine.peak(blocks.structure.mapping.intrinsic.name)
    chains, seconds = blocks.accumulators, np.zeros(len(blocks.warps))
    calls = chains * blocks.share * blocks.staged
    for times, held in (
        (waves.full, np.maximum(blocks.occupancy, 1.0)),
        (np.minimum(waves.rest, 1.0), waves.rest),
    ):
        warps = np.ceil(held * blocks.warps / waves.sub)
        spacing = np.maximum(peak.interval, peak.latency / (chains * np.maximum(warps, 1.0)))
        seconds += times * warps * calls * spacing
    return seconds


def _shared_cycles(blocks: Blocks) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Cycles of shared memory for one stage: loading fragments, and filling it.

    Bank conflicts are in here (:mod:`amos.plan.banks`): each warp loads its
    fragments anew in every step. A copy takes a cycle of the load and store units
    besides, which are 32 (NVIDIA V100 and A100 white papers): narrow ones take more.
    """
    loads, fills = [], []
    for number, tile in enumerate(blocks.structure.tiles[:-1]):
        load, fill, _ = tile.table(
            blocks.padding[number], blocks.copy_bytes, blocks.unit.architecture
        )
        loads.append(blocks.warps * blocks.staged * blocks.own(number) * load)
        units = blocks.copies[number] * blocks.warps
        fills.append(blocks.fragments(number) * fill + units)
    return loads, fills


def _shared(result: BatchPrediction, machine: Machine, work: _Work) -> list[np.ndarray]:
    """Seconds of shared memory, which is one pipe for loading, filling and leaving."""
    level, waves, blocks = machine.levels[0], work.waves, work.blocks
    each = [load + fill for load, fill in zip(work.loads, work.fills, strict=True)]
    stages = waves.busiest * blocks.share
    cycles = stages * np.sum(each, axis=0)
    name, tile = level.name, blocks.structure.tiles[-1]
    # Accumulators of hidden layout are stored, and read again element by element.
    leaving = 2 * work.results * tile.elements * tile.size if tile.hidden else 0.0 * work.results
    result.bytes_in[name] = cycles * _BANKS / waves.sub
    result.bytes_out[name] = waves.busiest * leaving / waves.sub
    result.read[name] = cycles * _BANKS / level.read_bandwidth
    result.write[name] = waves.busiest * leaving / level.write_bandwidth
    result.source[name] = np.stack(each).argmax(axis=0)
    result.trips[name] = stages * blocks.staged
    return [result.read[name] + result.write[name]]


def _outer(
    result: BatchPrediction, machine: Machine, batch: LoopBatch, work: _Work
) -> list[np.ndarray]:
    """Seconds of the L2 cache and of the memory behind it."""
    structure = work.blocks.structure
    terms = _l2(result, machine.levels[1], machine, work)
    if len(machine.levels) > 2:
        nest = CoreNest(LoopNestBatch(structure, batch), np.ones(len(batch)), machine.line)
    for inner, level in zip(machine.levels[1:], machine.levels[2:], strict=False):
        reads, writes = _missed(nest, inner.capacity, structure)
        name, total = level.name, np.sum(reads, axis=0)
        result.bytes_in[name], result.bytes_out[name] = total, writes
        result.read[name] = total / level.read_bandwidth
        result.write[name] = writes / level.write_bandwidth
        result.source[name] = np.stack(reads).argmax(axis=0)
        result.trips[name] = np.ones(len(total))
        terms += [result.read[name], result.write[name]]
    return terms


def _l2(result: BatchPrediction, level: Level, machine: Machine, work: _Work) -> list[np.ndarray]:
    """What blocks stage comes from the L2 cache in sectors of 32 bytes, padding left out.

    Sums of a split reduction go there as atomic additions: each part writes the whole
    result, and the cache reads what it adds to.
    """
    blocks, waves = work.blocks, work.waves
    reads = [
        blocks.fragments(n) * tile.sectors * _inside(blocks, n)
        for n, tile in enumerate(blocks.structure.tiles[:-1])
    ]
    name, busiest = level.name, waves.busiest
    total = busiest * blocks.share * np.sum(reads, axis=0)
    kept = work.results * blocks.structure.tiles[-1].sectors * _inside(blocks, -1)
    once = busiest * kept * np.where(blocks.parts > 1, machine.gpu.atomic, 1.0)
    alone = machine.gpu.sm_bandwidth * machine.clock
    one = np.ones(len(total))
    result.bytes_in[name], result.bytes_out[name] = total, once
    result.read[name] = total / np.minimum(alone, level.rate(waves.active, one, write=False))
    result.write[name] = once / np.minimum(alone, level.rate(waves.active, one, write=True))
    result.source[name] = np.stack(reads).argmax(axis=0)
    result.trips[name] = busiest * blocks.share
    return [result.read[name] + result.write[name]]


def _inside(blocks: Blocks, operand: int) -> np.ndarray:
    """Share of an operand's fragments that is no padding, which is neither read nor written."""
    structure = blocks.structure
    op = structure.sources[operand] if operand >= 0 else structure.destination
    return np.asarray(op.live / blocks.padded[blocks.loops[operand]].prod(axis=0))


def _missed(
    nest: CoreNest, capacity: int, structure: Structure
) -> tuple[list[np.ndarray], np.ndarray]:
    """Bytes of each operand that the cache does not keep; warm, as everywhere in the model.

    Kernels gather from the tensor itself, so that its own size counts, not that of the
    staged form, in which a window repeats elements.
    """
    operands = structure.operands
    used = np.sum([nest.footprint(op) * _repeated(nest, op) for op in operands], axis=0)
    depth = np.minimum((used > capacity).sum(axis=0), nest.count)
    moved = []
    for op in operands:
        traffic = nest.traffic(op, windows=True) * _repeated(nest, op)
        moved.append(np.where(depth == 0, 0.0, pick(traffic, depth)))
    return moved[:-1], moved[-1]


def _repeated(nest: CoreNest, op: Operand) -> np.ndarray:
    """Size of the tensor for each byte of its staged form, at most 1."""
    whole = np.maximum(nest.footprint(op)[0].astype(float), 1.0)
    return np.asarray(np.minimum(1.0, op.origin * op.size / whole))


def _copy_instructions(blocks: Blocks, costs: GpuCosts) -> np.ndarray:
    """Instructions of all warps that copy one stage.

    A copy finds its address by itself; twice the width halves their number (CUDA Pro
    Tip: Increase Performance with Vectorized Memory Access).
    """
    total = np.zeros(len(blocks.warps))
    for number, rolled in enumerate(blocks.rolled):
        tile = blocks.structure.tiles[number]
        each = np.where(rolled, costs.rolled, costs.copy) + costs.digits * tile.divisions
        total += blocks.copies[number] * blocks.warps * each
    return total


def _issue(machine: Machine, work: _Work) -> np.ndarray:
    """Instructions of the copies and results, one a cycle and sub-core, in seconds."""
    blocks = work.blocks
    stores = work.results * blocks.structure.tiles[-1].elements / WARP * machine.gpu.store
    total = work.waves.busiest * (blocks.share * work.copying + stores)
    return np.asarray(total / work.schedulers / machine.clock)


def _way(result: BatchPrediction, machine: Machine, work: _Work) -> np.ndarray:
    """Seconds of one block that has a multiprocessor for itself.

    Copies take the latency of memory and their own time. ``cp.async`` with ``n`` stages
    lets ``n - 1`` of them pass while one is multiplied (CUDA C++ Programming Guide,
    Asynchronous Data Copies).
    """
    costs, blocks, clock = machine.gpu, work.blocks, machine.clock
    peak = machine.peak(blocks.structure.mapping.intrinsic.name)
    warps = np.minimum(work.waves.sub, blocks.warps)
    chains = blocks.accumulators
    turns = np.ceil(blocks.warps / work.waves.sub)
    tensor = np.maximum(chains * peak.interval * turns, peak.latency) * clock
    fetch = np.sum(work.loads, axis=0) / blocks.staged
    apart = tensor + fetch + costs.shared_latency
    step = np.where(blocks.prefetched, np.maximum(tensor, fetch), apart)
    multiply = blocks.staged * step + costs.shared_latency + costs.barrier
    issue = work.copying / warps
    name = machine.levels[1].name
    stages = np.maximum(result.trips[name], 1.0)
    data = result.bytes_in[name] / stages / costs.sm_bandwidth
    load = _latency(result, machine, work) + np.maximum.reduce(
        [issue, data, np.sum(work.fills, axis=0)]
    )
    ahead = blocks.outstanding
    both = load + multiply + costs.barrier
    beside = np.maximum(issue + multiply, load / np.maximum(ahead, 1.0))
    stage = np.where(ahead > 0, beside, both)
    stores = work.results * blocks.structure.tiles[-1].elements / WARP * costs.store / warps
    first = np.where(ahead > 0, load + multiply, both)
    cycles = costs.start + first + (blocks.share - 1) * stage + stores
    return np.asarray(cycles / clock)


def _latency(result: BatchPrediction, machine: Machine, work: _Work) -> np.ndarray:
    """Cycles until a copy arrives: from the L2 cache, or for its misses from memory."""
    costs, levels = machine.gpu, machine.levels
    if len(levels) < 3:
        return np.full(len(work.copying), costs.memory_latency)
    asked = np.maximum(result.bytes_in[levels[1].name] * work.waves.active, 1.0)
    missed = np.minimum(1.0, result.bytes_in[levels[2].name] / asked)
    return np.asarray(costs.l2_latency + missed * (costs.memory_latency - costs.l2_latency))


def _clearing(blocks: Blocks, machine: Machine) -> np.ndarray:
    """Seconds to zero the output ahead of a kernel that adds to it."""
    op = blocks.structure.destination
    wide = machine.levels[1].write_bandwidth
    return np.where(blocks.parts > 1, machine.gpu.clear + op.origin * op.size / wide, 0.0)


def _note(
    result: BatchPrediction, machine: Machine, work: _Work, issue: np.ndarray, latency: np.ndarray
) -> None:
    """What :func:`explain` puts into words."""
    notes, blocks, waves = result.notes, work.blocks, work.waves
    for number, tile in enumerate(blocks.structure.tiles[:-1]):
        values, where = np.unique(blocks.padding[number], return_inverse=True)
        found = [tile.conflicts(int(v), blocks.unit.architecture) for v in values]
        notes[f"conflicts {number}"] = np.array(found)[where]
        notes[f"piece {number}"] = blocks.pieces[number]
    notes["latency"] = latency > issue
    notes["ahead"] = blocks.outstanding
    notes["blocks"], notes["waves"] = blocks.grid, waves.count
    notes["units"] = np.full(len(latency), float(machine.levels[0].units))
    notes["together"], notes["parts"] = waves.together, blocks.parts
    notes["cleared"] = _clearing(blocks, machine)


def explain(result: BatchPrediction, row: int, sources: list[str]) -> tuple[tuple[str, str], ...]:
    """What a row of a batch owes to banks, stages, widths, waves and parts.

    Args:
        result: of a CUDA machine; one of another has nothing to say.
        row: which schedule.
        sources: names of the tensors, in the intrinsic's order.

    Returns:
        pairs: the term (as ``"shared read"``), and the reason in words.
    """
    if not result.notes:
        return ()
    said = {name: float(values[row]) for name, values in result.notes.items()}
    inner = next(iter(result.read))
    found = []
    for number, name in enumerate(sources):
        if said[f"conflicts {number}"] > 1:
            factor = said[f"conflicts {number}"]
            found.append((f"{inner} read", f"bank conflicts of `{name}` reads: {factor:.2g}x"))
    if said["latency"]:
        ahead = said["ahead"]
        hidden = f"{ahead:.0f} stages ahead" if ahead > 1 else "one stage ahead"
        text = f"latency of copies, {hidden if ahead else 'not hidden by another stage'}"
    else:
        narrow = min(range(len(sources)), key=lambda n: said[f"piece {n}"])
        piece = said[f"piece {narrow}"]
        text = f"instructions of copies, those of `{sources[narrow]}` {piece:.0f} bytes wide"
    found.append(("staging", text))
    places = said["waves"] * said["together"] * said["units"]
    share = said["blocks"] / places if places else 1.0
    found.append(
        ("intrinsic compute", f"{said['blocks']:.0f} blocks fill {share:.0%} of their waves")
    )
    if said["parts"] > 1:
        text = f"{said['parts']:.0f} parts of the reduction added by atomics"
        found.append((f"{list(result.read)[1]} write", text))
        found.append(("launch", f"zeroing the output for them: {said['cleared'] * 1e6:.2g} us"))
    return tuple(found)
