"""``amos.tune``: search the kernels of a network's tasks, and keep what was measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amos._display import Shown
from amos._progress import ProgressLine, clock, time_left
from amos.errors import AmosError, ExploreError
from amos.explore.contest import Contest
from amos.explore.options import MeasureOptions, SearchOptions, check_count
from amos.explore.setting import Setting
from amos.explore.task_scheduler import TaskScheduler, TaskState
from amos.explore.task_scheduler import scheduler as named_scheduler
from amos.measure.executor import Executor, open_executor
from amos.network.candidates import Choice, Chooser
from amos.network.groups import Task
from amos.network.network import Network, checked_network
from amos.records import Records

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Slice", "TunedTask", "Tuning", "tune"]

#: Called after each trial with those made and those asked for, and the seconds of the whole.
Progress = Callable[[int, int, float], None]

#: Trials of a slice: what a session proposes at a time.
_SLICE = 8
#: Share of a task's mappings that ``dual`` searches on.
_RETAIN = 0.2


@dataclass(frozen=True)
class TunedTask:
    """A task after tuning.

    Attributes:
        kind: what its anchor is called.
        operator: the statement, its extents, and the epilogue.
        count: how often it occurs.
        trials: candidates that were tried.
        replayed: those of them that were taken from the records.
        predicted: seconds before anything was measured; ``None`` where no instruction fits.
        seconds: of the best one; ``None`` without one.
        instruction: that it uses.
        reason: why there is none.
    """

    kind: str
    operator: str
    count: int
    trials: int = 0
    replayed: int = 0
    predicted: float | None = None
    seconds: float | None = None
    instruction: str = ""
    reason: str = ""

    @property
    def expected(self) -> float:
        """Seconds of all occurrences: measured, or else predicted, or nothing."""
        return self.count * (self.seconds or self.predicted or 0.0)


@dataclass(frozen=True)
class Slice:
    """Trials that one task got in a row.

    Attributes:
        slice: number, from 0.
        task: position in :attr:`Tuning.order`.
        trials: that the task has had by then.
        best_seconds: of its fastest kernel by then; infinite while none ran.
        network_seconds: of all tasks by then, those that were not measured as predicted.
    """

    slice: int
    task: int
    trials: int
    best_seconds: float
    network_seconds: float


@dataclass(frozen=True, eq=False)
class Tuning(Shown):
    """What became of a network's tasks.

    Attributes:
        network: its name.
        tasks: the longest first.
        order: the same in the order of their numbers in :attr:`slices`.
        slices: who got which trials.
    """

    network: str
    tasks: tuple[TunedTask, ...]
    order: tuple[TunedTask, ...]
    slices: tuple[Slice, ...] = field(default=(), repr=False)

    @property
    def seconds(self) -> float:
        """Of all tasks, each as often as it occurs."""
        return sum(task.expected for task in self.tasks)

    @property
    def trials(self) -> int:
        """Of all tasks."""
        return sum(task.trials for task in self.tasks)

    @property
    def history(self) -> pd.DataFrame:
        """One row a slice: slice, task, trials, best_seconds, network_seconds."""
        import pandas as pd

        return pd.DataFrame([asdict(each) for each in self.slices])

    def to_frame(self) -> pd.DataFrame:
        """One row a task; seconds."""
        import pandas as pd

        return pd.DataFrame([asdict(task) for task in self.tasks])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; seconds."""
        return {
            "network": self.network,
            "trials": self.trials,
            "seconds": self.seconds,
            "tasks": [asdict(task) for task in self.tasks],
            "history": [
                asdict(each)
                | {"best_seconds": each.best_seconds if math.isfinite(each.best_seconds) else None}
                for each in self.slices
            ],
        }

    def __str__(self) -> str:
        lines = [f"{self.network}: {self.seconds * 1e3:.4g} ms in kernels, {self.trials} trials"]
        for task in self.tasks:
            if task.seconds is None:
                lines.append(f"  {task.count:3} x {task.kind}: {task.reason}")
                continue
            said = f"{task.seconds * 1e3:.4g} ms on {task.instruction}, {task.trials} trials"
            lines.append(f"  {task.count:3} x {task.kind}: {said}")
            lines.append(f"        {task.operator}")
        return "\n".join(lines)


