"""Schedulers of a network's tasks: what all must hold, and what each of them adds."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amos.errors import ExploreError, UnknownNameError
from amos.explore.task_scheduler import SCHEDULERS, TaskState, gradient, scheduler

#: Seconds of a task after so many slices: it goes down towards a floor, at its own speed.
Curve = tuple[float, float, float]


def _seconds(curve: Curve, slices: int) -> float:
    floor, above, speed = curve
    return floor + above * math.exp(-speed * slices)


def _tuned(
    name: str, curves: list[Curve], weights: list[float], slices: int, ends: int = 10**6
) -> tuple[list[int], list[TaskState]]:
    """Who got the slices, and what became of the tasks."""
    tasks = [TaskState(weight=w, operations=1000, kind="conv", bound=c[0]) for c, w in
             zip(curves, weights, strict=True)]  # fmt: skip
    among, order = scheduler(name, slices), []
    for _ in range(slices):
        n = among.next(tasks)
        if n is None:
            break
        assert not tasks[n].ended
        order.append(n)
        best = (*tasks[n].best, _seconds(curves[n], tasks[n].slices + 1))
        tasks[n] = replace(tasks[n], best=best, ended=len(best) >= ends)
    return order, tasks


curves = st.lists(
    st.tuples(st.floats(1e-6, 1e-2), st.floats(0, 1e-2), st.floats(0.05, 2)), min_size=1, max_size=6
)


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(max_examples=20, deadline=None)
@given(curves, st.integers(1, 40), st.integers(1, 5))
def test_a_scheduler_keeps_the_contract(
    name: str, some: list[Curve], slices: int, ends: int
) -> None:
    weights = [float(n % 3) for n in range(len(some))]
    order, tasks = _tuned(name, some, weights, slices, ends)
    # Every slice goes to a task that can use it, as long as there is one.
    assert len(order) == min(slices, ends * len(some))
    # Whoever sees the same results decides the same, so that a run may be continued.
    assert order == _tuned(name, some, weights, slices, ends)[0]
    # Every task is tried before one is tried for long.
    if name != "equal" and slices >= len(some):
        assert min(task.slices for task in tasks) >= 1


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_task_that_never_runs_does_not_hold_the_others_up(name: str) -> None:
    tasks = [TaskState(1.0, 1000, "conv", 1e-3), TaskState(1.0, 1000, "conv", 1e-3)]
    counts: Counter[int] = Counter()
    for _ in range(20):
        n = scheduler(name, 20).next(tasks)
        assert n is not None
        counts[n] += 1
        reached = math.inf if n == 0 else 2e-3
        tasks[n] = replace(tasks[n], best=(*tasks[n].best, reached))
    assert min(counts.values()) >= 1 and counts[1] >= 10


def test_equal_shares_and_turns() -> None:
    some = [(1e-3, 1e-3, 0.5)] * 3
    assert _tuned("equal", some, [1.0] * 3, 7)[0] == [0, 0, 0, 1, 1, 2, 2]
    assert _tuned("round_robin", some, [1.0] * 3, 7)[0] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("name", ["gradient", "dual", "bound"])
def test_slices_go_where_the_network_gains(name: str) -> None:
    """One task is long and far from its bound, one is at its bound, one hardly occurs."""
    some = [(1e-3, 4e-3, 0.2), (1e-3, 0.0, 1.0), (1e-3, 1e-3, 0.2)]
    order, tasks = _tuned(name, some, [4.0, 4.0, 0.1], 24)
    assert tasks[0].slices > 12 and tasks[2].slices < 6
    equal = _tuned("equal", some, [4.0, 4.0, 0.1], 24)[1]

    def total(states: list[TaskState]) -> float:
        return sum(task.seconds * w for task, w in zip(states, [4.0, 4.0, 0.1], strict=True))

    assert total(tasks) < total(equal)
    assert order[:3] == [0, 1, 2]


def test_the_gradient_is_ansors() -> None:
    """By hand: alpha 0.2, a window of 3 slices, and similar tasks at most twice as slow."""
    task = TaskState(2.0, 100, "conv", 1.0, best=(10.0, 8.0, 7.0, 6.0, 4.0))
    # The best rate of its kind is its own, 25 a second: 4 - 2 * 100 / 25 < 4 / 5.
    assert gradient([task], task) == pytest.approx(2.0 * (0.2 * (8 - 4) / 3 + 0.8 * 4 / 5))
    # Another convolution does 400 a second, so that 0.5 s are hoped for.
    other = TaskState(1.0, 400, "conv", 0.1, best=(1.0,))
    assert gradient([task, other], task) == pytest.approx(2.0 * (0.2 * 4 / 3 + 0.8 * 3.5))
    # One of another kind says nothing of it.
    alien = replace(other, kind="matmul")
    assert gradient([task, alien], task) == gradient([task], task)


def test_what_is_no_scheduler_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="scheduler 'best'"):
        scheduler("best", 4)
    with pytest.raises(ExploreError, match="expected at least one slice, got 0"):
        scheduler("equal", 0)
    assert scheduler("dual", 1).next([]) is None
