"""Contract of schedulers of a network's tasks; one joins by naming its factory.

>>> from amos.explore.task_scheduler import SCHEDULERS
>>> class TestMyScheduler(SchedulerContract):
...     make = staticmethod(SCHEDULERS["gradient"])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from amos.explore.task_scheduler import TaskScheduler, TaskState


@dataclass(frozen=True)
class Falling:
    """A task whose time falls towards a floor, slice by slice, at its own speed.

    Attributes:
        floor: seconds in the end, and the model's bound.
        above: seconds above it in the beginning; infinite if no kernel ever runs.
        speed: of the fall.
        ends: slices after which nothing is left to try.
    """

    floor: float = 1e-3
    above: float = 1e-3
    speed: float = 0.5
    weight: float = 1.0
    ends: int = 10**6

    def seconds(self, slices: int) -> float:
        """Return the seconds after some slices."""
        return self.floor + self.above * math.exp(-self.speed * slices)


def divide_slices(
    among: TaskScheduler, tasks: Sequence[Falling], slices: int
) -> tuple[list[int], list[TaskState]]:
    """Divide slices; return their allocation and the final states of the tasks."""
    states = [TaskState(task.weight, 1000, "conv2d", task.floor, task.floor) for task in tasks]
    order: list[int] = []
    while len(order) < slices and (n := among.next(states)) is not None:
        assert not states[n].ended
        order.append(n)
        best = (*states[n].best, tasks[n].seconds(states[n].slices + 1))
        states[n] = replace(states[n], best=best, ended=len(best) >= tasks[n].ends)
    return order, states


class SchedulerContract:
    """Subclass it in a test module and set ``make``.

    Attributes:
        make: makes the scheduler for a number of slices.
        tries_all: whether every task is tried before any is for long.
    """

    make: Callable[[int], TaskScheduler]
    tries_all = True

    def test_every_slice_goes_to_a_task_that_can_use_it(self) -> None:
        """Also after other tasks ended, until all have."""
        for slices, ends, count in product((1, 5, 40), (1, 3), (1, 2, 6)):
            tasks = [Falling(above=1e-3 * n, weight=n % 3, ends=ends) for n in range(count)]
            order, states = divide_slices(self.make(slices), tasks, slices)
            assert len(order) == min(slices, ends * count)
            assert all(state.ended for state in states) or len(order) == slices
            if self.tries_all and slices >= count:
                assert min(state.slices for state in states) >= 1

    def test_it_keeps_nothing_in_mind(self) -> None:
        """Equal results lead to equal decisions, so that a run can be continued."""
        tasks = [Falling(above=1e-3 * n, speed=0.1 * n, weight=n) for n in range(1, 5)]
        order, _ = divide_slices(self.make(30), tasks, 30)
        for done in range(30):
            _, states = divide_slices(self.make(30), tasks, done)
            assert self.make(30).next(states) == order[done]

    def test_no_task(self) -> None:
        """Without tasks there is no choice."""
        assert self.make(4).next([]) is None

    def test_what_never_runs_does_not_hold_the_others_up(self) -> None:
        """A network without any running task uses all slices, too."""
        order, _ = divide_slices(self.make(20), [Falling(above=math.inf), Falling()], 20)
        assert {0, 1} == {*order} and order.count(1) >= 10
        assert len(divide_slices(self.make(20), [Falling(above=math.inf)] * 3, 20)[0]) == 20

    def test_where_nothing_counts_each_gets_its_turn(self) -> None:
        """All weights are zero, or nothing ever runs."""
        for task in (Falling(weight=0.0), Falling(above=math.inf)):
            _, states = divide_slices(self.make(20), [task] * 4, 20)
            assert [state.slices for state in states] == [5] * 4