def tune(
    network: Network,
    *,
    trials: int,
    records: str | Path,
    scheduler: str = "gradient",
    retain: float | None = None,
    seed: int = 0,
    measure: MeasureOptions = MeasureOptions(),  # noqa: B008 (frozen)
    progress: Progress | bool = True,
) -> Tuning:
    """Measure candidates of every task on this machine, and record them.

    The same call again goes on where an earlier one stopped, and divides the trials as that
    one would have; what another network's equal task has measured is taken from the records.

    Args:
        network: what :func:`amos.load_network` returned.
        trials: how many candidates to measure in all; each task gets at least one.
        records: file that keeps every trial, for :func:`amos.compile`.
        scheduler: who gets the next trials: ``"equal"``, ``"round_robin"``, ``"gradient"``,
            ``"dual"`` or ``"bound"``; see :mod:`amos.explore.task_scheduler`.
        retain: share of a task's mappings that is searched on, above 0 and at most 1; by
            default 0.2 for ``"dual"``, and all for others.
        seed: of the searches.
        measure: how to measure.
        progress: True for a line on a terminal and in a notebook, False for none; a function
            is called after each trial instead.

    Raises:
        ExploreError: ``trials`` or ``retain`` is out of range, there is nothing to tune, or no
            candidate of any task ran.
        UnknownNameError: there is no such scheduler.
        MeasureError: there is nothing to measure with.
        RecordError: the record file cannot be written.
    """
    checked_network(network)
    check_count("trials", trials)
    if retain is None:
        retain = _RETAIN if scheduler == "dual" else 1.0
    search = SearchOptions(commute=True, retain=retain)
    named_scheduler(scheduler, 1)
    if not network.tasks:
        raise ExploreError(f"{network.name} has no task to tune")
    with ExitStack() as stack:
        line = stack.enter_context(ProgressLine(progress is True))
        run = _Run(network, trials, line, progress)
        workers = open_executor(
            measure.executor, measure.timeout, measure.memory, None, measure.implementation
        )
        if workers is not None:
            stack.enter_context(workers)
        store = stack.enter_context(Records(records))
        run.open(workers, store, seed, search, measure)
        run.search(named_scheduler(scheduler, run.slices_in_all))
        store.check_place()
    if all(task.seconds is None for task in run.tasks):
        raise ExploreError(f"no task of {network.name} could be tuned: {run.tasks[0].reason}")
    ranked = sorted(run.tasks, key=lambda each: -each.expected)
    return Tuning(network.name, tuple(ranked), tuple(run.tasks), tuple(run.slices))


