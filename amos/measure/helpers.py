"""Processes that compute beside this one; threads would wait for Python's lock.

Each runs this module, and ends with its parent or after some seconds without a call.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import select
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from threading import Lock, Thread
from typing import Any, TypeVar

from amos._processes import python
from amos.errors import AmosError
from amos.measure.messages import encode, receive, send
from amos.measure.result_cache import MISSING, load_result, store_result

_T = TypeVar("_T")
#: Least number of calls for which processes are started, which takes each a second or two.
LEAST_CALLS = 6
#: Seconds without a call after which a process ends.
_IDLE_SECONDS = 30.0
#: Seconds between two looks for work.
_LOOK_SECONDS = 0.05


class HelperLost(AmosError):
    """A process ended in the middle of a call."""


@dataclass(frozen=True)
class _Answer:
    """Outcome of a call: a value, or the error that it raised."""

    value: Any = None
    error: BaseException | None = None


@dataclass(eq=False)
class _Helper:
    """A process, which answers one call at a time.

    Attributes:
        parent: process that it belongs to.
        listens: whether it has reported that it is ready for calls.
        lock: of the thread that calls it.
    """

    parent: int = field(default_factory=os.getpid)
    process: subprocess.Popen[bytes] | None = None
    listens: bool = False
    lock: Lock = field(default_factory=Lock)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, prepare: Callable[[], Any] | None = None) -> subprocess.Popen[bytes]:
        """Start the process, which calls ``prepare``; do not wait until it listens."""
        self.close()
        # Several processes with as many threads as cores each would get in each other's way.
        alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            python(__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **alone},
        )
        send(_number(self.process.stdin), encode(prepare))
        return self.process

    def ready(self) -> subprocess.Popen[bytes]:
        """Return the process once it listens; raise Exception if it does not start."""
        process = self.process if self.process is not None and self.runs else self.start()
        if not self.listens:
            try:
                receive(_number(process.stdout))
            except BaseException:
                self.close()
                raise
            self.listens = True
        return process

    def serve(self, jobs: deque[_Job]) -> None:
        """Take jobs as long as there are any."""
        with self.lock:
            if not jobs:
                return
            try:
                process = self.ready()
            except Exception:  # whatever is in its way, this process does the work alone
                return
            while jobs:
                try:
                    job = jobs.popleft()
                except IndexError:
                    return
                try:
                    send(_number(process.stdin), job.message)
                    answer: _Answer = receive(_number(process.stdout))
                except (EOFError, OSError):
                    if _has_idled_out(process):
                        jobs.appendleft(job)
                    else:
                        job.future.set_exception(
                            HelperLost("a process that computed beside this one has crashed")
                        )
                    self.close()
                    return
                except Exception as error:
                    job.future.set_exception(error)
                    self.close()
                    return
                job.finish(answer)

    def close(self) -> None:
        if self.process is not None:
            if self.parent == os.getpid():
                self.process.kill()
                self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
            self.process, self.listens = None, False


@dataclass(eq=False)
class _Job:
    """A call that is to be made."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    key: str = ""
    future: Future[Any] = field(default_factory=Future)

    def load(self) -> bool:
        """Take the result of an earlier process, if there is one."""
        result = load_result(self.key) if self.key else MISSING
        if result is MISSING:
            return False
        self.future.set_result(result)
        return True

    @property
    def message(self) -> bytes:
        return encode((self.function, self.arguments))

    def finish(self, answer: _Answer) -> None:
        if answer.error is not None:
            self.future.set_exception(answer.error)
        else:
            self.future.set_result(answer.value)
            if self.key:
                store_result(self.key, answer.value)


_helpers: list[_Helper] = []
_lock = Lock()


