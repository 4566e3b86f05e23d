"""The process for jobs that may end it, such as building and timing candidates.

Forked by :mod:`amos.measure.guard`, which has loaded TVM and computed the
reference results. Anything that a kernel or a compiler prints goes to standard
error.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from typing import Any

from amos.errors import AmosError
from amos.intrinsics import provide
from amos.measure.limits import address_space, lacks_memory, lower
from amos.measure.messages import (
    Context,
    Failure,
    NeedsCores,
    Reply,
    Request,
    encode,
    receive,
    send,
)
from amos.measure.reference import References

_PR_SET_PDEATHSIG = 1
#: Most bytes that a worker may write to one file.
_LARGEST_FILE = 64 << 20
#: Share of the memory limit that compiling may leave behind before a worker retires.
_GROWTH = 0.25


def serve(inward: int, outward: int, references: References, memory: int, guard: int) -> None:
    """Answer requests until the guard closes the pipe."""
    _settle(memory and max(1, memory - references.bytes), guard)
    before = address_space()

    def wait() -> None:
        send(outward, encode(NeedsCores()))
        receive(inward)

    while True:
        try:
            request: Request = receive(inward)
        except EOFError:
            return
        start = time.perf_counter()
        reply = Reply(_answer(request, Context(references, wait, request.limit)))
        grown = bool(memory) and address_space() - before > _GROWTH * memory
        seconds = time.perf_counter() - start
        send(outward, encode(replace(reply, work_seconds=seconds, retire=grown)))


def _answer(request: Request, context: Context) -> Any:
    """Run the job; return its result, or the failure that prevented it."""
    try:
        provide(request.provided)
        return request.job.run(context)
    except MemoryError as error:
        return Failure("memory", _one_line(error))
    except Exception as error:
        traceback.print_exc()
        return Failure("memory" if lacks_memory(error) else "error", _one_line(error))


def _settle(memory: int, guard: int) -> None:
    """Apply the limits, and make this process end with the guard."""
    # The guard decides when we stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # the guard died before we asked
            os._exit(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    tempfile.tempdir = None
    lower("RLIMIT_CORE", 0)
    lower("RLIMIT_FSIZE", _LARGEST_FILE)
    if memory and (used := address_space()):
        lower("RLIMIT_AS", used + memory)


def _one_line(error: BaseException) -> str:
    """Return the telling line: TVM's last one, the lines of an error of ours joined."""
    lines = str(error).strip().splitlines()
    if isinstance(error, AmosError):
        return "; ".join(lines)
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
