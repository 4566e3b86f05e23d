"""Schedulers of a network's tasks: what all must hold, and what each of them adds."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from amos.errors import ExploreError, UnknownNameError
from amos.explore.task_scheduler import SCHEDULERS, TaskState, gap, gradient, scheduler
from amos.testing.schedulers import Falling, SchedulerContract, divide_slices


class TestEqual(SchedulerContract):
    make = staticmethod(SCHEDULERS["equal"])
    tries_all = False


class TestRoundRobin(SchedulerContract):
    make = staticmethod(SCHEDULERS["round_robin"])


class TestGradient(SchedulerContract):
    make = staticmethod(SCHEDULERS["gradient"])


class TestDual(SchedulerContract):
    make = staticmethod(SCHEDULERS["dual"])


class TestBound(SchedulerContract):
    make = staticmethod(SCHEDULERS["bound"])


def test_equal_shares_and_turns() -> None:
    assert divide_slices(scheduler("equal", 7), [Falling()] * 3, 7)[0] == [0, 0, 0, 1, 1, 2, 2]
    assert divide_slices(scheduler("round_robin", 7), [Falling()] * 3, 7)[0] == [
        0,
        1,
        2,
        0,
        1,
        2,
        0,
    ]


@pytest.mark.parametrize("name", ["gradient", "dual", "bound"])
def test_slices_go_where_the_network_gains(name: str) -> None:
    """One task is long and far from its bound, one is at its bound, one hardly occurs."""
    some = [Falling(above=4e-3, speed=0.2, weight=4.0), Falling(above=0.0, weight=4.0)]
    some.append(Falling(speed=0.2, weight=0.1))
    order, tasks = divide_slices(scheduler(name, 24), some, 24)
    assert tasks[0].slices > 12 and tasks[2].slices < 6
    equal = divide_slices(scheduler("equal", 24), some, 24)[1]

    def total(states: list[TaskState]) -> float:
        return sum(state.seconds * state.weight for state in states)

    assert total(tasks) < total(equal)
    assert {*order} == {0, 1, 2}


def test_the_gradient_is_ansors() -> None:
    """By hand: alpha 0.2, a window of 3 slices, and similar tasks at most twice as slow."""
    task = TaskState(2.0, 100, "conv", 1.0, 3.0, best=(10.0, 8.0, 7.0, 6.0, 4.0))
    # The best rate of its kind is its own, 25 a second: 4 - 2 * 100 / 25 < 4 / 5.
    assert gradient([task], task) == pytest.approx(2.0 * (0.2 * (8 - 4) / 3 + 0.8 * 4 / 5))
    # Before there were more slices than the window has, TVM counts no gain.
    early = replace(task, best=task.best[:3])
    assert gradient([early], early) == pytest.approx(2.0 * 0.8 * 7 / 3)
    # Another convolution does 400 a second, so that 0.5 s are hoped for.
    neighbour = TaskState(1.0, 400, "conv", 0.1, 1.0, best=(1.0,))
    assert gradient([task, neighbour], task) == pytest.approx(2.0 * (0.2 * 4 / 3 + 0.8 * 3.5))
    # One of another kind says nothing of it, nor does one of which no kernel ran.
    for silent in (replace(neighbour, kind="matmul"), replace(neighbour, best=(math.inf,))):
        assert gradient([task, silent], task) == gradient([task], task)


def test_the_gap_is_to_the_bound() -> None:
    """After two trials the third is the fastest one time in three, then by half of the gap."""
    task = TaskState(2.0, 100, "conv", 1.0, 4.0, best=(10.0, 4.0))
    assert gap([task], task) == pytest.approx(2.0 * (4 - 1) / (2 * 3))
    # The model is slow by a factor of 4, as another task shows: a quarter of each bound counts.
    neighbour = TaskState(1.0, 400, "matmul", 2.0, 0.5, best=(0.5,))
    assert gap([task, neighbour], task) == pytest.approx(2.0 * (4 - 0.25) / (2 * 3))
    # What is at its bound may still lose a tenth, or nothing would try it before all others end.
    assert gap([task, neighbour], neighbour) == pytest.approx(1.0 * 0.1 * 0.5 / 2)


def test_what_was_not_measured_may_lose_what_the_model_is_wrong_by() -> None:
    fresh = TaskState(2.0, 100, "conv", 3.9, 4.0)
    assert gap([fresh], fresh) == pytest.approx(2.0 * 4.0 / 2)
    # Three were as predicted, so that the model is wrong by half of what was feared.
    right = TaskState(1.0, 100, "conv", 1.0, 1.0, best=(1.0,))
    assert gap([fresh, *[right] * 3], fresh) == pytest.approx(2.0 * 4.0 / 2 / 2)
    wrong = replace(right, best=(math.e**2,))
    assert gap([fresh, *[wrong] * 3], fresh) == pytest.approx(2.0 * 4.0 * math.sqrt(13) / 2 / 2)
    # What was tried and never ran holds up nobody.
    failed = replace(fresh, best=(math.inf,) * 3)
    assert gap([failed], failed) == pytest.approx(2.0 * 0.4 / (3 * 4))


def test_bound_leaves_out_what_is_too_short_to_matter_until_the_end() -> None:
    tasks = [Falling(speed=0.1), Falling(weight=1e-3)]
    assert divide_slices(scheduler("bound", 10), tasks, 10)[0] == [0] * 9 + [1]


@pytest.mark.parametrize("name", [*SCHEDULERS])
def test_choosing_costs_nothing_beside_measuring(name: str) -> None:
    """Less than a hundredth of 800 trials of a tenth of a second, a fifth of what one takes."""
    tasks = [Falling(above=1e-3 * n, speed=0.01 * n) for n in range(30)]
    start = time.thread_time()
    divide_slices(scheduler(name, 100), tasks, 100)
    assert time.thread_time() - start < 0.8


def test_what_is_no_scheduler_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="scheduler 'best'"):
        scheduler("best", 4)
    with pytest.raises(ExploreError, match="expected at least one slice, got 0"):
        scheduler("equal", 0)
    task = TaskState(1.0, 1, "conv", 1.0, 1.0)
    wrong = dict(weight=-1.0), dict(operations=0), dict(bound=0.0), dict(predicted=0.0)
    for options in (*wrong, dict(weight=math.nan)):
        with pytest.raises(ExploreError, match="expected a weight from 0 on"):
            replace(task, **options)
