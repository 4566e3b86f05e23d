"""The process between an exploration and its candidates.

Started as ``python -m amos.measure.guard PARENT FOLDER``. It never runs a
candidate: it loads TVM once, forks workers that do, enforces their limits, reports
their failures, and ends them and itself when its parent is gone. Its one thread
sleeps in ``select``, so neither a hanging candidate nor the thread that started it can
keep it alive. A lost worker costs one ``fork``, not one start of Python and TVM.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
import traceback
import warnings
from typing import Any, NoReturn

from amos.ir import Operator
from amos.measure.limits import CoreLock, lacks_memory, limit_memory, waiting_seconds
from amos.measure.messages import (
    GO,
    Deadline,
    Failure,
    NeedsCores,
    Reply,
    Request,
    encode,
    receive,
    send,
)
from amos.measure.reference import References
from amos.plan.target import load

#: Bytes of standard error that a message may draw on.
_TAIL = 4096
#: Seconds between two attempts to get the cores.
_PAUSE = 0.002
#: After any other failure the worker may have been harmed, and is replaced.
_HARMLESS = ("", "build", "unheld")


class _Worker:
    """A forked worker and the pipes to it.

    Args:
        memory: bytes that the worker may allocate, with the references; 0 for no limit.
        ready: preparations that the worker inherits, and those that failed.
    """

    def __init__(
        self, references: References, memory: int, ready: frozenset[Operator | str]
    ) -> None:
        from amos.measure.worker import serve

        inward, self.requests = os.pipe()
        self.replies, outward = os.pipe()
        guard = os.getpid()
        with warnings.catch_warnings():
            # NumPy's idle threads; its library handles a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self.requests)
            os.close(self.replies)
            _become(serve, inward, outward, references, memory, guard)
        # A second process group: all processes that the candidate starts end with it.
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)
        os.close(inward)
        os.close(outward)
        self.memory, self.ready = memory, ready

    def end(self) -> tuple[int, int]:
        """Kill it with everything that it started; return its status and peak kibibytes."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> tuple[int, int]:
        """Wait for its end; exit status, negative for a signal, and peak kibibytes."""
        _, status, usage = os.wait4(self.pid, 0)
        os.close(self.requests)
        os.close(self.replies)
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(status), usage.ru_maxrss


