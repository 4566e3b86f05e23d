"""Copies of operands into and out of their staged form.

A copy is a loop over the staged elements: as many of its last dimensions as can be
vectorized move at a step, the rest is shared out to the cores.
"""

from __future__ import annotations

from math import prod

import numpy as np

from amos.machine.limits import CpuLimits
from amos.machine.machine import Costs, Machine
from amos.perfmodel.traffic import CoreNest, pick
from amos.plan.copy_places import fits_beside, touched_steps
from amos.plan.cpu_plan import partial_sums
from amos.plan.structure import LoopBatch, Operand, Structure

__all__ = ["copies", "spread"]

#: Elements of a step that no schedule bounds.
_WIDTH = 64
#: By what a number of steps in single precision may be off.
_EVEN = 1e-3


def copies(
    structure: Structure, machine: Machine, batch: LoopBatch, nest: CoreNest, cores: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds spent copying, and the parallel regions of the whole kernel."""
    seconds = np.zeros(len(batch))
    # Compilers run a loop of one step where it stands, whatever it is annotated with.
    regions = np.where(nest.steps.parallel > 1, 1.0, 0.0)
    ahead = dict(zip(structure.choices, batch.ahead.T, strict=True))
    region = nest.steps.region
    parts = np.ones(len(batch)) if nest.steps.parts is None else nest.steps.parts
    reach = _reach(machine, cores)
    intrinsic = structure.mapping.intrinsic
    if machine.cached and (partial := partial_sums(intrinsic)) > 1:
        # Halvings, each of which waits for the one before it as a call does.
        waits = np.log2(partial) * machine.peak(intrinsic.name).latency
        seconds += nest.steps.padded * parts * waits / cores
    for op in (*structure.sources, structure.destination):
        if not op.copied:
            continue
        count = np.full(len(batch), float(op.copied))
        if op.choice:
            # Loops that were made longer stage padding for their last tiles.
            for loop in op.indexed:
                if loop < nest.steps.spatial:
                    count *= nest.steps.stretch[loop]
        outside = np.zeros(len(batch), dtype=int)
        whole = _seconds(op, count, nest, batch, machine, cores, reach, outside, ahead=True)
        if op.choice:
            place, box = _place(op, machine, nest, cores)
            count = pick(nest.elements(op), place) * pick(nest.trips, place) * cores * box
            tiled = _seconds(op, count, nest, batch, machine, cores, reach, place, ahead=False)
            # Without a loop to be inside of, all of it is staged ahead.
            first = ahead[op.name] | ((region == 0) & (parts == 1))
            seconds += np.where(first, whole, tiled)
            regions += first
        else:
            seconds += whole
            regions += 1
    if nest.steps.parts is not None:
        seconds += np.where(parts > 1, _sums(structure.destination, parts, machine), 0.0)
    return seconds, regions


def _sums(op: Operand, parts: np.ndarray, machine: Machine) -> np.ndarray:
    """Reading the accumulators of every part, by one core, to add them up."""
    size = parts * (op.size * prod(dim.extent for dim in op.dims))
    return _streaming(size, _reach(machine, np.ones(len(size))))


def spread(op: Operand, nest: CoreNest, rows: np.ndarray) -> np.ndarray:
    """How much more a core copies than it needs, if what it needs is one range of steps.

    What is copied is a box: every outer step that the range has a part of, and where these
    are several, all of the loops inside.

    Args:
        op: the source.
        nest: the nest of one core.
        rows: which schedules.
    """
    steps, there = nest.steps, nest.steps.shared[:, rows]
    shared = np.where(there, steps.outer[: steps.spatial, rows], 1.0).astype(np.int64)
    own = np.where(there, nest.outer[: steps.spatial, rows], 1.0)
    share = np.rint(own.prod(axis=0)).astype(np.int64)
    more, indexed = np.ones(len(rows)), steps.indexes(op)
    for position, touched in enumerate(touched_steps(shared, share)):
        moved = indexed[steps.loop[position, rows]]
        more *= np.where(moved, touched / own[position], 1.0)
    return more


def _place(
    op: Operand, machine: Machine, nest: CoreNest, cores: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Depth at which a copy stands that is made where it is used, and what it is too large by.

    It is made once for a core if the parallel steps divide evenly among the cores and
    what the core needs fits half of its private cache, else in every parallel step.
    What goes to a scratchpad is always copied there in every parallel step.
    """
    each: np.ndarray = nest.steps.region
    box = np.ones(len(each))
    if not machine.cached:
        return each, box
    cache = CpuLimits.of(machine).cache
    held = nest.elements(op)[0] * op.size
    once = fits_beside(held, cache) & (nest.steps.parallel % cores == 0)
    # Ranges of a single loop are whole steps of it.
    rows = np.flatnonzero(once & (nest.steps.shared.sum(axis=0) > 1))
    more = spread(op, nest, rows)
    once[rows] = fits_beside(held[rows] * more, cache)
    box[rows] = np.where(once[rows], more, 1.0)
    return np.where(once, 0, each), box


def _tail(op: Operand, nest: CoreNest, depth: np.ndarray, *, ahead: bool) -> np.ndarray | float:
    """Elements of the last staged dimension and of a fragment, that of padded tiles too."""
    lanes = op.fragment / op.size
    if not op.leading:
        return lanes
    dim, steps = op.dims[op.leading - 1], nest.steps
    if not dim.terms:
        return float(min(dim.reach + 1, dim.points, dim.extent)) * lanes
    points, reach = np.full(len(depth), float(dim.points)), np.full(len(depth), dim.reach + 1.0)
    for loop, step in dim.terms:
        cover = nest.cover(loop)
        if loop >= steps.spatial:
            # Parts of a split reduction find all of it staged ahead.
            all_steps = np.where(steps.loop == loop, steps.outer, 0.0).sum(axis=0)
            here = all_steps if ahead else pick(cover, depth)
        else:
            here = steps.extents[loop] * steps.stretch[loop]
            if not ahead:
                # Blocks have as many tiles as they run on average, but stage all of them.
                span = cover[steps.spatial]
                whole = span if steps.edges is None else span / steps.edges.tiles[loop]
                here = np.minimum(np.ceil(pick(cover, depth) / span - _EVEN) * whole, here)
        points *= here
        reach += (here - 1.0) * step
    return np.asarray(np.minimum(points, reach) * lanes)


def _seconds(
    op: Operand,
    elements: np.ndarray,
    nest: CoreNest,
    batch: LoopBatch,
    machine: Machine,
    cores: np.ndarray,
    reach: list[tuple[np.ndarray, np.ndarray]],
    depth: np.ndarray,
    *,
    ahead: bool,
) -> np.ndarray:
    """A copy shared out to all cores: bound by its instructions or by the memory."""
    streaming = _streaming((elements + op.origin) * op.size, reach)
    if op.copy == "run":
        return streaming
    inside = machine.cached and not ahead
    tail = _tail(op, nest, depth, ahead=ahead)
    cycles = _cycles(op, nest, batch, machine.costs, tail, inside=inside)
    if op.vectors and batch.vectors is not None:
        # Never slower than finding elements one by one, whatever that was fitted to.
        together = np.minimum(op.vectors * machine.costs.read, cycles / 2)
        cycles = np.where(batch.vectors, together, cycles)
    seconds: np.ndarray = np.maximum(streaming, elements * cycles / machine.clock / cores)
    return seconds


def _streaming(size: np.ndarray, reach: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Moving so many bytes through the innermost memory that they fit, each core its share."""
    fits = [room >= size for room, _ in reach]
    rates = [rate for _, rate in reach]
    seconds: np.ndarray = size / np.select(fits, rates)
    return seconds


def _reach(machine: Machine, cores: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each level, the bytes that the cores together have there and move in a second."""
    alone, found = np.ones(len(cores)), []
    for level in machine.levels:
        groups = np.minimum(cores, level.units)
        read, write = (level.rate(groups, alone, write=out) for out in (False, True))
        room = groups * (level.capacity or np.inf)
        found.append((room, np.minimum(read, write) * groups))
    return found


def _cycles(
    op: Operand,
    nest: CoreNest,
    batch: LoopBatch,
    costs: Costs,
    tail: np.ndarray | float,
    *,
    inside: bool,
) -> np.ndarray:
    """Cycles of one element that does not move with its neighbours.

    A short step is unrolled, which leaves one test and one set of divisions for it,
    the divisions being the same for all steps of the last dimensions unless the loops
    around are fused, which takes several for each step if they move these. A long one is
    a loop over elements, each found and tested by itself.
    """
    whole = np.broadcast_to(np.rint(tail), len(batch)).astype(int)
    # The largest power of two that divides it.
    width = np.minimum(whole & -whole, _WIDTH if batch.copy_width is None else batch.copy_width)
    found = costs.find * op.divisions
    if op.copy == "rows":
        return np.asarray((costs.find + costs.serial + found) / width)
    # Where only positions move the last dimension, what fused loops are taken apart for is
    # the same for all steps of it.
    last = op.dims[op.leading - 1].terms if op.leading else ()
    rows = inside or (op.leading > 0 and all(n < nest.steps.spatial for n, _ in last))
    once = found * width / whole if rows else found
    # Lanes of several fused windows leave them one by one.
    tests = costs.find * max(op.divisions, 1)
    unrolled = (tests / width if op.guarded else 0.0) + once
    short = costs.copied / 2 if op.divisions else costs.copied
    finding = np.where(width <= short, unrolled, costs.serial * op.live + found)
    cycles: np.ndarray = finding + costs.read * op.live
    return cycles
