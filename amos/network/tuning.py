"""``amos.tune``: search the kernels of a network's tasks, and keep what was measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amos._display import Shown
from amos._progress import ProgressLine, clock, time_left
from amos.errors import AmosError, ExploreError
from amos.explore import explore
from amos.explore.options import MeasureOptions, check_count
from amos.network.candidates import Chooser
from amos.network.groups import Task
from amos.network.network import Network
from amos.records import Trial

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TunedTask", "Tuning", "tune"]

#: Called after each trial with those made and those asked for, and the seconds of the whole.
Progress = Callable[[int, int, float], None]


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


@dataclass(frozen=True, eq=False)
class Tuning(Shown):
    """What became of a network's tasks.

    Attributes:
        network: its name.
        tasks: the longest first.
        history: seconds of all tasks after each trial, those that were not measured as predicted.
    """

    network: str
    tasks: tuple[TunedTask, ...]
    history: tuple[float, ...] = field(default=(), repr=False)

    @property
    def seconds(self) -> float:
        """Of all tasks, each as often as it occurs."""
        return sum(task.expected for task in self.tasks)

    @property
    def trials(self) -> int:
        """Of all tasks."""
        return sum(task.trials for task in self.tasks)

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
    seed: int = 0,
    measure: MeasureOptions = MeasureOptions(),  # noqa: B008 (frozen)
    progress: Progress | bool = True,
) -> Tuning:
    """Measure candidates of every task on this machine, and record them.

    Trials are divided equally. The same call again goes on where an earlier one stopped, and
    what another network's equal task has measured is taken from the records.

    Args:
        network: what :func:`amos.load_network` returned.
        trials: how many candidates to measure in all; each task gets at least one.
        records: file that keeps every trial, for :func:`amos.compile`.
        seed: of the searches.
        measure: how to measure.
        progress: True for a line on a terminal and in a notebook, False for none; a function
            is called after each trial instead.

    Raises:
        ExploreError: ``trials`` is no number of trials, or there is nothing to tune.
        MeasureError: there is nothing to measure with.
        RecordError: the record file cannot be written.
    """
    check_count("trials", trials)
    if not network.tasks:
        raise ExploreError(f"{network.name} has no task to tune")
    run = _Run(network, trials, ProgressLine(progress is True), progress)
    with run.line:
        for number, task in enumerate(run.order):
            run.tasks[task] = run.tuned(number, task, records, seed, measure)
    ranked = sorted(run.tasks.values(), key=lambda each: -each.expected)
    return Tuning(network.name, tuple(ranked), tuple(run.history))


class _Run:
    """One tuning under way."""

    def __init__(
        self, network: Network, trials: int, line: ProgressLine, progress: Progress | bool
    ) -> None:
        self.total, self.line = trials, line
        self._call = progress if callable(progress) else None
        line.show("asking the model")
        chooser = Chooser("host")
        self.tasks = {task: _untuned(task, chooser) for task in network.tasks}
        fitting = [task for task, each in self.tasks.items() if each.predicted is not None]
        # The longest first: who stops early has tuned what matters.
        self.order = sorted(fitting, key=lambda task: -self.tasks[task].expected)
        self.history: list[float] = []
        self._start = time.monotonic()

    def shares(self) -> Sequence[int]:
        """Trials of each task, in order; what cannot be divided goes to the first."""
        each, rest = divmod(self.total, len(self.order))
        return [max(1, each + (number < rest)) for number in range(len(self.order))]

    def tuned(
        self, number: int, task: Task, records: str | Path, seed: int, measure: MeasureOptions
    ) -> TunedTask:
        """A task with its best kernel."""
        before = self.tasks[task]
        share = self.shares()[number]

        def tried(trial: Trial, _: int) -> None:
            best = min(self.tasks[task].seconds or math.inf, trial.seconds)
            if math.isfinite(best):
                self.tasks[task] = replace(self.tasks[task], seconds=best)
            self.tell(number)

        self.tell(number, done=False)
        try:
            result = explore(
                task.operator,
                trials=share,
                seed=seed,
                records=records,
                measure=measure,
                progress=tried,
            )
            best = result.best
        except ExploreError as error:
            return replace(before, reason=str(error).splitlines()[0])
        return replace(
            before,
            trials=len(result.trials),
            replayed=result.replayed,
            seconds=best.seconds,
            instruction=result.intrinsic.name,
        )

    def tell(self, number: int, *, done: bool = True) -> None:
        """Say how far it is."""
        seconds = sum(task.expected for task in self.tasks.values())
        if done:
            self.history.append(seconds)
        total = sum(self.shares())
        count = min(len(self.history), total)
        if self._call is not None and done:
            self._call(count, total, seconds)
        left = time_left(time.monotonic() - self._start, count, total) if count else math.inf
        said = f"task {number + 1} of {len(self.order)}, trial {count}/{total}"
        said += f", kernels {seconds * 1e3:.4g} ms"
        said += f", {clock(left)} left" if math.isfinite(left) else ""
        self.line.show(said)


def _untuned(task: Task, chooser: Chooser) -> TunedTask:
    operator = task.operator
    row = TunedTask(operator.name, str(operator), task.weight)
    try:
        return replace(row, predicted=chooser.predicted(operator).prediction.seconds)
    except AmosError as error:
        return replace(row, reason=str(error).splitlines()[0])
