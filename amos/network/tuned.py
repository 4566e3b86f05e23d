"""Results of tuning a network."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from amos._display import Shown, several

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TunedTask:
    """A task after tuning.

    Attributes:
        trials: candidates that were tried.
        replayed: those of them that were taken from the records.
        predicted: seconds before anything was measured; ``None`` where no instruction fits.
        seconds: of the best one; ``None`` without one.
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
        task: position in :attr:`Tuning.rows`.
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
    """A network's tasks after tuning.

    Attributes:
        order: the tasks in the order of their searches.
        slices: the division of the trials.
        chains: attention and cascades, which compete with the tasks that they replace.
    """

    network: str
    order: tuple[TunedTask, ...]
    slices: tuple[Slice, ...] = field(default=(), repr=False)
    chains: tuple[TunedTask, ...] = ()

    @property
    def tasks(self) -> tuple[TunedTask, ...]:
        """The tasks, the longest first."""
        return tuple(sorted(self.order, key=lambda task: -task.expected))

    @property
    def rows(self) -> tuple[TunedTask, ...]:
        """The tasks in the order of their searches, then the chains."""
        return (*self.order, *self.chains)

    @property
    def seconds(self) -> float:
        """Seconds of all tasks, each as often as it occurs."""
        return sum(task.expected for task in self.order)

    @property
    def trials(self) -> int:
        """Number of trials of all tasks and chains."""
        return sum(task.trials for task in self.rows)

    @property
    def history(self) -> pd.DataFrame:
        """One row a slice: slice, task, trials, best_seconds, network_seconds."""
        import pandas as pd

        return pd.DataFrame([asdict(each) for each in self.slices])

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each task; times in seconds."""
        import pandas as pd

        return pd.DataFrame([asdict(task) for task in self.tasks])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; seconds."""
        return {
            "network": self.network,
            "trials": self.trials,
            "seconds": self.seconds,
            "tasks": [asdict(task) for task in self.tasks],
            "chains": [asdict(chain) for chain in self.chains],
            "history": [
                asdict(each)
                | {"best_seconds": each.best_seconds if math.isfinite(each.best_seconds) else None}
                for each in self.slices
            ],
        }

    def __str__(self) -> str:
        lines = [f"{self.network}: {self.seconds * 1e3:.4g} ms in kernels, "]
        lines[0] += several(self.trials, "trial")
        for task in (*self.tasks, *self.chains):
            result = task.reason
            if task.seconds is not None:
                result = f"{task.seconds * 1e3:.4g} ms on {task.instruction}, "
                result += f"{several(task.trials, 'trial')}\n        {task.operator}"
            lines.append(f"  {task.count:3} x {task.kind}: {result}")
        return "\n".join(lines)
