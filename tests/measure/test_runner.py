"""A worker that crashes, hangs or lies must not take anybody with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import amos
from amos.ir import Operator
from amos.measure import Runner, Task
from amos.measure.limits import CoreLock, waiting_seconds
from amos.measure.messages import Context
from amos.measure.reference import References, _difference, tolerance
from amos.measure.runner import measurement_of
from amos.measure.task import repeat_count
from amos.plan import Candidate, Schedule
from amos.records import Measurement
from amos.schedule import ScheduleSpace
from tests.support.misbehaviour import Drill, pid_of

pytestmark = pytest.mark.features

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
TEXT = "out[i,j] += a[i,k] * weight[j,k]"
OP = Operator.parse(TEXT, extents=dict(i=6, j=16, k=8))
MAPPING = amos.enumerate_mappings(OP, VNNI)[0]
CANDIDATE = Candidate(MAPPING, ScheduleSpace(MAPPING).smallest())

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="needs /proc to see which processes live"
)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as started:
        yield started


def _drill(runner: Runner, how: str, timeout: float | None = None) -> Measurement:
    return measurement_of(runner.request(Drill(how), timeout))


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _gone(pid: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while _alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not _alive(pid)


@pytest.mark.parametrize(
    ("how", "failure", "message"),
    [
        ("segfault", "crash", "the worker was ended by SIGSEGV"),
        ("abort", "abort", "the worker was ended by SIGABRT"),
        ("exit", "crash", "the worker ended with status 3"),
        ("raise", "error", "RuntimeError: raised on purpose"),
        ("wrong", "wrong", "largest difference 1"),
        ("nan", "nan", "1 of 1 elements are not a number"),
    ],
)
def test_a_lost_worker_is_reported_and_replaced(
    runner: Runner, how: str, failure: str, message: str
) -> None:
    before, guard = pid_of(runner), runner.pid
    reply = _drill(runner, how)
    assert (reply.failure, reply.message) == (failure, message)
    assert pid_of(runner) != before
    assert runner.pid == guard


def test_a_worker_is_kept_while_it_is_healthy(runner: Runner) -> None:
    assert runner.measure(Task(CANDIDATE, 3)).ok
    pids = {pid_of(runner) for _ in range(3)}
    assert len(pids) == 1
    assert runner.measure(Task(Candidate(MAPPING, Schedule.of({"tile.i": 4})))).failure == "build"
    assert pid_of(runner) in pids


def test_a_worker_finds_everything_loaded() -> None:
    """Whatever a worker has to load first, it would load within the limit of a candidate."""
    with Runner(timeout=0.2) as quick:
        for _ in range(3):
            assert _drill(quick, "nothing").ok
            assert _drill(quick, "segfault").failure == "crash"


def test_what_a_request_needs_is_prepared_before_the_worker(runner: Runner) -> None:
    def fresh(extent: int) -> bool:
        op = Operator.parse(TEXT, extents=dict(i=extent, j=16, k=8))
        mapping = amos.enumerate_mappings(op, VNNI)[0]
        candidate = Candidate(mapping, ScheduleSpace(mapping).smallest())
        before = pid_of(runner)
        assert not runner.request(Task(candidate, 1)).failure
        return pid_of(runner) != before

    assert fresh(3)
    assert not fresh(3)
    assert _drill(runner, "nothing").ok
    assert not fresh(3)
    assert fresh(4)
    # Of two operators the results are kept.
    assert not fresh(3)


@pytest.mark.skipif(
    not waiting_seconds(os.getpid()), reason="the system does not count waiting for a core"
)
def test_a_busy_neighbour_is_not_on_the_account_of_a_candidate() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    neighbours = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(3)]
    try:
        with Runner() as crowded:
            assert _drill(crowded, "nothing").ok
            reply = _drill(crowded, "toil", timeout=0.25)
            assert reply.ok
            assert reply.work_seconds > 0.25
    finally:
        os.sched_setaffinity(0, before)
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def test_memory_is_limited() -> None:
    with Runner(memory=256 << 20) as small:
        assert _drill(small, "allocate").failure == "memory"
        assert small.measure(Task(CANDIDATE, 3)).ok


@needs_proc
def test_what_a_candidate_leaves_behind_is_removed() -> None:
    with Runner() as runner:
        _drill(runner, "nothing")
        folder = Path(str(runner._folder))
        reply = _drill(runner, "litter", timeout=1.0)
        assert reply.failure == "timeout"
        assert list(folder.iterdir()) == []
        # A process that was killed ends when it next gets a core.
        assert all(_gone(pid) for pid in _descendants(os.getpid(), "time.sleep(1000)"))
    assert not folder.exists()


def _descendants(root: int, command: str) -> list[int]:
    measurement = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if command in path.read_bytes().decode(errors="replace"):
                measurement.append(int(path.parent.name))
    return [pid for pid in measurement if _alive(pid)]


def test_cores_are_not_shared() -> None:
    """Two candidates never run at once, whichever processes ask for them."""
    lock = CoreLock()
    with Runner() as runner:
        _drill(runner, "work")
        assert lock.acquire()
        done: list[Measurement] = []
        thread = threading.Thread(target=lambda: done.append(_drill(runner, "work", 0.2)))
        thread.start()
        thread.join(0.6)
        # Waiting for the cores is not on the candidate's account.
        assert not done
        lock.release()
        thread.join(10)
        assert done[0].ok
    lock.close()


def test_a_worker_outlives_the_thread_that_started_it() -> None:
    with Runner() as runner:
        pids: list[int] = []
        thread = threading.Thread(target=lambda: pids.append(pid_of(runner)))
        thread.start()
        thread.join()
        time.sleep(0.2)
        assert pid_of(runner) == pids[0]


@needs_proc
def test_a_hanging_worker_is_ended_in_time(runner: Runner) -> None:
    pid = pid_of(runner)
    start = time.monotonic()
    reply = _drill(runner, "hang", timeout=0.3)
    assert (reply.failure, reply.message) == ("timeout", "no answer within 0.3 s")
    assert time.monotonic() - start < 3
    assert not _alive(pid)
    assert pid_of(runner) != pid


@pytest.mark.parametrize("whole", [False, True])
def test_a_worker_that_was_killed_between_requests_is_replaced(whole: bool) -> None:
    with Runner() as runner:
        pid = pid_of(runner)
        assert runner.pid is not None
        os.kill(runner.pid if whole else pid, signal.SIGKILL)
        assert _gone(pid)
        with contextlib.suppress(AssertionError):
            assert pid_of(runner) != pid
        assert pid_of(runner) != pid


@needs_proc
def test_close_leaves_no_process() -> None:
    runner = Runner()
    assert runner.pid is None
    pid = pid_of(runner)
    assert _alive(pid)
    runner.close()
    assert not _alive(pid)
    runner.close()
    assert runner.pid is None


_PARENT = """
import os, sys
from amos.measure import Runner
from tests.support.misbehaviour import Drill, pid_of
with Runner() as runner:
    print(pid_of(runner), flush=True)
    runner.request(Drill("hang"), 60)
