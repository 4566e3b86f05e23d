"""Messages between the processes of one program: length-prefixed pickles over pipes.

Nothing is ever read from disk or from a network this way.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Deadline", "encode", "receive", "send"]

_HEADER = struct.Struct("<Q")
#: A longer message can only be rubbish that a broken process wrote.
_MOST = 1 << 34
#: Seconds between two looks at whether the other side still matters.
_LOOK = 0.5

Watch = Callable[[], None]


class Deadline:
    """An instant that moves on for what is nobody's fault.

    Args:
        seconds: from now.
        excused: seconds until now that do not count, asked for when the time is up;
            it may grow while one waits.
    """

    def __init__(self, seconds: float, excused: Callable[[], float] | None = None) -> None:
        self._excused = excused
        self._counted = excused() if excused is not None else 0.0
        self._at = time.monotonic() + seconds

    def extend(self, seconds: float) -> None:
        """Move it on."""
        self._at += seconds

    def left(self) -> float:
        """Seconds until then; none or less when it has passed."""
        left = self._at - time.monotonic()
        if left <= 0 and self._excused is not None:
            excused = self._excused()
            self.extend(excused - self._counted)
            left += excused - self._counted
            self._counted = excused
        return left


def encode(message: Any) -> bytes:
    """A message as it travels."""
    data = pickle.dumps(message)
    return _HEADER.pack(len(data)) + data


def send(handle: int, data: bytes) -> None:
    """Write everything, however little the pipe takes at a time.

    Raises:
        BrokenPipeError: nobody reads any more.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def receive(
    handle: int,
    deadline: Deadline | None = None,
    *,
    also: int | None = None,
    watch: Watch | None = None,
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
    handle: int, size: int, deadline: Deadline | None, also: int | None, watch: Watch | None
) -> bytes:
    data = bytearray()
    watched = [handle] if also is None else [handle, also]
    while len(data) < size:
        left = None if deadline is None else deadline.left()
        if left is not None and left <= 0:
            raise TimeoutError
        look = _LOOK if watch is not None else left
        ready = select.select(watched, [], [], look if left is None else min(left, look or left))[0]
        if watch is not None and handle not in ready:
            watch()
        if handle in ready:
            chunk = os.read(handle, min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError
            data += chunk
    return bytes(data)
