"""Measuring in a process of its own, with limits, that can be lost and replaced."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

import numpy as np

from amos.errors import MeasureError
from amos.intrinsics import Implementation, Intrinsic, implementations
from amos.perfmodel.host import cpu
from amos.schedule import Candidate

__all__ = ["Measurement", "Runner"]

_HEADER = struct.Struct("<Q")
#: Longest that building, verifying and timing one candidate may take, in seconds.
DEFAULT_TIMEOUT = 30.0


@dataclass(frozen=True)
class Measurement:
    """What became of one candidate.

    Attributes:
        times: seconds of one run, one value a repeat; empty after a failure.
        verified_elements: output elements compared with NumPy.
        max_difference: largest absolute difference found.
        implementation: ``"native"`` or ``"generic"``.
        failure: ``""``, ``"build"``, ``"wrong"``, ``"crash"``, ``"timeout"`` or
            ``"error"``.
        message: what happened, in one line.
    """

    times: tuple[float, ...] = ()
    verified_elements: int = 0
    max_difference: float = 0.0
    implementation: str = ""
    failure: str = ""
    message: str = ""

    @property
    def ok(self) -> bool:
        """True if the candidate ran and was right."""
        return not self.failure

    @property
    def seconds(self) -> float:
        """Median time of one run; infinite after a failure."""
        return statistics.median(self.times) if self.times else float("inf")


def _provided(intrinsic: Intrinsic) -> list[Intrinsic | Implementation]:
    """What the worker has to know of an intrinsic that a file or a program has described."""
    return [intrinsic, *implementations(intrinsic.name).values()]


class Runner:
    """One worker process, started when needed and replaced when lost.

    Use as a context manager: leaving it ends the process, whatever happened.

    Args:
        timeout: seconds that one request may take.
    """

    def __init__(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process number of the worker, if one is running."""
        return self._process.pid if self._process else None

    def measure(
        self, candidate: Candidate, *, repeat: int = 10, implementation: str | None = None
    ) -> Measurement:
        """Build, verify and time one candidate; failures are returned, not raised."""
        reply = self.request(
            {
                "kind": "measure",
                "candidate": candidate,
                "repeat": repeat,
                "implementation": implementation,
                "provided": _provided(candidate.mapping.intrinsic),
            }
        )
        keys = Measurement.__dataclass_fields__
        return Measurement(**{k: v for k, v in reply.items() if k in keys})

    def probe(
        self,
        intrinsics: Sequence[Intrinsic],
        levels: dict[str, dict[str, tuple[int, int]]],
        cores: int,
        chains: Sequence[int] = (8, 12, 16),
    ) -> dict[str, Any]:
        """Measure this CPU: intrinsic rates, bandwidth of each level, launch, clock.

        Args:
            intrinsics: those whose rate is wanted.
            levels: by level name, for ``"one"`` core and for ``"all"``: bytes that
                each core streams through, and how many cores do.
            cores: cores that run at once.
            chains: numbers of accumulators to try; the best rate counts.

        Raises:
            MeasureError: the probe failed.
        """
        reply = self.request(
            {
                "kind": "probe",
                "intrinsics": list(intrinsics),
                "levels": levels,
                "cores": cores,
                "chains": list(chains),
                "provided": [x for unit in intrinsics for x in _provided(unit)],
            },
            timeout=120.0,
        )
        if "failure" in reply:
            raise MeasureError(f"the machine could not be probed: {reply['message']}")
        return reply

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
                "provided": _provided(intrinsic),
            }
        )

    def request(self, request: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Send one request; a crash or a hang comes back as a failure."""
        limit = self.timeout if timeout is None else timeout
        process = self._start()
        data = pickle.dumps(request)
        assert process.stdin is not None
        try:
            process.stdin.write(_HEADER.pack(len(data)) + data)
            process.stdin.flush()
            return self._receive(process, time.monotonic() + limit)
        except TimeoutError:
            self.close()
            return {"failure": "timeout", "message": f"no answer within {limit:g} s"}
        except (BrokenPipeError, EOFError):
            message = self._obituary(process)
            self.close()
            return {"failure": "crash", "message": message}
        except BaseException:
            # Interrupted in the middle of an exchange: the pipe is out of step.
            self.close()
            raise

    def close(self) -> None:
        """End the worker process at once."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            process.wait()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        environment = dict(os.environ)
        # TVM takes half of the visible CPUs unless told otherwise.
        environment.setdefault("TVM_NUM_THREADS", str(cpu().cores))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "amos.measure.worker", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
            )
        except OSError as error:
            raise MeasureError(f"the measuring process cannot start: {error}") from error
        return self._process

    def _receive(self, process: subprocess.Popen[bytes], deadline: float) -> dict[str, Any]:
        (size,) = _HEADER.unpack(self._read(process, _HEADER.size, deadline))
        reply: dict[str, Any] = pickle.loads(self._read(process, size, deadline))
        return reply

    def _read(self, process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
        assert process.stdout is not None
        handle, data = process.stdout.fileno(), b""
        while len(data) < size:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                raise TimeoutError
            chunk = os.read(handle, size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    def _obituary(self, process: subprocess.Popen[bytes]) -> str:
        """Why the worker died, in one line."""
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        if code is not None and code < 0:
            return f"the worker was ended by {signal.Signals(-code).name}"
        last = ""
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            last = lines[-1] if lines else ""
        return f"the worker ended with status {code}" + (f": {last}" if last else "")
