"""The hierarchical model over many schedules of one mapping at once.

Every quantity is an array with one row a schedule; there is no loop over
schedules. :mod:`amos.perfmodel.model` says what the terms mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from amos.errors import MachineError
from amos.machine.machine import Level, Machine
from amos.perfmodel.cpu.compiler import register_pressure
from amos.perfmodel.cpu.copies import copies
from amos.perfmodel.cpu.reads import scatter_penalty
from amos.perfmodel.cpu.sets import conflict_bytes
from amos.perfmodel.cpu.stores import exchange_seconds
from amos.perfmodel.terms import BatchPrediction, concatenate, smooth_maximum
from amos.perfmodel.traffic import (
    CoreNest,
    LoopNestBatch,
    first_fitting_depth,
    flat_positions,
    pick,
    pick_at,
)
from amos.plan.cpu_blocks import CpuBlocks
from amos.plan.operand import PAGE, Operand
from amos.plan.structure import LoopBatch, Structure
from amos.plan.target import target_of

#: Rows that are evaluated at once.
_CHUNK = 4096
#: Number of the first level beyond a core's own caches, whose lines have a long latency.
_BEYOND = 2
#: Usable share of a cache that cores share: other processes and virtual machines fill it too
#: (`docs/evidence.md`, shared caches).
USABLE_SHARE = 0.5
#: Number of terms of starting and of stalled calls, before those of the levels.
_BUSY = 2

#: ``amos`` is the paper's equation with warm caches, ``amos+`` adds terms that it lacks.
MODELS = ("amos", "amos+")


def evaluate(
    structure: Structure, machine: Machine, batch: LoopBatch, model: str = "amos+"
) -> BatchPrediction:
    """Predict every schedule of a batch by one of :data:`MODELS`, or raise MachineError."""
    if model not in MODELS:
        raise MachineError(f"model {model!r}: expected one of {', '.join(MODELS)}")
    predict, refined = target_of(machine, structure).predict, model == "amos+"
    if len(batch) <= _CHUNK:
        return predict(structure, machine, batch, refined=refined)
    # In equal pieces whose arrays stay in the cache.
    size = -(-len(batch) // -(-len(batch) // _CHUNK))
    pieces = (batch.rows(slice(n, n + size)) for n in range(0, len(batch), size))
    return concatenate([predict(structure, machine, piece, refined=refined) for piece in pieces])


def predict_cores(
    structure: Structure, machine: Machine, batch: LoopBatch, *, refined: bool
) -> BatchPrediction:
    """Predict every schedule of a batch on cores under memory levels."""
    cpu = refined and machine.cached
    steps = LoopNestBatch(CpuBlocks.of(structure, machine, batch), cut_tiles=cpu)
    cores = np.minimum(machine.cores, steps.parallel)
    line = machine.line if refined else 1
    nest = CoreNest(steps, cores, line)
    shared: dict[int, CoreNest] = {}
    if refined:
        factor = register_pressure(machine, nest) * share_of_steps(steps) if machine.cached else 1.0
        terms = _predict_calls(machine, nest, cores, factor)
    else:
        latency = machine.peak(structure.mapping.intrinsic.name).latency
        terms = [nest.trips[-1] * steps.tile.prod(axis=0) * latency]
    result = BatchPrediction.empty(len(batch), machine.levels)
    result.compute[:] = np.max(terms, axis=0)
    most, room = _most_bytes(structure.operands, line), USABLE_SHARE if cpu else 1.0
    for number, level in enumerate(machine.levels):
        if number and most <= room * machine.levels[number - 1].capacity:
            continue  # Nothing crosses it: everything fits the inner level under any schedule.
        units = machine.cores if number == 0 else machine.levels[number - 1].units
        view = nest if units >= machine.cores else shared.get(units)
        groups = np.minimum(cores, units)
        if view is None:
            view = CoreNest(steps, groups if units > 1 else None, line)
            shared[units] = view
        _predict_level(
            result, view, machine, number, level, groups, cores, structure.operands, refined
        )
        read, write = result.read[level.name], result.write[level.name]
        # Reads and writes share the buffers of a cache.
        terms += [read + write] if cpu else [read, write]
    if refined:
        bound = _overlap(terms, machine, cpu)
        staging, regions = copies(machine, nest, cores)
        result.staging[:], result.launch[:] = staging, machine.launch * regions
        if machine.cached and machine.costs.exchange:
            result.exchange[:] = exchange_seconds(structure.destination, machine, nest, cores)
            # Part of the stalls overlaps with the other terms.
            bound = np.hypot(bound, result.exchange)
        seconds = bound + result.staging + result.launch
        for need, capacity in demands(machine, nest).values():
            seconds = np.where(need > capacity, np.inf, seconds)
    else:
        seconds = np.max(terms, axis=0)
    result.seconds[:] = seconds
    return result


def _overlap(terms: list[np.ndarray], machine: Machine, cpu: bool) -> np.ndarray:
    """Combine the seconds of simultaneous work, the outer levels of a CPU separately."""
    near = terms[: _BUSY + _BEYOND] if cpu else terms
    bound = smooth_maximum(near, machine.costs.overlap)
    if len(terms) > len(near):
        far = np.max(terms[len(near) :], axis=0)
        bound = smooth_maximum([bound, far], machine.costs.far)
    return bound


def find_overflows(structure: Structure, machine: Machine, batch: LoopBatch) -> list[str]:
    """Describe what the first schedule of a batch places beyond the capacity of a memory."""
    steps = LoopNestBatch(CpuBlocks.of(structure, machine, batch))
    nest = CoreNest(steps, np.minimum(machine.cores, steps.parallel), machine.line)
    return describe_overflows(machine, demands(machine, nest))


def describe_overflows(machine: Machine, needs: Mapping[str, tuple[np.ndarray, int]]) -> list[str]:
    """Describe what the first schedule needs beyond the capacities; see :func:`demands`."""
    lines = []
    for name, (need, capacity) in needs.items():
        if need[0] > capacity:
            what = "fragments" if name == "registers" else "bytes"
            lines.append(
                f"{name} of {machine.name} overflow: {need[0]:.0f} {what} are placed there, "
                f"{capacity} fit, {need[0] - capacity:.0f} too many"
            )
    return lines


def demands(machine: Machine, nest: CoreNest) -> dict[str, tuple[np.ndarray, int]]:
    """Return what a schedule places in registers and scratchpads, and their capacities.

    Registers are counted in fragments: the accumulators of a register tile, the
    fragments of the source that changes least, and one of another source. A
    scratchpad holds the sources that are staged tile by tile, in bytes.

    Returns:
        memory → (need of each schedule, capacity); unlimited memories are left out.
    """
    structure, batch = nest.steps.structure, nest.steps.batch
    needs: dict[str, tuple[np.ndarray, int]] = {}
    if registers := structure.mapping.intrinsic.registers:
        needs["registers"] = nest.steps.blocks.registers, registers
    pads = [level for level in machine.levels if level.scratchpad]
    if pads:
        need = np.zeros(len(batch))
        for op in structure.sources:
            if op.choice:
                size = pick(nest.elements(op), nest.steps.region) * op.size
                copy = nest.steps.blocks.copies[op.name]
                need = need + np.where(copy.is_made & ~copy.scheduled_ahead, size, 0.0)
        needs[pads[0].name] = need, pads[0].capacity
    return needs


def _predict_calls(
    machine: Machine, nest: CoreNest, cores: np.ndarray, factor: np.ndarray | float
) -> list[np.ndarray]:
    """Predict the seconds in which the busiest core starts calls, and in which calls stall."""
    structure = nest.steps.structure
    peak, steps = machine.peak(structure.mapping.intrinsic.name), nest.steps
    chains = steps.fragments(structure.destination)
    # Calls of the next tiles start before those of this one finish.
    length = nest.trips[-1] / nest.trips[steps.begin]
    ahead = 1.0 + machine.costs.window / (length * chains)
    # Fused parallel steps are divided among the cores as evenly as possible.
    calls = steps.padded * float(structure.extents[steps.spatial :].prod())
    started = calls / steps.parallel * np.ceil(steps.parallel / cores)
    started = started * factor
    waiting = started * (peak.latency / (chains * ahead))
    if steps.edges is not None:
        # A cut tile stalls as long as a whole one.
        waiting = waiting * steps.edges.tiles.prod(axis=0)
        started = started * (steps.edges.tiles * steps.edges.steps).prod(axis=0)
    return [started * (peak.interval * machine.costs.dense), waiting]


def floor_of_calls(structure: Structure, machine: Machine) -> float:
    """Return the least seconds in which cores start the calls of a mapping.

    A schedule adds to them by padding, by spills and by an uneven division of the calls; it skips
    only reduction steps that read nothing but padding.
    """
    peak = machine.peak(structure.mapping.intrinsic.name)
    calls = float(prod(loop.extent for loop in (*structure.spatial, *structure.reduce)))
    if machine.cached:
        calls *= prod(border.live for border in structure.borders)
    return calls / machine.cores * peak.interval * machine.costs.dense


def floor_of_tiles(structure: Structure, machine: Machine, batch: LoopBatch) -> np.ndarray:
    """Return a lower bound of the seconds of schedules with the tiles and shared loops of a batch.

    The order of reductions, their unrolling and the copies of sources are undecided: registers
    spill nothing, padding is skipped wherever possible, only the nearest level is read, and nothing
    is copied. If reductions are divided, the batch has to decide all but the copies.

    Returns:
        one number a row; infinite where fragments do not fit the registers.
    """
    steps = LoopNestBatch(CpuBlocks.of(structure, machine, batch), cut_tiles=True)
    cores = np.minimum(machine.cores, steps.parallel)
    nest = CoreNest(steps, cores, machine.line)
    live = np.ones(len(batch))
    for border in structure.borders:
        single = (steps.tile[list(border.spatial)] == 1).all(axis=0)
        live = live * np.where(single, border.live, 1.0)
    near, groups = machine.levels[0], np.minimum(cores, machine.cores)
    moved = [_register_traffic(op, nest, is_floor=True) for op in structure.operands]
    alone = np.ones(len(batch))
    read = np.sum(moved[:-1], axis=0) / near.rate(groups, alone, write=False)
    write = moved[-1] / near.rate(groups, alone, write=True)
    bound = smooth_maximum(
        [*_predict_calls(machine, nest, cores, live), read + write], machine.costs.overlap
    )
    seconds = bound + machine.launch * (steps.blocks.ranges > 1)
    for need, capacity in demands(machine, nest).values():
        seconds = np.where(need > capacity, np.inf, seconds)
    return np.asarray(seconds)


def floor_of_loops(structure: Structure, machine: Machine, batch: LoopBatch) -> np.ndarray:
    """Return a lower bound of the seconds of schedules with the loops of a batch.

    Only the copies of sources are undecided; they take no time here and have the best order.
    """
    tiles = np.zeros_like(batch.ahead)
    batch = replace(batch, ahead=tiles, copied=~tiles)
    prediction = predict_cores(structure, machine, batch, refined=True)
    regions = CpuBlocks.of(structure, machine, batch).ranges > 1
    copies_seconds = prediction.staging + prediction.launch
    return np.asarray(prediction.seconds - copies_seconds + machine.launch * regions)


def share_of_steps(steps: LoopNestBatch) -> np.ndarray:
    """Return the share of the reduction's steps that run: the plan skips some in the padding."""
    share = np.ones(len(steps))
    for border, skip in zip(steps.structure.borders, steps.blocks.skips, strict=True):
        share = share * np.where(skip >= 0, border.live, 1.0)
    return share