def map_in_processes(
    function: Callable[..., _T],
    *arguments: Iterable[Any],
    keys: Iterable[str] = repeat(""),
    here: Callable[..., _T] | None = None,
    lost: Callable[[HelperLost], _T] | None = None,
) -> Generator[_T, None, None]:
    """Call a function on each of its arguments, as ``map`` does, on all cores.

    This process computes too, and one for each other core, if there are enough calls to start
    them or they are there already. An error, or an interrupt, ends it without the calls that
    have not begun.

    Args:
        function: of a module; what it takes and returns is pickled.
        arguments: of each call.
        keys: of each call's result in the cache on disk; calls of one key are made once.
        here: what this process calls in its place, if it is not the same.
        lost: makes the result of a call whose process crashed.

    Yields:
        the results in order.

    Raises:
        HelperLost: a process crashed, and ``lost`` is not given.
    """
    jobs: list[_Job] = []
    by_key: dict[str, _Job] = {}
    for request, key in zip(zip(*arguments, strict=False), keys, strict=False):
        job = _Job(function, request, key)
        jobs.append(by_key.setdefault(key, job) if key else job)
    waiting = deque(job for job in dict.fromkeys(jobs) if not job.load())
    count = min(_count_cores(), len(waiting)) - 1
    for helper in _get_helpers(count, start=len(waiting) >= LEAST_CALLS):
        Thread(target=helper.serve, args=(waiting,), daemon=True).start()
    try:
        for job in jobs:
            while not job.future.done():
                try:
                    own = waiting.popleft()
                except IndexError:  # but a helper may give one back
                    wait([job.future], _LOOK_SECONDS)
                else:
                    own.finish(_answer(here or function, own.arguments))
            error = job.future.exception()
            if lost is not None and isinstance(error, HelperLost):
                yield lost(error)
            else:
                yield job.future.result()
    finally:
        waiting.clear()


def start_helpers(calls: int, function: Callable[[], Any]) -> None:
    """Start processes ahead of enough calls, and let each call a function at once."""
    if calls >= LEAST_CALLS:
        for helper in _get_helpers(min(_count_cores(), calls) - 1, start=True):
            if not helper.runs:
                with suppress(Exception), helper.lock:  # else calls are made without it
                    helper.start(function)


def _count_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def _get_helpers(count: int, *, start: bool) -> list[_Helper]:
    """Return up to ``count`` helpers of this process; a forked process has its own."""
    with _lock:
        if any(each.parent != os.getpid() for each in _helpers):
            _helpers.clear()
        while start and len(_helpers) < count:
            _helpers.append(_Helper())
        return [each for each in _helpers[:count] if start or each.runs]


@atexit.register
def stop_helpers() -> None:
    """End the processes; calls start others."""
    for helper in _helpers:
        helper.close()


def _has_idled_out(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process ended because it was idle for too long."""
    try:
        return process.wait(_LOOK_SECONDS) == 0
    except subprocess.TimeoutExpired:
        return False


def _number(pipe: Any) -> int:
    return int(pipe.fileno())


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> _Answer:
    try:
        return _Answer(function(*arguments))
    except Exception as error:
        return _Answer(error=error)


def _serve() -> None:
    """Answer calls in the started process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outward = os.dup(1)
    os.dup2(2, 1)  # compilers' output is no answer
    try:
        prepare = receive(0)
    except EOFError:
        return
    if prepare is not None:
        _answer(prepare, ())  # the calls that need it report the error
    gc.freeze()  # modules stay, and looking through them takes longer than some calls
    send(outward, encode(None))
    while select.select([0], [], [], _IDLE_SECONDS)[0]:
        try:
            function, arguments = receive(0)
        except EOFError:
            return
        answer = _answer(function, arguments)
        try:
            data = encode(answer)
            pickle.loads(pickle.dumps(answer.error))  # which errors with more arguments are not
        except Exception as error:  # whatever classes raise that cannot be pickled
            data = encode(_Answer(error=AmosError(f"{answer.error or error}")))
        send(outward, data)


if __name__ == "__main__":
    from amos.measure import helpers  # by the name by which answers are read

    helpers._serve()
