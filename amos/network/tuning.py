"""``amos.tune``: search the kernels of a network's tasks, and keep what was measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from amos._progress import ProgressLine, clock, time_left
from amos.errors import AmosError, ExploreError, RecordError
from amos.explore.choosing import Chooser, with_useful_ranges
from amos.explore.contenders import contenders
from amos.explore.contest import Contest
from amos.explore.exploration import explain_failures
from amos.explore.guided import BATCH
from amos.explore.options import MeasureOptions, SearchOptions, check_run
from amos.explore.ranking import find_best
from amos.explore.setting import Setting
from amos.explore.task_scheduler import RETAINED, TRIALS, TaskState
from amos.explore.task_scheduler import scheduler as named_scheduler
from amos.measure.executor import Executor, open_executor
from amos.network.buckets import Loaded
from amos.network.groups import Task, merge_tasks
from amos.network.lowerings.blocked import format_of
from amos.network.lowerings.choosing import select_tuned_task
from amos.network.network import Network, check_network
from amos.network.tuned import Slice, TunedTask, Tuning
from amos.network.tuned_chains import list_chains, tune_chains
from amos.records import Records

#: Called after each trial with the trials so far, the trials in all, and the network's seconds.
Progress = Callable[[int, int, float], None]

_INTERRUPTED = (
    "interrupted after %s of %s trials; %r keeps them: the same run again goes on from there"
)


def tune(
    network: Network | Loaded,
    *,
    trials: int,
    records: str | Path,
    scheduler: str = "bound",
    retain: float | None = None,
    seed: int = 0,
    measure: MeasureOptions = MeasureOptions(),  # noqa: B008 (frozen)
    progress: Progress | bool = True,
) -> Tuning:
    """Measure candidates of every task on this machine, and record them.

    The same call resumes an interrupted one, with the same division of the trials. Measurements
    of an equal task of another network are taken from the records.

    Args:
        network: what :func:`amos.load_network` returned.
        trials: how many candidates to measure in all; each task gets at least one, and each chain
            an equal share.
        records: file that keeps every trial, for :func:`amos.compile`.
        scheduler: divides the trials among tasks: ``"equal"``, ``"round_robin"``,
            ``"gradient"``, ``"dual"`` or ``"bound"``; see :mod:`amos.explore.task_scheduler`.
        retain: share of a task's mappings that stays in the search, above 0 and at most 1; by
            default 0.2 for ``"dual"``, and 1 for others.
        progress: True for a line on a terminal and in a notebook, False for none; a function
            is called after each trial instead.

    Raises:
        ExploreError: ``trials``, ``retain`` or ``seed`` is out of range, there is nothing to
            tune, or no candidate of any task ran.
        UnknownNameError: there is no such scheduler.
        MeasureError: there is nothing to measure with.
        RecordError: the record file cannot be read or written.
    """
    check_network(network)
    check_run(trials, seed, measure)
    named_scheduler(scheduler, 1)
    retain = RETAINED.get(scheduler, 1.0) if retain is None else retain
    search = SearchOptions(commute=True, retain=retain)
    chooser = Chooser("host")
    tasks = [select_tuned_task(x, chooser) for x in network.tasks if format_of(x) is None]
    if not tasks:
        raise ExploreError(f"{network.name} has no task to tune")
    chains = () if measure.executor else list_chains(_regions_of(network), chooser)
    share = max(1, trials // (len(tasks) + len(chains)))
    with ExitStack() as stack:
        line = stack.enter_context(ProgressLine(progress is True))
        workers = _open_workers(stack, measure)
        store = stack.enter_context(Records(records))
        setting = partial(
            Setting,
            machine="host",
            workers=workers,
            method="ga",
            seed=seed,
            rule="access",
            search=search,
            measure=measure,
            store=store,
        )
        run = _Run(network.name, tasks, trials - share * len(chains), line, progress)
        try:
            run.open(setting)
            run.search(scheduler)
        except KeyboardInterrupt as stop:
            stop.add_note(_INTERRUPTED % (run.done, run.total, str(records)))
            raise
        store.check_place()
        tuned = tune_chains(chains, share, records, seed=seed, measure=measure, progress=line.show)
    if all(task.seconds is None for task in run.order):
        raise ExploreError(f"no task of {network.name} could be tuned: {run.order[0].reason}")
    return replace(run.tuning, chains=tuned)


def _open_workers(stack: ExitStack, measure: MeasureOptions) -> Executor | None:
    """Open an executor until a stack is left; ``None`` for the model alone."""
    workers = open_executor(
        measure.executor, measure.timeout, measure.memory, None, measure.implementation
    )
    return None if workers is None else stack.enter_context(workers)


def _regions_of(network: Network | Loaded) -> Iterator[Network]:
    """List the networks that a model was divided into."""
    if isinstance(network, Network):
        yield network
        return
    for region in network.networks.values():
        yield from _regions_of(region)


@dataclass
class _Search:
    """The search of a task.

    Attributes:
        task: that is searched; the product of Winograd's tiles where these are faster.
        contest: of the instructions that may win; ``None`` if it cannot be tuned.
        bound: seconds that its calls take at least, by the model.
        best: seconds of its fastest kernel after each slice; infinite while none ran.
        ended: whether the space is exhausted.
    """

    task: Task
    row: TunedTask
    contest: Contest | None = None
    bound: float = 0.0
    best: list[float] = field(default_factory=list)
    ended: bool = False

    def open(self, setting: Setting, share: int) -> None:
        """Begin, or resume on the machine as it was then, with about this many trials to come."""
        with self._note_error():
            units = setting.units(None)
            among = partial(contenders, units=units, rule=setting.rule)
            operator = with_useful_ranges(setting.operator, among)
            contest = replace(setting, operator=operator).contest(units, share)
            problem = contest.winner.session.problem
            prediction = problem.predict(find_best(problem))
            self.bound = prediction.rows[0].compute
            self.row = replace(self.row, predicted=prediction.seconds)
            self.contest = contest

    @contextmanager
    def _note_error(self) -> Iterator[None]:
        """Note an error of this task as its reason; other tasks go on."""
        try:
            yield
        except RecordError:
            raise
        except AmosError as error:
            self.ended = True
            self.row = replace(self.row, reason=" ".join(str(error).split("\n")[:2]))

    @property
    def state(self) -> TaskState:
        """The state of the task, for schedulers."""
        return TaskState(
            weight=self.row.count,
            operations=self.task.operator.operations,
            kind=self.row.kind,
            bound=self.bound,
            predicted=self.row.predicted or 0.0,
            best=tuple(self.best),
            ended=self.ended,
        )

    def slice(self, count: int) -> Iterator[None]:
        """Make this many trials."""
        assert self.contest is not None
        before = len(self.contest.trials)
        with self._note_error():
            for _ in self.contest.run(before + count):
                self.update_row()
                yield
        self.ended |= len(self.contest.trials) == before
        self.best.append(self.row.seconds or math.inf)

    def confirm(self) -> None:
        """Measure the leaders again."""
        if self.contest is not None and self.row.seconds is not None:
            with self._note_error():
                self.contest.confirm(lambda _: None)
                self.update_row()

    def update_row(self) -> None:
        """Note the present result."""
        assert self.contest is not None
        trials, best = self.contest.trials, self.contest.best(1)
        self.row = replace(
            self.row,
            trials=len(trials),
            replayed=sum(entry.session.replayed for entry in self.contest.entries),
            seconds=best[0].seconds if best else None,
            instruction=self.contest.winner.contender.intrinsic.name if best else "",
            reason="" if best else explain_failures(trials),
        )


class _Run:
    """A tuning."""

    def __init__(
        self,
        network: str,
        tasks: Sequence[Task],
        trials: int,
        line: ProgressLine,
        progress: bool | Progress,
    ) -> None:
        self.network, self.total, self.line = network, trials, line
        self._call = progress if callable(progress) else None
        self.searches = [
            _Search(each, TunedTask(each.operator.name, str(each.operator), each.weight))
            for each in merge_tasks(tasks)
        ]
        self.done = 0
        self.slices: list[Slice] = []
        self._start = time.monotonic()

    def open(self, setting: Callable[..., Setting]) -> None:
        """Begin, or continue, the search of each task."""
        share = max(1, self.total // len(self.searches))
        for number, search in enumerate(self.searches):
            self.line.show(f"beginning task {number + 1} of {len(self.searches)}")
            search.open(setting(operator=search.task.operator), share)
        # The longest first: a tuning that is stopped early has tuned the heavy tasks.
        self.searches.sort(key=lambda search: -search.row.expected)

    def search(self, scheduler: str) -> None:
        """Make the trials, then measure the leaders of each task again."""
        tuned = [number for number, search in enumerate(self.searches) if search.contest]
        self.total = max(self.total, len(tuned))
        size = max(1, min(TRIALS.get(scheduler, BATCH), self.total // max(len(tuned), 1)))
        among = named_scheduler(scheduler, -(-self.total // size))
        while self.done < self.total:
            chosen = among.next([self.searches[number].state for number in tuned])
            if chosen is None:
                break
            self._slice(tuned[chosen], min(size, self.total - self.done))
        for number, search in enumerate(self.searches):
            self.line.show(f"confirming task {number + 1} of {len(self.searches)}")
            search.confirm()

    def _slice(self, number: int, count: int) -> None:
        search = self.searches[number]
        for _ in search.slice(count):
            self.done += 1
            self._show_progress(number)
        self.slices.append(
            Slice(
                slice=len(self.slices),
                task=number,
                trials=search.row.trials,
                best_seconds=search.best[-1],
                network_seconds=self.tuning.seconds,
            )
        )

    @property
    def order(self) -> tuple[TunedTask, ...]:
        """Results of the tasks."""
        return tuple(search.row for search in self.searches)

    @property
    def tuning(self) -> Tuning:
        """The present result."""
        return Tuning(self.network, self.order, tuple(self.slices))

    def _show_progress(self, number: int) -> None:
        tuning = self.tuning
        if self._call is not None:
            self._call(self.done, self.total, tuning.seconds)
        seconds = time_left(time.monotonic() - self._start, self.done, self.total)
        self.line.show(
            f"task {number + 1} of {len(self.searches)}, trial {self.done}/{self.total}, "
            f"kernels {tuning.seconds * 1e3:.4g} ms, {clock(seconds)} left",
            picture=tuning if self.line.rich else None,
        )