def _most_bytes(operands: tuple[Operand, ...], line: int) -> float:
    """Return the bytes of all operands if each piece of them has a line of its own."""
    return sum(
        op.size * prod(dim.extent for dim in op.dims) * max(1.0, line / op.fragment)
        for op in operands
    )


def _predict_level(
    result: BatchPrediction,
    nest: CoreNest,
    machine: Machine,
    number: int,
    level: Level,
    groups: np.ndarray,
    cores: np.ndarray,
    operands: tuple[Operand, ...],
    refined: bool,
) -> None:
    """Predict the traffic of one level and its time; add a column to the result."""
    if number == 0:
        depth = np.full(len(nest.steps), nest.count)
        moved = [_register_traffic(op, nest) for op in operands]
    else:
        depth, moved = _cache_traffic(nest, machine, number - 1, operands, refined)
    name = level.name
    reads = np.stack(moved[:-1])
    group_cores = np.ceil(cores / groups)
    result.bytes_in[name], result.bytes_out[name] = reads.sum(axis=0), moved[-1]
    result.source[name] = reads.argmax(axis=0)
    result.trips[name] = pick(nest.trips, depth)
    weighed = result.bytes_in[name]
    if refined and number > 0:
        # Calls wait for packed sources, which were not read before.
        ordered = [op.packed and machine.cached for op in operands[:-1]]
        weighed = np.where(ordered, machine.costs.sweep, 1.0) @ reads
        if machine.maker:
            more = [scatter_penalty(op, machine, nest) for op in operands[:-1]]
            weighed = weighed + (np.stack(more) * reads).sum(axis=0)
    result.read[name] = weighed / level.rate(groups, group_cores, write=False)
    result.write[name] = result.bytes_out[name] / level.rate(groups, group_cores, write=True)


