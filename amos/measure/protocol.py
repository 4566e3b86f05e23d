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

__all__ = ["encode", "receive", "send"]

_HEADER = struct.Struct("<Q")
#: A longer message can only be rubbish that a broken process wrote.
_MOST = 1 << 34
#: Seconds between two looks at whether the other side still matters.
_LOOK = 0.5

Watch = Callable[[], None]


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
    deadline: float = float("inf"),
    *,
    also: int | None = None,
    watch: Watch | None = None,
) -> Any:
    """Read one message.

    Args:
        handle: file descriptor to read from.
        deadline: on the monotonic clock, in seconds.
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


def _read(handle: int, size: int, deadline: float, also: int | None, watch: Watch | None) -> bytes:
    data = bytearray()
    watched = [handle] if also is None else [handle, also]
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        ready = select.select(watched, [], [], min(left, _LOOK) if watch else _or_forever(left))[0]
        if watch is not None and handle not in ready:
            watch()
        if handle in ready:
            chunk = os.read(handle, min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError
            data += chunk
    return bytes(data)


def _or_forever(left: float) -> float | None:
    """What ``select`` takes for "as long as it may be"."""
    return None if left == float("inf") else left
