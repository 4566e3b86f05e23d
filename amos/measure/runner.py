"""Measuring in a process of its own, with limits, that can be lost and replaced."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import tempfile
from dataclasses import replace
from typing import TypeVar

from amos._closing import Closing
from amos._processes import python
from amos.errors import MeasureError
from amos.intrinsics import Implementation, Intrinsic, implementations
from amos.ir import Operator
from amos.measure.messages import Deadline, Failure, Job, Reply, Request, encode, receive, send
from amos.measure.probe import Figures, Probe
from amos.measure.reference import Demand
from amos.measure.task import Task
from amos.records import Measurement

#: Longest that building, verifying and timing one candidate may take, in seconds.
DEFAULT_TIMEOUT = 30.0
#: Runs for which a limit allows, at the model's word: one to verify, one to warm up, one
#: to be timed, each a few times slower than predicted.
_RUNS = 12.0
#: Factor by which the guard may take longer than the worker: loading TVM, reference
#: results, other candidates on the same cores. Beyond it the guard is replaced.
_PATIENCE = 600.0
#: Factor by which NumPy's reference may be slower than estimated.
_SLOWER = 10.0
#: Seconds that a probe may take, and more for the rate of each intrinsic: several times
#: what it takes a machine that does nothing else.
_PROBE, _PROBE_EACH = 90.0, 30.0
T = TypeVar("T")


def measurement_of(reply: Reply[Measurement]) -> Measurement:
    """Return a candidate's outcome in a reply; a lost worker is a failure."""
    answer = reply.answer
    if isinstance(answer, Failure):
        answer = Measurement(failure=answer.failure, message=answer.message)
    return replace(answer, work_seconds=reply.work_seconds)


class Runner(Closing):
    """A guard process with one worker, started when needed and replaced when lost.

    Use as a context manager: leaving it ends both, whatever happened. They also
    end by themselves when this process does.

    Args:
        timeout: seconds that one request may take; a candidate that is slow by the model
            has more.
        memory: bytes that a worker may allocate; by default half of what this
            process may have, 0 for no limit.
    """

    def __init__(self, timeout: float = DEFAULT_TIMEOUT, memory: int | None = None) -> None:
        self.timeout = timeout
        self.memory = default_memory() if memory is None else memory
        self._process: subprocess.Popen[bytes] | None = None
        #: Resources that end with the guard, the guard first.
        self._resources = contextlib.ExitStack()

    @property
    def pid(self) -> int | None:
        """Process number of the guard, if one is running."""
        return self._process.pid if self._process else None

    def measure(self, task: Task) -> Measurement:
        """Build, verify and time one candidate; failures are returned, not raised."""
        return measurement_of(self.request(task, self.limit(task.predicted)))

    def limit(self, predicted: float = 0.0) -> float:
        """Return the time limit of a candidate in seconds, given its predicted time."""
        return self.timeout + (_RUNS * predicted if math.isfinite(predicted) else 0.0)

    def probe(self, job: Probe) -> Figures:
        """Measure this CPU; raise MeasureError if the probe failed."""
        figures = self.request(job, _PROBE + _PROBE_EACH * len(job.intrinsics)).answer
        if isinstance(figures, Failure):
            raise MeasureError(f"the machine could not be probed: {figures.message}")
        return figures

    def request(self, job: Job[T], timeout: float | None = None) -> Reply[T]:
        """Have a job done; a crash or a hang comes back as a failure.

        Args:
            timeout: seconds that it may take; by default the runner's.
        """
        limit = self.timeout if timeout is None else timeout
        operators = (need for need in job.needs if isinstance(need, Operator))
        patience = limit + _PATIENCE + _SLOWER * sum(Demand.of(op).seconds for op in operators)
        provided: list[Intrinsic | Implementation] = []
        for unit in job.intrinsics:
            provided += [unit, *implementations(unit.name).values()]
        process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            data = encode(Request(job, limit, self.memory, tuple(provided)))
            send(process.stdin.fileno(), data)
            reply: Reply[T] = receive(process.stdout.fileno(), Deadline(patience))
        except TimeoutError:
            self.close()
            return Reply(Failure("timeout", f"no answer within {patience:g} s"))
        except (BrokenPipeError, EOFError):
            message = self._describe_death(process)
            self.close()
            return Reply(Failure("crash", message))
        except BaseException:
            # Interrupted in the middle of an exchange: the pipe is out of step.
            self.close()
            raise
        return reply

    def close(self) -> None:
        """End the guard and its worker at once."""
        self._process = None
        self._resources.close()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        errors = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long as the guard
        self._errors = self._resources.enter_context(errors)
        folder = tempfile.TemporaryDirectory(prefix="amos-", ignore_cleanup_errors=True)
        self._folder = self._resources.enter_context(folder)
        environment = dict(os.environ)
        # Threads that the system moves from one core to another would blur measurements.
        environment.setdefault("TVM_BIND_THREADS", "1")
        try:
            self._process = subprocess.Popen(
                [*python("amos.measure.guard"), str(os.getpid()), self._folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                # Ctrl-C is for us; the guard follows when we close its pipe.
                start_new_session=True,
            )
        except OSError as error:
            self.close()
            raise MeasureError(f"the measuring process cannot start: {error}") from error
        self._resources.callback(_end, self._process)
        return self._process

    def _describe_death(self, process: subprocess.Popen[bytes]) -> str:
        """Describe the guard's death in one line."""
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        if code is not None and code < 0:
            return f"the measuring process was ended by {signal.Signals(-code).name}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return ": ".join([f"the measuring process ended with status {code}", *lines[-1:]])


def default_memory() -> int:
    """Return half of this process's memory limit in bytes; 0 if unknown."""
    try:
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (ValueError, OSError, AttributeError):
        return 0
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(f"/sys/fs/cgroup/{name}") as file:
            limits.append(int(file.read()))
    return min(limits) // 2


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let the guard end its worker and leave; it has little to do, so soon by force."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        # Its worker has asked the system to be ended with it.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