def _cache_traffic(
    nest: CoreNest, machine: Machine, inner: int, operands: tuple[Operand, ...], refined: bool
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the depth whose data fits the inner memory, and each operand's bytes that cross it."""
    level, used = machine.levels[inner], nest.working_set(operands)
    cpu = refined and machine.cached
    # The share of other processes in a shared cache is unknown.
    room = level.capacity * (USABLE_SHARE if cpu and level.units < machine.cores else 1.0)
    depth, moved = first_fitting_depth(used, room), []
    # The nearest cache has the sets of a page, with several ways.
    sets = cpu and not inner and level.capacity > PAGE
    here = flat_positions(depth)
    for op in operands:
        more = conflict_bytes(op, nest) if sets else None
        own = depth if more is None else first_fitting_depth(used + more, room)
        where = here if more is None else flat_positions(own)
        traffic = pick_at(nest.traffic(op, windows=refined), where)
        # Operands that fit as a whole stay in the inner memory between runs.
        moved.append(np.where(own == 0, 0.0, traffic))
    return depth, moved


def _register_traffic(operand: Operand, nest: CoreNest, *, is_floor: bool = False) -> np.ndarray:
    """Return the bytes loaded into registers: each distinct fragment once a step.

    A fragment that is replicated into a whole register takes as long as loading a whole register.
    """
    # A loop reloads nothing if neither it nor an inner loop moves to another fragment.
    moves = nest.moves(operand)
    has_moved = np.logical_or.accumulate(moves[::-1])[::-1]
    if is_floor:
        has_moved[nest.steps.begin :] = moves[nest.steps.begin :]
    steps = np.where(has_moved, nest.outer, 1.0).prod(axis=0, dtype=float)
    size = operand.fragment * operand.copies
    edges = nest.steps.edges
    cut_share = 1.0 if edges is None else edges.fragments(operand)
    return np.asarray(nest.steps.fragments(operand) * cut_share * steps * size)
