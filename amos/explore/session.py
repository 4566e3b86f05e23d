"""The loop of one exploration: ask, replay or measure, record, tell."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from amos.explore.guided import BATCH, Guided
from amos.explore.objective import Problem
from amos.explore.run_log import RunLog
from amos.measure.executor import Executor
from amos.measure.task import Task, repeat_count
from amos.plan import Candidate
from amos.records import Measurement, Trial

#: Leaders that are measured again at the end; timings of a trial, and of a leader.
_CONFIRMED, _REPEAT, _CONFIRM_REPEAT = 4, 10, 40
#: A trial is progress if it is faster by this share.
_PROGRESS = 1e-3
#: Number of further measurements of the two leaders while they are too close to call.
_DUELS = 2


@dataclass
class Session:
    """One exploration under way.

    Attributes:
        executor: measures them; without one, predictions count as scores.
        log: records of the run, earlier and new ones.
        implementation: of the intrinsic; see :class:`amos.measure.executor.Task`.
        replayed: trials whose measurement was found in the record.
    """

    problem: Problem
    search: Guided
    executor: Executor | None
    log: RunLog
    implementation: str | None = None
    flush: int = 0
    replayed: int = 0
    measured: int = 0

    def trials(
        self, count: int, time_limit: float | None = None, stagnation: int | None = None
    ) -> Iterator[Trial]:
        """Yield trials until there are ``count`` of them, or the time is up.

        At least one is made. Ends early if the method has nothing left to propose.

        Args:
            time_limit: seconds after which no other is begun.
            stagnation: trials without progress after which no other batch is begun.
        """
        end = math.inf if time_limit is None else time.monotonic() + time_limit
        while len(self.problem.trials) < count:
            if self.problem.trials and time.monotonic() > end:
                return
            if stagnation is not None and _count_idle(self.problem) >= stagnation:
                return
            batch = self.search.ask(min(BATCH, count - len(self.problem.trials)))
            if not batch:
                return
            yield from self._batch(batch, end)

    def _batch(self, batch: list[Candidate], end: float) -> Iterator[Trial]:
        """Measure a batch; record results as they come, tell them in the order of the batch."""
        first, predicted = len(self.problem.trials), self.problem.seconds(batch).tolist()
        done: dict[int, Measurement | None] = {}

        def trial(n: int) -> Trial:
            joules = self.problem.joules(batch[n])
            return Trial(first + n, batch[n], predicted[n], done[n], joules)

        def submit() -> Iterator[tuple[int, Task]]:
            for n, candidate in enumerate(batch):
                if n and time.monotonic() > end:
                    return
                if (recorded := self.log.find(candidate)) is not None:
                    done[n], self.replayed = recorded, self.replayed + 1
                else:
                    yield n, self._task(candidate, predicted[n])

        def pop_due() -> Iterator[Trial]:
            while (n := len(self.problem.trials) - first) in done:
                self.problem.tell(trial(n))
                yield self.problem.trials[-1]

        results: Iterable[tuple[int, Measurement | None]] = ((n, None) for n in range(len(batch)))
        if self.executor is not None:
            results = self.executor.measure(submit())
        for n, measurement in results:
            done[n], self.measured = measurement, self.measured + (measurement is not None)
            done[n] = self.log.add(trial(n))
            yield from pop_due()
        yield from pop_due()

    def _task(self, candidate: Candidate, seconds: float, repeat: int = _REPEAT) -> Task:
        """Create a measurement task that gets no more time than the fastest trial needs."""
        rival = min((trial.seconds for trial in self.problem.best(1)), default=math.inf)
        seconds = min(seconds, rival)
        return Task(candidate, repeat, self.implementation, self.flush, seconds, rival)

    def confirm(self, tell: Callable[[Problem], None] = lambda _: None) -> None:
        """Measure the leaders again, longer: the fastest of many is partly the luckiest.

        Goes on while a trial that was not measured again leads, then while the two
        leaders are too close to call. A candidate so slow that it would not be timed more often
        is left as it is.

        Args:
            tell: called before each of these measurements.
        """
        confirmed: set[int] = set()
        for _ in range(2 * _CONFIRMED):
            leaders = self._select_brief(_CONFIRMED if len(confirmed) < _CONFIRMED else 1)
            waiting = [trial for trial in leaders if trial.number not in confirmed]
            if not waiting:
                break
            confirmed.add(waiting[0].number)
            tell(self.problem)
            again = self._measure_again(waiting[0], 0)
            # A hang may be the machine's fault; a wrong result or a crash never is.
            if again is not None and (again.ok or again.failure != "timeout"):
                self._replace(waiting[0], again)
        for attempt in range(1, _DUELS + 1):
            leaders = self._select_brief(2)
            pair = [trial.measurement for trial in leaders if trial.measurement is not None]
            if len(pair) < 2 or not pair[0].is_too_close(pair[1]):
                return
            for trial, before in zip(leaders, pair, strict=True):
                tell(self.problem)
                again = self._measure_again(trial, attempt)
                if again is not None and again.ok:
                    self._replace(trial, replace(before, times=before.times + again.times))

    def _select_brief(self, count: int) -> list[Trial]:
        """Return the best trials that a confirmation times more often than the search did."""
        return [
            trial
            for trial in self.problem.best(count)
            if repeat_count(_CONFIRM_REPEAT, trial.seconds) > repeat_count(_REPEAT, trial.seconds)
        ]

    def _measure_again(self, trial: Trial, attempt: int) -> Measurement | None:
        assert self.executor is not None
        recorded = self.log.find(trial.candidate, "confirm", attempt)
        if recorded is not None:
            return recorded
        task = self._task(trial.candidate, max(trial.predicted, trial.seconds), _CONFIRM_REPEAT)
        for _, measurement in self.executor.measure(iter([(0, task)])):
            self.measured += 1
            return self.log.add(replace(trial, measurement=measurement), "confirm", attempt)
        return None

    def _replace(self, trial: Trial, measurement: Measurement) -> None:
        self.problem.trials[trial.number] = replace(trial, measurement=measurement)


def _count_idle(problem: Problem) -> int:
    """Count trials since the last one that was clearly better than all before it."""
    best, last = math.inf, -1
    for number, value in enumerate(map(problem.value, problem.trials)):
        if value < best * (1 - _PROGRESS):
            best, last = value, number
    return len(problem.trials) - 1 - last
