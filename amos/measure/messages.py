"""Requests to a process that may be lost, its replies, and their transport.

Messages are length-prefixed pickles over pipes. Nothing is ever read from disk or from a
network this way.
"""

from __future__ import annotations

import math
import os
import pickle
import select
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from amos.intrinsics import Implementation, Intrinsic
from amos.ir import Operator
from amos.measure.reference import References

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
#: Function that loads the modules for building a kernel of this CPU.
LOADER = "amos.runtime.kernel.warm_up"
#: The guard's word to a worker that waits for the cores.
GO = "go"

_HEADER = struct.Struct("<Q")
#: A longer message can only come from a broken process.
_MOST = 1 << 34
#: Seconds between two looks at whether the other side still matters.
_POLL_SECONDS = 0.5
#: Seconds that one wait takes at most.
_LONGEST_SECONDS = 1e6


@dataclass(frozen=True)
class Failure:
    """Failure of a worker.

    Attributes:
        failure: kind, as in :class:`amos.records.Measurement`; also ``"probe"``, ``"unheld"``
            for a dtype that no CPU kernel can hold, or ``"unreachable"``.
    """

    failure: str
    message: str


@dataclass(frozen=True)
class Context:
    """Services that a job has in its worker.

    Attributes:
        references: expected results, computed by the guard as far as the job needs them.
        wait: returns when this process has the cores to itself.
    """

    references: References
    wait: Callable[[], None]
    limit: float = math.inf


class Job(Protocol[T_co]):
    """Work for a process that may be lost; it travels pickled."""

    @property
    def intrinsics(self) -> Sequence[Intrinsic]:
        """Intrinsics that the worker's registry must have."""
        ...

    @property
    def needs(self) -> frozenset[Operator | str]:
        """Preparations: results of operators, and functions that are called."""
        ...

    def run(self, context: Context) -> T_co | Failure:
        """Run the job in the worker. Any exception is a failure too."""
        ...


@dataclass(frozen=True)
class Request:
    """A job with its limits.

    Attributes:
        memory: bytes that it may allocate; 0 for no limit.
        provided: intrinsics that a file or a program described.
    """

    job: Job[Any]
    limit: float
    memory: int
    provided: tuple[Intrinsic | Implementation, ...]


@dataclass(frozen=True)
class Reply(Generic[T]):
    """Outcome of a request.

    Attributes:
        work_seconds: that the job took.
        retire: True if the worker has grown too much to be kept.
    """

    answer: T | Failure
    work_seconds: float = 0.0
    retire: bool = False

    @property
    def failure(self) -> str:
        """Kind of failure; empty if the job was done."""
        return str(getattr(self.answer, "failure", ""))


class NeedsCores:
    """A worker's message that it waits for the cores."""


class Deadline:
    """An instant that moves on while the delay is not the job's fault.

    Args:
        seconds: from now.
        excused: seconds until now that do not count, queried when the time is up;
            it may grow while one waits.
    """

    def __init__(self, seconds: float, excused: Callable[[], float] | None = None) -> None:
        self._excused = excused
        self._counted = excused() if excused is not None else 0.0
        self._at = time.monotonic() + seconds

    def extend(self, seconds: float) -> None:
        """Move it on."""
        self._at += seconds

    def remaining_seconds(self) -> float:
        """Return the seconds left; zero or negative when the deadline has passed."""
        remaining = self._at - time.monotonic()
        if remaining <= 0 and self._excused is not None:
            excused = self._excused()
            self.extend(excused - self._counted)
            remaining += excused - self._counted
            self._counted = excused
        return remaining


def encode(message: Any) -> bytes:
    """Encode a message for a pipe."""
    data = pickle.dumps(message)
    return _HEADER.pack(len(data)) + data


def send(handle: int, data: bytes) -> None:
    """Write everything, however little the pipe takes; BrokenPipeError without a reader."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def receive(
    handle: int,
    deadline: Deadline | None = None,
    *,
    also: int | None = None,
    watch: Callable[[], None] | None = None,
) -> Any:
    """Read one message.

    Args:
        handle: file descriptor to read from.
        deadline: by which it must be there.
        also: another descriptor whose becoming readable calls ``watch``.
        watch: called then, and at least every half second.

    Raises:
        TimeoutError: the deadline has passed.
        EOFError: the other side is gone, or does not keep to the form.
    """
    (size,) = _HEADER.unpack(_read(handle, _HEADER.size, deadline, also, watch))
    if size > _MOST:
        raise EOFError
    data = _read(handle, size, deadline, also, watch)
    try:
        return pickle.loads(data)
    except Exception as error:  # whatever rubbish makes of unpickling
        raise EOFError from error


def _read(
    handle: int,
    size: int,
    deadline: Deadline | None,
    also: int | None,
    watch: Callable[[], None] | None,
) -> bytes:
    data = bytearray()
    watched = [handle] if also is None else [handle, also]
    while len(data) < size:
        remaining = None if deadline is None else deadline.remaining_seconds()
        if remaining is not None and remaining <= 0:
            raise TimeoutError
        poll = _POLL_SECONDS if watch is not None else remaining
        if remaining is not None:  # systems refuse to wait for ages at once
            poll = min(remaining, poll or remaining, _LONGEST_SECONDS)
        ready = select.select(watched, [], [], poll)[0]
        if watch is not None and handle not in ready:
            watch()
        if handle in ready:
            chunk = os.read(handle, min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError
            data += chunk
    return bytes(data)
