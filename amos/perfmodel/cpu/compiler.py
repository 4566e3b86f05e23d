"""Fragments that compilers keep in registers, and the cost of spilling some.

LLVM's behaviour was observed in the machine code of the samples that constants are fitted on
(``amos reproduce fig5``).
"""

from __future__ import annotations

from itertools import product
from math import gcd

import numpy as np

from amos.machine.machine import Machine
from amos.perfmodel.traffic import CoreNest

#: Loads and calls of the longest loop that LLVM unrolls completely: it unrolls one of 305, and none
#: of 369.
UNROLLED = 310


def block_steps(nest: CoreNest) -> np.ndarray:
    """Count the steps of the reduction in one block of straight-line code: schedules.

    The schedule unrolls some, and compilers unroll whole loops around them, from the innermost
    one outward, while the loads and calls of the result are at most :data:`UNROLLED`.
    """
    blocks = nest.steps.blocks
    size = np.sum([nest.steps.fragments(op) for op in nest.steps.structure.operands], axis=0)
    steps = blocks.unrolled.astype(float)
    whole = np.ones(len(blocks), dtype=bool)
    for trips in blocks.reduce_steps[::-1]:
        whole = whole & (steps * trips * size <= UNROLLED)
        steps = np.where(whole, steps * trips, steps)
    return steps


def reused_fragments(nest: CoreNest, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the fragments of sources that one step of the reduction keeps for a later one.

    Where windows overlap, steps of the innermost reduction read some of the same
    fragments. If the steps are one block of code, compilers load such a fragment once
    and keep it, whether or not a register is free.

    Returns:
        the fragments, and how many stores and loads of them a step makes if all of them
        wait in memory.
    """
    fragments, moves = np.zeros((2, len(nest.steps)))
    structure, spatial = nest.steps.structure, nest.steps.spatial
    last = nest.steps.batch.reduce[:, -1]
    for op in structure.sources:
        for dim in op.dims[: op.leading]:
            windows = [(n, step) for n, step in dim.terms if n >= spatial]
            tiles = [(n, pace) for n, pace in dim.terms if n < spatial]
            for (loop, step), (moved, pace) in product(windows, tiles):
                # After ``later`` steps another position of the tile reads the same fragment.
                later = pace // gcd(step, pace)
                tile = nest.steps.tile[moved]
                gone = step * later // pace
                overlap = np.maximum(tile - gone, 0.0)
                here = (last == loop) & (steps > later)
                count = np.where(here, overlap / tile * nest.steps.fragments(op), 0.0)
                fragments = fragments + count
                # Each later step loads it, the first one stores it.
                loads = np.minimum(steps, structure.extents[loop]) - later
                stores = 1.0 + (loads - 1.0) * np.minimum(gone / np.maximum(overlap, 1.0), 1.0)
                moves = moves + count * (loads + stores)
    return fragments, moves / steps


def spilled_accumulators(nest: CoreNest) -> np.ndarray:
    """Return the accumulators that are stored and loaded every other step for want of a register.

    A multiply-add of x86 may overwrite any of its three sources, and LLVM chooses one that is dead
    afterwards. Where each call has a broadcast of its own, it overwrites the broadcast:
    accumulators are in other registers after each step, which takes twice as many.
    """
    steps, intrinsic = nest.steps, nest.steps.structure.mapping.intrinsic
    moved = np.zeros(len(steps))
    if not intrinsic.overwrites_sources:
        return moved
    loaded = {statement.operand for statement in intrinsic.memory if statement.explicit}
    calls = steps.fragments(steps.structure.destination)
    for op in steps.structure.sources:
        if op.copies > 1 and op.name in loaded:
            single = np.clip(2 * calls + 1 - intrinsic.registers, 0, calls)
            moved = moved + np.where(steps.fragments(op) == calls, single, 0.0)
    return moved


def register_pressure(machine: Machine, nest: CoreNest) -> np.ndarray | float:
    """Return the factor by which calls are slower for fragments that the registers do not hold.

    The accumulators of a register tile always fit, as its space demands. Fragments that overlapping
    windows reuse may not: these are stored and loaded again. Where the tile leaves no register for
    the next fragments, some accumulators are, once per block of code.
    """
    steps, structure = nest.steps, nest.steps.structure
    registers = structure.mapping.intrinsic.registers
    if not registers or structure.mapping.intrinsic.tile_registers or not structure.reduce:
        # Tile registers have numbers, and no compiler moves them to memory.
        return 1.0
    live = steps.blocks.registers
    unrolled = block_steps(nest)
    windowed, moves = reused_fragments(nest, unrolled)
    spilled = np.clip(live + windowed - registers, 0.0, windowed) / np.maximum(windowed, 1.0)
    # With no register for the next fragment of each source, the accumulators of all calls that use
    # a reused fragment are spilled.
    accumulators = np.min([steps.fragments(op) for op in structure.sources], axis=0)
    full = live > registers - len(structure.sources)
    moves = spilled * moves * np.where(full, accumulators, 1.0)
    # Compilers load fragments ahead of their step, even if that spills registers.
    moves = moves + np.where(full, 2.0 / unrolled, 0.0)
    moves = moves + spilled_accumulators(nest)
    moves = moves / steps.fragments(structure.destination)
    return np.asarray(1.0 + machine.costs.reload * moves)
