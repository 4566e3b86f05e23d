"""Lines of the output that cores take from each other."""

from __future__ import annotations

import numpy as np

from amos.machine.machine import Machine
from amos.perfmodel.traffic import CoreNest
from amos.plan.operand import Operand


def exchange_seconds(
    operand: Operand, machine: Machine, nest: CoreNest, cores: np.ndarray
) -> np.ndarray:
    """Predict the seconds until a core's lines are back, whatever it does meanwhile.

    Hardware prefetches a few lines ahead of a sequence of stores. Where different cores write short
    adjacent pieces, each prefetches lines that the other is about to write, and every one of these
    has to be fetched back. In longer pieces that happens only at the end, next to the following
    piece. A line shared by two pieces moves back and forth even without prefetches.
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
