"""How long an exploration will take, said before it begins where that is long."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from amos.explore.objective import Problem
from amos.measure.executor import Executor
from amos.measure.reference import Demand
from amos.measure.task import repeats

__all__ = ["slow"]

#: Multiply-adds below which nothing takes long on any machine.
_FEW = 10**9
#: Seconds of a run, and of NumPy's reference, that are worth a word.
_RUN, _REFERENCE = 0.5, 10.0
#: Mappings that the model is asked about.
_ASKED = 8
#: Timings of a quick candidate; seconds of building one; runs of one before it is timed.
_REPEAT, _BUILDING, _BEFORE = 12, 1.0, 2


def slow(problem: Problem, trials: int, executor: Executor | None) -> Iterator[str]:
    """A line on how long so many measured trials take; none if that is not long."""
    op = problem.mappings[0].operator
    if executor is None or op.points < _FEW:
        return
    rng = np.random.default_rng(0)
    drawn = [problem.sample(mapping, rng) for mapping in problem.mappings[:_ASKED]]
    run, reference = float(problem.seconds(drawn).min()), Demand.of(op).seconds
    if run < _RUN and reference < _REFERENCE:
        return
    each = _BUILDING + run * (_BEFORE + repeats(_REPEAT, run))
    yield (
        f"{op.name} is large: a run takes about {run:.2g} s by the model, NumPy's reference "
        f"{reference:.0f} s; {trials} trials take about {_minutes(reference + trials * each)}"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