def _become(serve: Any, inward: int, outward: int, *arguments: Any) -> NoReturn:
    """Serve requests in the forked worker; never return into the guard's code."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        serve(inward, outward, *arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


class _Guard:
    """One guard: at most one worker, and at most one request at a time."""

    def __init__(self, parent: int, folder: str) -> None:
        from amos.intrinsics import provide

        # Modules loaded here cost no worker time within its limit, the registry first of all.
        provide(())
        self.parent, self.folder = parent, folder
        self.worker: _Worker | None = None
        self.references = References()
        self.loaded: set[Operator | str] = set()
        self.cores = CoreLock()

    def serve(self) -> None:
        """Answer requests until the parent is gone."""
        while True:
            request: Request = receive(0, watch=self.check_parent)
            try:
                reply = self.answer(request)
            finally:
                self.cores.release()
            send(1, encode(reply))

    def answer(self, request: Request) -> Reply[Any]:
        """Have a worker do it, within the limits of the request."""
        memory, needs = request.memory, request.job.needs
        # A worker that lacks something would load it within the limit; a fork costs less.
        worker = self.worker
        if worker is not None and (worker.memory != memory or not needs <= worker.ready):
            self.drop()
        if self.worker is None:
            self.prepare(needs, memory)
            ready = needs | self.loaded | self.references.operators
            self.worker = _Worker(self.references, memory, ready)
        os.ftruncate(2, 0)
        try:
            reply = self.exchange(self.worker, request)
        except TimeoutError:
            self.drop()
            return Reply(Failure("timeout", f"no answer within {request.limit:g} s"))
        except (EOFError, BrokenPipeError):
            return Reply(self.describe_death(memory))
        if reply.retire or reply.failure not in _HARMLESS:
            self.drop()
        return reply

    def prepare(self, needs: frozenset[Operator | str], memory: int) -> None:
        """Load and compute here what a job needs, for every worker to inherit.

        CUDA's driver is loaded by the worker only: it does not outlive a fork.
        """
        for need in needs - self.loaded:
            # A failure belongs to the worker, which tries again and reports it.
            with contextlib.suppress(Exception):
                if isinstance(need, Operator):
                    with limit_memory(memory and max(1, memory - self.references.bytes)):
                        self.references.get(need)
                else:
                    load(need)()
        self.loaded |= {need for need in needs if isinstance(need, str)}

    def exchange(self, worker: _Worker, request: Request) -> Reply[Any]:
        """Send one request to the worker and await its reply.

        Time spent waiting does not count: neither for candidates on the same cores, nor for other
        processes that the system schedules.
        """
        deadline = Deadline(request.limit, lambda: waiting_seconds(worker.pid))
        send(worker.requests, encode(request))
        while True:
            reply: Reply[Any] | NeedsCores = receive(
                worker.replies, deadline, also=0, watch=self.check_asked
            )
            if isinstance(reply, Reply):
                return reply
            waiting = time.monotonic()
            while not self.cores.acquire():
                self.check_asked()
                time.sleep(_PAUSE)
            deadline.extend(time.monotonic() - waiting)
            send(worker.requests, encode(GO))

    def describe_death(self, memory: int) -> Failure:
        """Describe the worker's death: kind of failure, and one line."""
        assert self.worker is not None
        code, peak = self.worker.wait()
        self.worker = None
        output = self.read_last_output()
        last = output.strip().splitlines()[-1] if output.strip() else ""
        named = signal.Signals(-code).name if code < 0 else f"status {code}"
        message = f"the worker {'was ended by' if code < 0 else 'ended with'} {named}"
        if lacks_memory(output):
            kind = "memory"
        elif code == -signal.SIGKILL:
            kind, last = "memory", f"as the system does without memory; it had {peak >> 10} MiB"
        elif memory and code < 0 and peak * 1024 > 0.9 * memory:
            kind, last = "memory", f"at {peak >> 10} of {memory >> 20} MiB"
        else:
            kind = "abort" if code == -signal.SIGABRT else "crash"
            last = "" if code < 0 else last
        return Failure(kind, message + (f": {last}" if last else ""))

    def read_last_output(self) -> str:
        """Return the end of the worker's standard error."""
        with contextlib.suppress(OSError):
            size = os.fstat(2).st_size
            return os.pread(2, _TAIL, max(0, size - _TAIL)).decode(errors="replace")
        return ""

    def drop(self) -> None:
        if self.worker is not None:
            self.worker.end()
            self.worker = None
            with contextlib.suppress(OSError):
                for entry in os.scandir(self.folder):
                    shutil.rmtree(entry.path, ignore_errors=True)
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)

    def check_parent(self) -> None:
        if os.getppid() != self.parent:
            raise SystemExit(0)

    def check_asked(self) -> None:
        """Exit if the parent no longer waits for the answer.

        No request comes before the last one was answered, so a pipe that can be
        read has been closed.
        """
        self.check_parent()
        if select.select([0], [], [], 0)[0]:
            raise SystemExit(0)

    def close(self) -> None:
        self.drop()
        self.cores.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def main() -> None:
    """Serve requests until standard input closes or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parent, folder = int(sys.argv[1]), sys.argv[2]
    os.environ["TMPDIR"] = folder
    guard = _Guard(parent, folder)
    try:
        guard.serve()
    except (EOFError, BrokenPipeError, SystemExit):
        pass
    finally:
        guard.close()
    # An orderly shutdown of TVM takes too long.
    os._exit(0)


if __name__ == "__main__":
    main()
