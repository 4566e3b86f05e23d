"""Misbehaving on purpose, so that tests and drills can see everybody else survive it."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["HOSTILE", "misbehave"]

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


def misbehave(how: str, wait: Callable[[], None]) -> dict[str, Any]:
    """Do what ``how`` says; anything that is not in :data:`HOSTILE` behaves.

    Args:
        how: a key of :data:`HOSTILE`, ``"litter"`` (leaves a file and a process
            behind, and hangs), ``"work"`` (waits for the cores as a real
            candidate does), or ``"toil"`` (keeps a core busy for 0.2 s).
        wait: waits for the cores.
    """
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
        return {"failure": "wrong", "message": "largest difference 1", "max_difference": 1.0}
    if how == "nan":
        return {"failure": "nan", "message": "1 of 1 elements are not a number"}
    if how == "work":
        wait()
    if how == "toil":
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
    return {"pid": os.getpid(), "times": (1e-6,) * 3, "verified_elements": 1}


def _litter() -> None:
    """Leave a file, and a process that would go on for a long time."""
    import subprocess
    import sys
    import tempfile

    handle, _ = tempfile.mkstemp()
    os.write(handle, b"litter")
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    time.sleep(1e6)
