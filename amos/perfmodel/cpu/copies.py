"""Copies of operands into and out of their staged form.

A copy is a loop over the staged elements: as many of its last dimensions as can be
vectorized move at a step, the rest is shared out to the cores.
"""

from __future__ import annotations

from math import prod

import numpy as np

from amos.machine.limits import CpuLimits
from amos.machine.machine import Machine
from amos.perfmodel.traffic import CoreNest, LoopNestBatch
from amos.plan.cpu_plan import partial_sums
from amos.plan.operand import Operand

#: Elements of a step that no schedule bounds.
_WIDTH = 64


def copies(machine: Machine, nest: CoreNest, cores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seconds spent copying, and the parallel regions of the whole kernel."""
    structure, rows = nest.steps.structure, len(nest.steps)
    seconds = np.zeros(rows)
    # Compilers run a loop of one step where it stands, whatever it is annotated with.
    regions = np.where(nest.steps.parallel > 1, 1.0, 0.0)
    reach = _reach(machine, cores)
    loops = nest.steps.shared_loops
    intrinsic = structure.mapping.intrinsic
    if machine.cached and (partial := partial_sums(intrinsic)) > 1:
        # Halvings, each of which waits for the one before it as a call does.
        waits = np.log2(partial) * machine.peak(intrinsic.name).latency
        seconds += nest.steps.padded * loops.parts * waits / cores
    for op in structure.operands:
        if not op.copied:
            continue
        first, times = np.ones(rows, dtype=bool), np.ones(rows)
        extents = [np.full(rows, dim.extent) for dim in op.dims]
        if op.choice:
            # Without a loop to be inside of, all of it is staged ahead.
            first = nest.steps.ahead[op.name] | (loops.steps == 1)
            share = np.ones(rows, dtype=np.int64)
            if machine.cached:
                limits = CpuLimits.of(machine)
                share = loops.copied_together(op.dims, op.size, limits)
            whole, there = loops.whole(op.dims), loops.covered(op.dims, share)
            extents = [np.where(first, a, b) for a, b in zip(whole, there, strict=True)]
            times = np.where(first, 1.0, np.ceil(loops.steps // share / cores) * cores)
        once = np.prod(extents, axis=0, dtype=float)
        elements, origin = times * once, op.origin * op.wider
        # What is staged tile by tile takes the place of the last tile.
        placed = np.where(first, elements + origin, once * cores)
        streaming = _streaming(elements * op.size, reach, placed * op.size)
        streaming += _streaming(origin * op.size, reach, np.where(first, placed, origin) * op.size)
        cycles = _cycles(op, nest.steps, machine, extents, first)
        seconds += np.maximum(streaming, elements * cycles / machine.clock / cores)
        regions += first
    if nest.steps.parts is not None:
        seconds += np.where(loops.parts > 1, _sums(structure.destination, loops.parts, machine), 0)
    return seconds, regions


def _sums(op: Operand, parts: np.ndarray, machine: Machine) -> np.ndarray:
    """Reading the accumulators of every part, by one core, to add them up."""
    size = parts * (op.size * prod(dim.extent for dim in op.dims))
    return _streaming(size, _reach(machine, np.ones(len(size))), size)


def _streaming(
    size: np.ndarray | float, reach: list[tuple[np.ndarray, np.ndarray]], placed: np.ndarray
) -> np.ndarray:
    """Moving so many bytes through the innermost memory that fits those placed, shared by cores."""
    fits = [room >= placed for room, _ in reach]
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
    steps: LoopNestBatch,
    machine: Machine,
    extents: list[np.ndarray],
    first: np.ndarray,
) -> np.ndarray:
    """Cycles of one element, if it does not move with its neighbours; else 0.

    Runs move by themselves, but element by element in steps over several that padding parts.
    Else a short step is unrolled, which leaves one test and one set of divisions for it,
    the divisions being the same for all steps of the last dimensions unless the loops
    around are fused, which takes several for each step if they move these. A long one is
    a loop over elements, each found and tested by itself.

    Args:
        machine: its constants.
        extents: of what one copy covers, along each dimension.
        first: bool: the copy is made ahead of the nest.
    """
    costs, batch = machine.costs, steps.batch
    tail = _spanned(extents, len(op.dims) - op.leading + 1, first)
    # The largest power of two that divides it.
    width = np.minimum(tail & -tail, _WIDTH if batch.copy_width is None else batch.copy_width)
    found = costs.find * op.divisions
    if op.copy == "run":
        parted = (op.padded > 0) & (width > np.prod(extents[op.padded :], axis=0))
        if op.vectors and batch.vectors is not None:
            parted &= ~batch.vectors
        return np.where(parted, costs.serial, 0.0)
    if op.copy == "rows":
        return np.asarray((costs.find + costs.serial + found) / width)
    # Where only positions move the last dimension, what fused loops are taken apart for is
    # the same for all steps of it.
    last = op.dims[op.leading - 1].terms if op.leading else ()
    even = op.leading > 0 and all(n < steps.spatial for n, _ in last)
    once = np.where(even | (machine.cached & ~first), found * width / tail, found)
    # Lanes of several fused windows leave them one by one.
    tests = costs.find * max(op.divisions, 1)
    unrolled = (tests / width if op.guarded else 0.0) + once
    short = costs.copied / 2 if op.divisions else costs.copied
    # Vectors of short rows, and of results on their way out, are put together one by one.
    single = (width > short) | op.written | (op.copy == "pieces")
    finding = np.where(single, costs.serial * op.live + found, unrolled)
    cycles: np.ndarray = finding + costs.read * op.live
    if op.vectors and batch.vectors is not None:
        # Never slower than finding elements one by one, whatever that was fitted to.
        together = np.minimum(op.vectors * costs.read, cycles / 2)
        cycles = np.where(batch.vectors, together, cycles)
    return cycles


def _spanned(extents: list[np.ndarray], count: int, first: np.ndarray) -> np.ndarray:
    """Elements of the last ``count`` loops of a copy; tile by tile it has no loops of one step."""
    spanned, left = np.ones(len(first)), np.full(len(first), count)
    for extent in reversed(extents):
        spanned *= np.where(left > 0, extent, 1)
        left -= first | (extent > 1)
    return spanned.astype(np.int64)
