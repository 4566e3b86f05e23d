"""Lines of the output: those that come too late, and those that cores take from each other."""

from __future__ import annotations

from math import gcd

import numpy as np

from amos.machine.machine import Machine
from amos.perfmodel.traffic import CoreNest, first_fitting_depth, pick_at, places
from amos.plan.operand import Operand

#: Bytes after which addresses fall into the same set of the nearest cache again: those of
#: a page, whose size bounds the sets of a cache that is looked up by virtual addresses.
PAGE = 4096


def unforeseen(operand: Operand, machine: Machine, nest: CoreNest) -> np.ndarray:
    """Share of the output's lines that are not there when they are written.

    Hardware follows sequences of stores and fetches the lines that come next. A core that
    goes on to other rows of the output comes back to the line fetched only later. Where rows
    lie a multiple of a page apart, all of them fall into few sets of the nearest cache, and
    one that has more rows to hold than ways has lost the line by then.

    Args:
        operand: the destination, whose dimensions are in the order of memory.
        machine: its nearest cache.
    """
    pitch, sets, far = operand.size, 0, []
    for dim in reversed(operand.dims):
        if pitch >= PAGE and dim.extent > 1:
            far.append(dim)
            # Number of places of a page at which rows begin.
            sets = sets or PAGE // gcd(int(pitch), PAGE)
        pitch *= dim.extent
    rows: np.ndarray | float = 1.0
    for dim in far:
        rows = rows * nest.along(dim)
    if isinstance(rows, float):
        return np.zeros(len(nest.steps))
    capacity_rows = sets * (machine.levels[0].capacity // PAGE)
    # Of the rows that are held together, one visit to each fetches one line too late.
    depth = first_fitting_depth(rows, capacity_rows)
    here = places(depth)
    lines = pick_at(nest.elements(operand), here) * operand.size / machine.line
    late = pick_at(rows, here) / np.maximum(lines, 1.0)
    share: np.ndarray = np.where(depth == 0, 0.0, np.minimum(late, 1.0))
    return share


def exchanges(operand: Operand, machine: Machine, nest: CoreNest, cores: np.ndarray) -> np.ndarray:
    """Seconds until the lines of a core have come back, whatever it does meanwhile.

    Hardware fetches a few lines ahead of a sequence of stores. Where short pieces that
    different cores write lie side by side, each fetches lines that the other is about to
    write, and every one of them has to be fetched back. In longer pieces that happens at
    the end only, where the next one begins. A line that both write a piece of goes back and
    forth even if nothing is fetched ahead.

    Args:
        operand: the destination, whose dimensions are in the order of memory.
        machine: its lines, and what fetching one back takes.
        cores: how many run.
    """
    if not nest.steps.spatial:
        return np.zeros(len(nest.steps))
    own, run = np.ones((2, len(nest.steps))) * operand.size
    whole = np.ones(len(nest.steps), dtype=bool)
    for dim in reversed(operand.dims):
        along = np.broadcast_to(nest.along(dim), (nest.count + 1, len(nest.steps)))
        own = own * along[0]
        run = np.where(whole, run * along[0], run)
        whole = whole & (along[0] >= dim.extent)
    split = np.where(run % machine.line > 0, 1.0, 0.0)
    share = np.minimum(1.0, np.maximum(machine.costs.ahead, split) * machine.line / run)
    cycles = (cores > 1) * share * own / machine.line * machine.costs.exchange
    return np.asarray(cycles / machine.clock)