"""


@needs_proc
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_worker_ends_with_its_parent(end: signal.Signals) -> None:
    """Ctrl-C reaches the parent, which ends the worker; so does losing the parent."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert _alive(worker)
        time.sleep(0.1)
        if end is signal.SIGINT:
            os.killpg(parent.pid, end)  # as a terminal does
        else:
            os.kill(parent.pid, end)
        assert parent.wait(timeout=20) != 0
        assert _gone(worker)
    finally:
        parent.kill()
        parent.wait()
        if parent.stdout is not None:
            parent.stdout.close()


def test_a_right_candidate_is_verified_and_timed(runner: Runner) -> None:
    measurement = runner.measure(Task(CANDIDATE, 3))
    assert measurement.ok
    assert (measurement.failure, measurement.message) == ("", "")
    assert (measurement.verified_elements, measurement.max_difference) == (6 * 16, 0.0)
    assert len(measurement.times) in (3, 6, 9)
    assert measurement.work_seconds > 0
    assert measurement.implementation in ("native", "generic")
    assert 0 < measurement.seconds < 1


def test_an_infeasible_candidate_is_a_build_failure(runner: Runner) -> None:
    measurement = runner.measure(Task(Candidate(MAPPING, Schedule.of({"tile.i": 4}))))
    assert (measurement.failure, measurement.seconds) == ("build", float("inf"))
    assert "tile.i" in measurement.message
    assert not measurement.ok


def test_an_unknown_implementation_is_a_build_failure(runner: Runner) -> None:
    measurement = runner.measure(Task(CANDIDATE, implementation="fast"))
    assert measurement.failure == "build"


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that drops a carry must not be timed."""
    import amos.validate

    right = amos.validate.evaluate

    def off_by_one(op: Operator, inputs: dict[str, np.ndarray]) -> np.ndarray:
        result = np.array(right(op, inputs))
        result[-1, -1] += 1
        return result

    monkeypatch.setattr(amos.validate, "evaluate", off_by_one)
    measurement = Task(CANDIDATE, implementation="generic").run(Context(References(), lambda: None))
    assert isinstance(measurement, Measurement)
    assert measurement.failure == "wrong"
    assert measurement.message == "largest difference 1"
    assert measurement.max_difference == 1.0
    assert not measurement.times


def test_references_are_computed_once_for_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    references = References()
    first = references.get(MAPPING.operator)
    assert references.get(MAPPING.operator) is first
    for name in "xyz":
        references.get(replace(MAPPING.operator, name=name))
    assert references.get(MAPPING.operator) is not first


def test_differences() -> None:
    array = np.array([1.0, 2.0], np.float32)
    assert _difference(array, array) == 0
    assert _difference(np.array([1.0, np.nan], np.float32), array) == np.inf
    assert _difference(np.zeros(0), np.zeros(0)) == 0
    assert _difference(np.array([250], np.uint8), np.array([3], np.uint8)) == 247


def test_integers_must_be_equal_and_floats_close() -> None:
    assert tolerance(MAPPING.operator, np.zeros((6, 16), np.int32)) == 0
    bound = tolerance(MAPPING.operator, np.full((6, 16), 100, np.float32))
    assert 0 < bound < 1e-2


def test_a_worker_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "nothing-of-this-name")
    with Runner() as runner, pytest.raises(amos.AmosError, match="cannot start"):
        _drill(runner, "nothing")


@pytest.mark.parametrize(
    ("rival", "once", "count"), [(0.05, 0.1, 3), (0.09, 0.1, 10), (0.09, 1.0, 10), (1e-4, 1e-3, 10)]
)
def test_a_slow_kernel_far_behind_its_rival_is_timed_a_few_times(
    rival: float, once: float, count: int
) -> None:
    """A first run that compiles something does not shorten the others."""
    kernel = SimpleNamespace(times=lambda inputs, *, repeat, flush: [min(once, 0.1)] * repeat)
    assert len(Task(CANDIDATE, rival=rival)._times(kernel, {}, once, 30.0)) == count


def test_a_kernel_faster_than_the_clocks_tick_is_timed_as_often_as_requested() -> None:
    assert repeat_count(10, 0.0) == 10
