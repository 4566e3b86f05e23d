"""Choose the task of a network to tune next, by slices of trials (GTA, section 4).

A scheduler reads the results of every task so far and names one. It keeps no state and draws
nothing, so that a resumed run divides its trials as an uninterrupted one would. A slice is one
batch of measurements of a task, with ``bound`` a single measurement.

* ``equal``: each task its share of the slices, the longest task first;
* ``round_robin``: each task a slice in turn;
* ``gradient``: the task whose next slice promises most by Ansor's estimate (GTA, equation 2);
* ``dual``: the same, and within a task only the mappings that are retained
  (:mod:`amos.explore.retention`) are searched;
* ``bound``: the task with the widest gap between its kernel and the model's bound, for the slices
  it had, after each measurement; one that was not measured yet stands as predicted.

Slips of GTA's paper are resolved as follows: the counter of samples is one for each task, and
counts candidates that were measured; line 22 of Algorithm 1 stands inside of the ``if`` of line
7, since nothing was measured otherwise; equation 1 is the minimum over the mappings, as the text
says, not the maximum; the candidates "selected" for more exploration are the least measured;
and the weights in equation 2, α and 1 - η, are one α as in Ansor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from amos.errors import ExploreError, UnknownNameError

#: Trust in what the last slices gained against what the next may gain; slices looked back on;
#: how much slower than the best similar task one may be expected to stay (Ansor, section 6.2).
_ALPHA, _WINDOW, _SIMILAR = 0.2, 3, 2.0
#: Share of its seconds that a task may always lose, however near its bound the model puts it;
#: share by which the model is taken to be wrong before anything was measured.
_HOPE, _WRONG = 0.1, 1.0


@dataclass(frozen=True)
class TaskState:
    """Progress of a task.

    Attributes:
        weight: how often it occurs in the network.
        operations: arithmetic operations of one occurrence.
        kind: tasks of one kind are expected to reach similar rates.
        bound: lower bound of its kernels' seconds by the model.
        predicted: seconds of the kernel that the model prefers.
        best: seconds of its fastest kernel after each slice; infinite while none ran.
        ended: whether nothing is left to try.

    Raises:
        ExploreError: a weight below 0, or others that are not above it.
    """

    weight: float
    operations: int
    kind: str
    bound: float
    predicted: float
    best: tuple[float, ...] = ()
    ended: bool = False

    def __post_init__(self) -> None:
        if not (self.weight >= 0 and min(self.operations, self.bound, self.predicted) > 0):
            raise ExploreError(
                f"task of weight {self.weight}, {self.operations} operations, a bound of "
                f"{self.bound} s and {self.predicted} s predicted: expected a weight from 0 on "
                "and the others above it"
            )

    @property
    def slices(self) -> int:
        """Number of its slices."""
        return len(self.best)

    @property
    def ran(self) -> bool:
        """Whether it has a kernel."""
        return bool(self.best) and math.isfinite(self.best[-1])

    @property
    def seconds(self) -> float:
        """Seconds of its fastest kernel; before any ran, of the one that is compiled untuned."""
        return self.best[-1] if self.ran else self.predicted


class TaskScheduler(Protocol):
    """Chooses the task that gets the next slice."""

    def next(self, tasks: Sequence[TaskState]) -> int | None:
        """Return the position of a task that has not ended; ``None`` if all have."""


@dataclass(frozen=True)
class _Equal:
    slices: int

    def next(self, tasks: Sequence[TaskState]) -> int | None:
        live = _live(tasks)
        share, extra = divmod(self.slices, max(len(tasks), 1))
        short = (n for n in live if tasks[n].slices < share + (n < extra))
        # Slices that an ended task leaves go to the others in turn.
        return next(short, _fewest(tasks, live))


class _RoundRobin:
    def next(self, tasks: Sequence[TaskState]) -> int | None:
        return _fewest(tasks, _live(tasks))


@dataclass(frozen=True)
class _ByGain:
    """The task with the largest estimate, and every task once within some slices."""

    gain: Callable[[Sequence[TaskState], TaskState], float]
    slices: int

    def next(self, tasks: Sequence[TaskState]) -> int | None:
        live = _live(tasks)
        fresh = [n for n in live if not tasks[n].slices]
        if fresh and sum(task.slices for task in tasks) + len(fresh) >= self.slices:
            return fresh[0]
        # Where no task promises a gain, as with weights of zero, each gets its turn.
        return max(live, key=lambda n: (self.gain(tasks, tasks[n]), -tasks[n].slices), default=None)


def _live(tasks: Sequence[TaskState]) -> list[int]:
    return [n for n, task in enumerate(tasks) if not task.ended]


def _fewest(tasks: Sequence[TaskState], live: Sequence[int]) -> int | None:
    return min(live, key=lambda n: tasks[n].slices, default=None)


def gradient(tasks: Sequence[TaskState], task: TaskState) -> float:
    """Estimate the network's seconds that a task's next slice may save (GTA, equation 2)."""
    if not task.slices:
        return math.inf
    seconds, count = task.seconds, task.slices
    before = task.best[count - 1 - _WINDOW] if count > _WINDOW else math.inf
    gained = (before - seconds) / _WINDOW if math.isfinite(before) else 0.0
    similar = [each for each in tasks if each.kind == task.kind and each.ran]
    pace = min((each.seconds / each.operations for each in similar), default=math.inf)
    hoped = max(seconds / count, seconds - _SIMILAR * task.operations * pace)
    return task.weight * (_ALPHA * gained + (1 - _ALPHA) * hoped)


def gap(tasks: Sequence[TaskState], task: TaskState) -> float:
    """Estimate the saving of a task's next slice, if kernels were tried at random.

    Optimism under uncertainty: the bound is taken to be in reach. The trial after ``n`` others is
    the fastest with a chance of ``1 / (n + 1)``, and then saves about an ``n``-th of the distance
    to the bound. A task below its own bound shows that the model is slow by a factor; the factor
    then applies to all bounds, and tasks at their bounds are still tried now and then. An untried
    task may be as far off its prediction as the others were.
    """
    ran = [each for each in tasks if each.ran]
    slow = min([1.0, *(each.seconds / each.bound for each in ran)])
    errors = [math.log(each.seconds / each.predicted) for each in ran]
    wrong = math.hypot(_WRONG, *errors) / math.sqrt(1 + len(errors))
    share = _HOPE if task.slices else wrong
    headroom = max(task.seconds - slow * task.bound, share * task.seconds)
    count = max(task.slices, 1)
    return task.weight * headroom / (count * (count + 1))


#: Share of a task's mappings that is searched on, where that is less than all.
RETAINED = {"dual": 0.2}
#: Trials of a slice, where that is not a batch: the time of one kernel may send the next trial
#: elsewhere, and a task that turns out to be near its bound has cost no more than that.
TRIALS = {"bound": 1}
#: Schedulers by name, each made for a number of slices.
SCHEDULERS: dict[str, Callable[[int], TaskScheduler]] = {
    "equal": _Equal,
    "round_robin": lambda _: _RoundRobin(),
    "gradient": partial(_ByGain, gradient),
    "dual": partial(_ByGain, gradient),
    "bound": partial(_ByGain, gap),
}


def scheduler(name: str, slices: int) -> TaskScheduler:
    """Create a scheduler by name, for a number of slices.

    Raises:
        UnknownNameError: there is none of that name.
        ExploreError: there is nothing to divide.
    """
    if name not in [*SCHEDULERS]:
        raise UnknownNameError("scheduler", name, tuple(SCHEDULERS))
    if slices < 1:
        raise ExploreError(f"scheduler {name!r}: expected at least one slice, got {slices}")
    return SCHEDULERS[name](slices)
