"""A job that misbehaves on purpose, so that tests can see everybody else survive it."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass

import numpy as np

from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.measure.messages import Context, Failure
from amos.measure.runner import Runner
from amos.records import Measurement

__all__ = ["HOSTILE", "Drill", "Drilled", "pid_of"]

#: What a hostile candidate can do, and the kind of failure that it must become.
HOSTILE = {
    "segfault": "crash",
    "exit": "crash",
    "abort": "abort",
    "hang": "timeout",
    "spin": "timeout",
    "allocate": "memory",
    "wrong": "wrong",
    "nan": "nan",
    "raise": "error",
}

_CHUNK = 64 << 20


@dataclass(frozen=True)
class Drilled(Measurement):
    """What a job that behaved says.

    Attributes:
        pid: process number of its worker.
    """

    pid: int = 0


@dataclass(frozen=True)
class Drill:
    """A job of no use.

    Attributes:
        how: a key of :data:`HOSTILE`, ``"litter"`` (leaves a file and a process
            behind, and hangs), ``"work"`` (waits for the cores as a real
            candidate does), or ``"toil"`` (keeps a core busy for 0.2 s); anything
            else behaves.
    """

    how: str
    intrinsics: tuple[Intrinsic, ...] = ()
    needs: frozenset[Operator | str] = frozenset()

    def run(self, context: Context) -> Measurement | Failure:
        """Do what it says."""
        return _misbehave(self.how, context)


def pid_of(runner: Runner) -> int:
    """Process number of the runner's worker, which is started if there is none."""
    answer = runner.request(Drill("nothing")).answer
    assert isinstance(answer, Drilled), answer
    return answer.pid


def _misbehave(how: str, context: Context) -> Measurement | Failure:
    if how == "segfault":
        ctypes.string_at(0)
    if how == "abort":
        os.abort()
    if how == "exit":
        os._exit(3)
    if how == "hang":
        time.sleep(1e6)
    if how == "litter":
        _litter()
    if how == "spin":
        while True:
            pass
    if how == "allocate":
        hoard = []
        while True:
            hoard.append(np.empty(_CHUNK, np.uint8))
    if how == "raise":
        raise RuntimeError("raised on purpose")
    if how == "wrong":
        return Measurement(failure="wrong", message="largest difference 1", max_difference=1.0)
    if how == "nan":
        return Failure("nan", "1 of 1 elements are not a number")
    if how == "work":
        context.wait()
    if how == "toil":
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
    return Drilled((1e-6,) * 3, 1, pid=os.getpid())


def _litter() -> None:
    """Leave a file, and a process that would go on for a long time."""
    import subprocess
    import sys
    import tempfile

    handle, _ = tempfile.mkstemp()
    os.write(handle, b"litter")
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    time.sleep(1e6)
