"""Copies of operands into and out of their staged form, as the plan places them.

A copy is a loop over the staged elements: as many of its last dimensions as can be vectorized move
in one step, the others are divided among the cores.
"""

from __future__ import annotations

from math import prod

import numpy as np

from amos.machine.machine import Machine
from amos.perfmodel.traffic import CoreNest, LoopNestBatch
from amos.plan.cpu_copies import CopyBlocks
from amos.plan.operand import Operand

#: Cycles of reading one element that does not move with its neighbours, and of an instruction of
#: a copy that moves whole vectors, as a share of ``Costs.serial``: 0.20 and 0.24 on two CPUs.
READ = 0.2
#: Elements of the longest step of a copy that LLVM unrolls, half as many if finding one takes
#: divisions.
COPIED = 16
#: Instructions on single elements that a core finishes in a cycle.
SCALARS_PER_CYCLE = 2.0


def copies(machine: Machine, nest: CoreNest, cores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predict the seconds of copying, and the parallel regions of the whole kernel."""
    structure, blocks, rows = nest.steps.structure, nest.steps.blocks, len(nest.steps)
    loops, seconds = blocks.loops, np.zeros(rows)
    # Compilers run a loop of one step where it stands, whatever it is annotated with.
    regions = np.where(blocks.ranges > 1, 1.0, 0.0)
    if machine.cached and blocks.partial > 1:
        # Halvings, each of which depends on the one before it as a call does.
        latency = machine.peak(structure.mapping.intrinsic.name).latency
        waits = np.log2(blocks.partial) * latency
        seconds += nest.steps.padded * loops.parts * waits / cores
    for op in structure.operands:
        if not op.copied:
            continue
        if op.written:
            is_made = np.ones(rows, dtype=bool)
            first, times, shared = np.ones(rows, dtype=bool), np.ones(rows), blocks.output_steps
            once = np.full(rows, prod(dim.extent for dim in op.dims))
            cycles: np.ndarray | float = _store_cycles(op, machine)
        else:
            copy = blocks.copies[op.name]
            is_made = copy.is_made
            first, once, shared = copy.ahead, copy.elements, copy.shared_steps
            times = np.where(first, 1.0, np.ceil(loops.steps // copy.share / cores) * cores)
            cycles = _cycles(op, nest.steps, machine, copy)
        # Copies inside the nest are made by the cores that run it.
        workers = np.where(first, np.minimum(machine.cores, shared), cores)
        reach = _reach(machine, workers)
        elements, origin = times * once, op.origin * op.wider
        # A copy that is made tile by tile overwrites the last tile.
        placed = np.where(first, elements + origin, once * workers)
        streaming = _streaming(elements * op.size, reach, placed * op.size)
        streaming += _streaming(origin * op.size, reach, np.where(first, placed, origin) * op.size)
        moving = np.maximum(streaming, elements * cycles / machine.clock / workers)
        seconds += np.where(is_made, moving, 0.0)
        regions += is_made & first & (shared > 1)
    out = structure.destination
    if machine.cached and out.scalar_instructions:
        seconds += out.origin * out.scalar_instructions / SCALARS_PER_CYCLE / machine.clock / cores
    if nest.steps.parts is not None:
        seconds += np.where(loops.parts > 1, _sums(structure.destination, loops.parts, machine), 0)
    return seconds, regions


def _sums(op: Operand, parts: np.ndarray, machine: Machine) -> np.ndarray:
    """Predict the seconds in which one core reads every part's accumulators to add them up."""
    size = parts * (op.size * prod(dim.extent for dim in op.dims))
    return _streaming(size, _reach(machine, np.ones(len(size))), size)


def _streaming(
    size: np.ndarray | float, reach: list[tuple[np.ndarray, np.ndarray]], placed: np.ndarray
) -> np.ndarray:
    """Predict the seconds of moving bytes through the innermost memory that fits ``placed``."""
    fits = [room >= placed for room, _ in reach]
    rates = [rate for _, rate in reach]
    seconds: np.ndarray = size / np.select(fits, rates)
    return seconds


def _reach(machine: Machine, cores: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each level's bytes, and bytes per second, of all the cores together."""
    alone, levels = np.ones(len(cores)), []
    for level in machine.levels:
        groups = np.minimum(cores, level.units)
        read, write = (level.rate(groups, alone, write=out) for out in (False, True))
        room = groups * (level.capacity or np.inf)
        levels.append((room, np.minimum(read, write) * groups))
    return levels


def _store_cycles(op: Operand, machine: Machine) -> float:
    """Predict the cycles of storing one element of the destination; 0 if it moves in a run."""
    if op.copy == "run":
        return 0.0
    costs = machine.costs
    return costs.serial * (1.0 + READ) * op.live + costs.find * op.divisions


def _cycles(
    op: Operand, steps: LoopNestBatch, machine: Machine, copy: CopyBlocks
) -> np.ndarray | float:
    """Predict the cycles of one element of a source that moves alone; 0 for others.

    Runs move as vectors, but element by element in steps over several runs that padding interrupts.
    Otherwise a short step is unrolled, with one test and one set of divisions. The divisions are
    the same for all steps of the last dimensions, unless the enclosing loops are fused and move
    these, which takes several divisions for each step. A long step is a loop over elements, each of
    which is located and tested separately.
    """
    costs, width, tail = machine.costs, copy.element_width, copy.element_tail_elements
    finding_each = costs.find * op.divisions
    if op.copy == "run":
        if copy.strided:
            return 0.0  # in whole vectors, whatever the length of a row
        parted = (op.padded > 0) & (width > np.prod(copy.extents[op.padded :], axis=0))
        return np.where(parted & ~copy.in_vectors, costs.serial, 0.0)
    if op.copy == "rows":
        return np.asarray((costs.find + costs.serial + finding_each) / width)
    # Where only positions move the last dimension, the divisions of fused loops are the same for
    # all steps of it.
    last = op.dims[op.leading - 1].terms if op.leading else ()
    even = op.leading > 0 and all(n < steps.spatial for n, _ in last)
    once = np.where(
        even | (machine.cached & ~copy.ahead), finding_each * width / tail, finding_each
    )
    # Lanes of several fused windows leave the tensor one by one.
    tests = costs.find * max(op.divisions, 1)
    unrolled = (tests / width if op.guarded else 0.0) + once
    short = COPIED / 2 if op.divisions else COPIED
    # Vectors of short rows are assembled row by row.
    single = (width > short) | (op.copy == "pieces")
    finding = np.where(single, costs.serial * op.live + finding_each, unrolled)
    read = READ * costs.serial
    cycles: np.ndarray = finding + read * op.live
    # Never slower than locating elements one by one, whatever its fitted cost.
    permuted = np.minimum(copy.vector_instructions * read, cycles / 2)
    return np.where(copy.in_vectors, permuted, cycles)
