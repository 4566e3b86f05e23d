"""Calls in other processes: in order, on several of them, and none that can harm this one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from amos.errors import NetworkError
from amos.measure import helpers
from amos.measure.helpers import HelperLost, map_in_processes


def _square(number: int) -> tuple[int, int]:
    time.sleep(0.02)
    return number**2, os.getpid()


def _refuse(number: int) -> int:
    if number == 3:
        raise NetworkError("three")
    return number


def _crash(parent: int) -> int:
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
    return 0


def _wait_and_return_a_function(parent: int) -> object:
    time.sleep(0.05)
    return None if os.getpid() == parent else lambda: None


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    yield
    helpers.stop_helpers()


def _started() -> None:
    """Wait until a process listens, so that it gets some of the calls."""
    (helper,) = helpers._get_helpers(1, start=True)
    with helper.lock:
        helper.ready()


def test_results_are_in_order_and_two_processes_make_them() -> None:
    _started()
    results = [*map_in_processes(_square, range(40))]
    assert [square for square, _ in results] == [n**2 for n in range(40)]
    assert len({process for _, process in results}) == 2


def test_few_calls_start_no_process() -> None:
    results = [*map_in_processes(_square, range(helpers.LEAST_CALLS - 1))]
    assert {process for _, process in results} == {os.getpid()}
    assert not any(each.runs for each in helpers._helpers)


def test_an_error_ends_it() -> None:
    results = map_in_processes(_refuse, range(8))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(NetworkError, match="three"):
        next(results)


def test_a_process_that_crashes_is_an_error_or_a_result_of_its_own() -> None:
    _started()
    with pytest.raises(HelperLost, match="crashed"):
        [*map_in_processes(_crash, [os.getpid()] * 6)]
    _started()
    results = [*map_in_processes(_crash, [os.getpid()] * 6, lost=lambda _: 1)]
    assert sorted(results) == [0, 0, 0, 0, 0, 1]


def test_what_cannot_be_sent_back_is_an_error() -> None:
    _started()
    with pytest.raises(Exception, match="pickle"):
        [*map_in_processes(_wait_and_return_a_function, [os.getpid()] * 6)]


def test_a_process_that_was_idle_for_long_is_started_anew() -> None:
    _started()
    (helper,) = helpers._helpers
    assert helper.process is not None
    first = helper.process
    assert first.stdin is not None
    first.stdin.close()  # as if nothing had come for long enough: it ends with status 0
    assert first.wait() == 0
    _started()
    assert helper.process is not first and helper.runs
