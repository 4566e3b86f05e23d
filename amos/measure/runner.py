"""Measuring in a process of its own, with limits, that can be lost and replaced."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from amos._closing import Closing
from amos.errors import MeasureError
from amos.intrinsics import Implementation, Intrinsic, implementations
from amos.machine.cpu import cpu
from amos.measure.demand import Demand
from amos.measure.protocol import Deadline, encode, receive, send
from amos.plan import Candidate
from amos.records.measurement import Measurement

__all__ = ["DEFAULT_TIMEOUT", "Runner", "default_memory", "provided"]

#: Longest that building, verifying and timing one candidate may take, in seconds.
DEFAULT_TIMEOUT = 30.0
#: Runs for which a limit allows, at the model's word: one to verify, one to warm up, three
#: to be timed, each a few times slower than predicted.
_RUNS = 20.0
#: How much longer the guard may take than the worker: loading TVM, reference
#: results, other candidates on the same cores. Beyond it the guard is replaced.
_PATIENCE = 600.0
#: How many times slower than estimated NumPy's reference may be.
_SLOWER = 10.0
#: Seconds that a probe may take, and more for the rate of each intrinsic: several times
#: what it takes a machine that does nothing else.
_PROBE, _PROBE_EACH = 90.0, 30.0
#: What a probe finds; a reply also says how the worker fared.
_FIGURES = ("peaks", "read", "write", "launch", "clock")


def provided(intrinsic: Intrinsic) -> list[Intrinsic | Implementation]:
    """What the worker has to know of an intrinsic that a file or a program has described."""
    return [intrinsic, *implementations(intrinsic.name).values()]


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
        self._errors: IO[bytes] | None = None
        self._folder: str | None = None

    @property
    def pid(self) -> int | None:
        """Process number of the guard, if one is running."""
        return self._process.pid if self._process else None

    def measure(
        self,
        candidate: Candidate,
        *,
        repeat: int = 10,
        implementation: str | None = None,
        flush: int = 0,
        predicted: float = 0.0,
    ) -> Measurement:
        """Build, verify and time one candidate; failures are returned, not raised.

        Args:
            candidate: mapping and schedule.
            repeat: timings of a quiet measurement; a noisy one is prolonged, one that
                would take much of the limit is shortened.
            implementation: ``"native"`` or ``"generic"``; by default what there is.
            flush: bytes of cache to overwrite before each timing.
            predicted: seconds of one run by the model; see :meth:`limit`.
        """
        request = {
            "kind": "measure",
            "candidate": candidate,
            "repeat": repeat,
            "implementation": implementation,
            "flush": flush,
            "provided": provided(candidate.mapping.intrinsic),
        }
        return Measurement.of(self.request(request, self.limit(predicted)))

    def limit(self, predicted: float = 0.0) -> float:
        """Seconds that a candidate may take whose run takes so many by the model."""
        return self.timeout + (_RUNS * predicted if math.isfinite(predicted) else 0.0)

    def probe(
        self,
        intrinsics: Sequence[Intrinsic],
        levels: dict[str, dict[str, tuple[int, int]]],
        cores: int,
        implementation: str | None = None,
    ) -> dict[str, Any]:
        """Measure this CPU: intrinsic rates, bandwidth of each level, launch, clock.

        Args:
            intrinsics: those whose rate is wanted.
            levels: by level name, for ``"one"`` core and for ``"all"``: bytes that
                each core streams through, and how many cores do.
            cores: cores that run at once.
            implementation: the one of the intrinsics that is measured, ``"native"`` or
                ``"generic"``; by default what there is.

        Raises:
            MeasureError: the probe failed.
        """
        reply = self.request(
            {
                "kind": "probe",
                "intrinsics": list(intrinsics),
                "levels": levels,
                "cores": cores,
                "implementation": implementation,
                "provided": [x for unit in intrinsics for x in provided(unit)],
            },
            timeout=_PROBE + _PROBE_EACH * len(intrinsics),
        )
        if "failure" in reply:
            raise MeasureError(f"the machine could not be probed: {reply['message']}")
        return {key: value for key, value in reply.items() if key in _FIGURES}

    def call(
        self, intrinsic: Intrinsic, implementation: str, arrays: Sequence[np.ndarray]
    ) -> dict[str, Any]:
        """Run an intrinsic on fragments, as its self-check does.

        Args:
            intrinsic: what to run.
            implementation: ``"native"`` or ``"generic"``.
            arrays: for each operand, sources first, calls × fragment.

        Returns:
            ``result``, the destination after the calls; or ``failure``, which is
            ``"unheld"`` if no CPU kernel can hold an operand's dtype, and ``message``.
        """
        return self.request(
            {
                "kind": "call",
                "intrinsic": intrinsic,
                "implementation": implementation,
                "arrays": list(arrays),
                "provided": provided(intrinsic),
            }
        )

    def request(self, request: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Send one request; a crash or a hang comes back as a failure."""
        limit = self.timeout if timeout is None else timeout
        patience = _PATIENCE
        if request["kind"] == "measure":
            patience += _SLOWER * Demand.of(request["candidate"].mapping.operator).seconds
        process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            data = encode(request | {"limit": limit, "memory": self.memory})
            send(process.stdin.fileno(), data)
            reply: dict[str, Any] = receive(process.stdout.fileno(), Deadline(limit + patience))
        except TimeoutError:
            self.close()
            return {"failure": "timeout", "message": f"no answer within {limit + patience:g} s"}
        except (BrokenPipeError, EOFError):
            message = self._obituary(process)
            self.close()
            return {"failure": "crash", "message": message}
        except BaseException:
            # Interrupted in the middle of an exchange: the pipe is out of step.
            self.close()
            raise
        return reply

    def close(self) -> None:
        """End the guard and its worker at once."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)
        if self._errors is not None:
            self._errors.close()
            self._errors = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._errors = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long as the guard
        self._folder = tempfile.mkdtemp(prefix="amos-")
        environment = dict(os.environ)
        # TVM takes half of the visible CPUs unless told otherwise.
        environment.setdefault("TVM_NUM_THREADS", str(cpu().cores))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "amos.measure.guard", str(os.getpid()), self._folder],
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
        return self._process

    def _obituary(self, process: subprocess.Popen[bytes]) -> str:
        """Why the guard died, in one line."""
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        if code is not None and code < 0:
            return f"the measuring process was ended by {signal.Signals(-code).name}"
        last = ""
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            last = lines[-1] if lines else ""
        return f"the measuring process ended with status {code}" + (f": {last}" if last else "")


def default_memory() -> int:
    """Half of the memory that this process may have, in bytes; 0 if that is not known."""
    try:
        known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (ValueError, OSError, AttributeError):
        return 0
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(f"/sys/fs/cgroup/{name}") as file:
            known.append(int(file.read()))
    return min(known) // 2


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
