"""Messages of an exploration: before it begins, while it runs, when it is interrupted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from amos._progress import ProgressLine, clock, time_left
from amos.explore.contest import Leaders
from amos.explore.objective import Problem
from amos.measure.executor import Executor
from amos.measure.reference import Demand
from amos.measure.task import repeat_count
from amos.records import Trial

_T = TypeVar("_T")
#: Called after each trial with it and the requested number of trials.
Progress = Callable[[Trial, int], None]

#: Multiply-adds below which no warning is given.
_FEW = 10**9
#: Seconds of a run, and of NumPy's reference, above which the user is warned.
_RUN, _REFERENCE = 0.5, 10.0
#: Candidates that the model evaluates, of as many mappings as possible.
_ASKED = 8
#: Timings of a quick candidate; seconds of building one; runs of one before it is timed.
_REPEAT, _BUILDING, _BEFORE = 12, 1.0, 2


class Watch:
    """Follows one exploration on a terminal, in a notebook, or by a function of each trial."""

    def __init__(
        self,
        total: int,
        time_limit: float | None,
        progress: Progress | bool,
        records: str | Path | None,
    ) -> None:
        self._total, self._limit, self._records = total, time_limit, records
        self._call = progress if callable(progress) else None
        self.line = ProgressLine(shown=progress is True)
        self._start = time.monotonic()
        self._failed: Counter[str] = Counter()
        self._again = 0
        self.line.show("probing the machine")

    def wrap_printer(self, say: Callable[[_T], None] | None) -> Callable[[_T], None]:
        """Return a function that prints with the progress line cleared; a no-op for ``None``."""

        def print_aside(what: _T) -> None:
            if say is not None:
                self.line.clear()
                say(what)

        return print_aside

    def start(self) -> None:
        """Show that the search starts."""
        self._start = time.monotonic()
        self.line.show(f"searching 0/{self._total}")

    def show_trial(self, trial: Trial, leaders: Leaders) -> None:
        """Show a finished trial."""
        if self._call is not None:
            self._call(trial, self._total)
        if trial.measurement is not None and not trial.measurement.ok:
            self._failed[trial.measurement.failure] += 1
        verb = "searching" if trial.measurement is None else "measuring"
        texts = [f"{verb} {trial.number + 1}/{self._total}", _best(leaders)]
        texts += [failures_text(self._failed)] if self._failed else []
        elapsed = time.monotonic() - self._start
        remaining = time_left(elapsed, trial.number + 1, self._total, self._limit)
        texts.append(f"{clock(remaining)} left")
        self.line.show(", ".join(texts), at_once=False)

    def show_confirming(self, leaders: Leaders) -> None:
        """Show that a leader is measured again; its time may still change."""
        self._again += 1
        self.line.show(f"confirming the fastest, measurement {self._again}, {_best(leaders)}")

    def show_confirmed(self, leaders: Leaders) -> None:
        """Show the confirmed leader; the machine's peak is measured next."""
        self.line.show(f"confirmed: {_best(leaders)}; measuring the machine's peak")

    def describe_interrupt(self, leaders: Leaders) -> list[str]:
        """Describe the result so far and how to resume, when the user stops a run."""
        first = leaders.best(1)
        reached = f"interrupted after {len(leaders.trials)} of {self._total} trials"
        if first:
            best = first[0]
            reached += f"; best so far {best.seconds * 1e3:.4f} ms: {best.mapping.name}, "
            reached += f"{best.schedule}"
        again = "with a record file (--records FILE, records=) the same run would go on from here"
        if self._records is not None:
            again = f"{str(self._records)!r} keeps them: the same run again goes on from there"
        return [reached, again]


def failures_text(failed: dict[str, int]) -> str:
    """Count failures by kind, as ``3 failed (2 timeout, 1 crash)``."""
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(failed.items(), key=lambda x: -x[1]))
    return f"{sum(failed.values())} failed ({kinds})"


def _best(leaders: Leaders) -> str:
    first = leaders.best(1)
    return f"best {first[0].seconds * 1e3:.4f} ms" if first else "none ran yet"


def warn_if_slow(problem: Problem, trials: int, executor: Executor | None) -> Iterator[str]:
    """Yield a warning if the trials will take long to measure."""
    op = problem.mappings[0].operator
    if executor is None or op.points < _FEW:
        return
    rng = np.random.default_rng(0)
    mappings = (problem.mappings * _ASKED)[:_ASKED]
    drawn = [problem.sample(mapping, rng) for mapping in mappings]
    run, reference = float(problem.seconds(drawn).min()), Demand.of(op).seconds
    if run < _RUN and reference < _REFERENCE:
        return
    per_trial = _BUILDING + run * (_BEFORE + repeat_count(_REPEAT, run))
    yield (
        f"{op.name} is large: a run takes about {run:.2g} s by the model, NumPy's reference "
        f"{reference:.0f} s; {trials} trials take about {_minutes(reference + trials * per_trial)}"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