class _Run:
    """One tuning under way: a contest of instructions for each task."""

    def __init__(
        self, network: Network, trials: int, line: ProgressLine, progress: Progress | bool
    ) -> None:
        self.line = line
        self._call = progress if callable(progress) else None
        line.show("asking the model")
        chooser = Chooser("host")
        asked = [(task, *_untuned(task, chooser)) for task in network.tasks]
        # The longest first: who stops early has tuned what matters.
        asked.sort(key=lambda each: -each[1].expected)
        self.network = [task for task, _, _ in asked]
        self.tasks = [row for _, row, _ in asked]
        self.bounds = [choice.prediction.rows[0].compute if choice else 0.0 for *_, choice in asked]
        self.best: list[list[float]] = [[] for _ in asked]
        self.contests: list[Contest | None] = [None] * len(asked)
        self.ended = [choice is None for *_, choice in asked]
        self.total = max(trials, len(asked) - sum(self.ended))
        self.size = max(1, min(_SLICE, self.total // max(len(asked) - sum(self.ended), 1)))
        self.done = 0
        self.slices: list[Slice] = []
        self._start = time.monotonic()

    @property
    def slices_in_all(self) -> int:
        """How many slices the trials make."""
        return -(-self.total // self.size)

    def open(
        self,
        workers: Executor | None,
        store: Records,
        seed: int,
        search: SearchOptions,
        measure: MeasureOptions,
    ) -> None:
        """Begin, or continue, the search of each task."""
        share = max(1, self.total // len(self.tasks))
        for number, task in enumerate(self.network):
            if self.ended[number]:
                continue
            self.line.show(f"beginning task {number + 1} of {len(self.tasks)}")
            with self._told(number):
                setting = Setting(
                    operator=task.operator,
                    machine="host",
                    workers=workers,
                    method="ga",
                    seed=seed,
                    rule="access",
                    search=search,
                    measure=measure,
                    store=store,
                )
                self.contests[number] = setting.contest(setting.units(None), share)

    @contextmanager
    def _told(self, number: int) -> Iterator[None]:
        """What keeps a task from being tuned is its reason, and no end of the others."""
        try:
            yield
        except AmosError as error:
            self.ended[number] = True
            self.tasks[number] = replace(self.tasks[number], reason=str(error).splitlines()[0])

    def search(self, among: TaskScheduler) -> None:
        """Make the trials, then measure the leaders of each task again."""
        while self.done < self.total and (number := among.next(self._states())) is not None:
            before = self.done
            with self._told(number):
                self._slice(number, min(self.size, self.total - self.done))
            self.ended[number] |= self.done == before
            self.best[number].append(self._fastest(number))
            self.slices.append(
                Slice(
                    slice=len(self.slices),
                    task=number,
                    trials=self.tasks[number].trials,
                    best_seconds=self.best[number][-1],
                    network_seconds=self.seconds,
                )
            )
        for number, contest in enumerate(self.contests):
            if contest is not None and math.isfinite(self._fastest(number)):
                self.line.show(f"confirming task {number + 1} of {len(self.tasks)}")
                contest.confirm(lambda _: None)
                self._take(number, contest)

    def _states(self) -> list[TaskState]:
        return [
            TaskState(
                weight=row.count,
                operations=task.operator.operations,
                kind=row.kind,
                bound=bound,
                best=tuple(best),
                ended=ended,
            )
            for task, row, bound, best, ended in zip(
                self.network, self.tasks, self.bounds, self.best, self.ended, strict=True
            )
        ]

    def _slice(self, number: int, count: int) -> None:
        contest = self.contests[number]
        assert contest is not None
        for _ in contest.run(len(contest.trials) + count):
            self.done += 1
            self._take(number, contest)
            self.tell(number)

    def _take(self, number: int, contest: Contest) -> None:
        """What a task has reached."""
        best = contest.best(1)
        self.tasks[number] = replace(
            self.tasks[number],
            trials=len(contest.trials),
            replayed=sum(entry.session.replayed for entry in contest.entries),
            seconds=best[0].seconds if best else None,
            instruction=contest.winner.contender.intrinsic.name if best else "",
            reason="" if best else f"none of {len(contest.trials)} candidates ran",
        )

    def _fastest(self, number: int) -> float:
        return self.tasks[number].seconds or math.inf

    @property
    def seconds(self) -> float:
        """Of all tasks."""
        return sum(task.expected for task in self.tasks)

    def tell(self, number: int) -> None:
        """Say how far it is."""
        if self._call is not None:
            self._call(self.done, self.total, self.seconds)
        left = time_left(time.monotonic() - self._start, self.done, self.total)
        self.line.show(
            f"task {number + 1} of {len(self.tasks)}, trial {self.done}/{self.total}, "
            f"kernels {self.seconds * 1e3:.4g} ms, {clock(left)} left"
        )


def _untuned(task: Task, chooser: Chooser) -> tuple[TunedTask, Choice | None]:
    operator = task.operator
    row = TunedTask(operator.name, str(operator), task.weight)
    try:
        choice = chooser.predicted(operator)
    except AmosError as error:
        return replace(row, reason=str(error).splitlines()[0]), None
    return replace(row, predicted=choice.prediction.seconds), choice
