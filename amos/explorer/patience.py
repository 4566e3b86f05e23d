"""An end to what takes too long in one of a server's threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TooLong", "limited"]


class TooLong(Exception):
    """An answer took longer than anybody waits for it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End what this thread does within the block after so many seconds.

    Python cannot stop a thread from outside, but raises in it what it is told to, before its
    next step. A single call into C, as NumPy's are, comes to its end first; the limits of what
    is read (:mod:`amos.ir.limits`) keep each of these short.

    Raises:
        TooLong: the time is over.
    """
    thread, lock, ended = threading.get_ident(), threading.Lock(), threading.Event()

    def interrupt() -> None:
        with lock:
            if not ended.is_set():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(TooLong)
                )

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            ended.set()
