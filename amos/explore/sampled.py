"""The best of some random schedules: a quick estimate of a mapping."""

from __future__ import annotations

import contextlib

import numpy as np

from amos.errors import ScheduleError
from amos.machine import Machine
from amos.mapping.mapping import Mapping
from amos.perfmodel import Prediction, evaluate, prediction_of
from amos.plan import Candidate
from amos.plan.schedule import batch_of
from amos.schedule.space import ScheduleSpace


def best_sampled(
    mapping: Mapping,
    machine: Machine,
    samples: int,
    rng: np.random.Generator,
    space: ScheduleSpace | None = None,
) -> tuple[Prediction, Candidate] | None:
    """Return the best of some schedules of a mapping by the model; ``None`` if none fits.

    Raises:
        MachineError: the machine has no rate for the intrinsic, or only one of loops.
    """
    space = space or ScheduleSpace(mapping, machine)
    structure = space.context
    schedules = space.draw(samples, rng)
    with contextlib.suppress(ScheduleError):  # no schedule at all
        schedules.insert(0, space.smallest())
    if not schedules:
        machine.peak(mapping.intrinsic.name)
        return None
    batch = evaluate(structure, machine, batch_of(structure, schedules))
    row = int(np.argmin(batch.seconds))
    if not np.isfinite(batch.seconds[row]):
        return None
    return prediction_of(structure, machine, batch, row), Candidate(mapping, schedules[row])
