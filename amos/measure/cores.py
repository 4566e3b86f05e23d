"""Cores that are being timed: no two candidates of one user share one, in any process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable

__all__ = ["CoreLock"]

if sys.platform != "win32":
    import fcntl


class CoreLock:
    """One lock for each core, held by this process until it ends or lets go.

    The locks are bytes of one file in the user's cache directory. The system
    takes them back when the process dies, however it dies. Where that file
    cannot be written nothing is locked.
    """

    def __init__(self, cores: Iterable[int] | None = None) -> None:
        self.cores = sorted(_allowed() if cores is None else cores)
        self._handle: int | None = None
        with contextlib.suppress(OSError):
            from platformdirs import user_cache_path

            path = user_cache_path("amos", appauthor=False, ensure_exists=True) / "cores.lock"
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire(self) -> bool:
        """Take every core, or none; never waits."""
        if self._handle is None:
            return True
        try:
            for core in self.cores:
                fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, core)
        except (BlockingIOError, PermissionError):
            self.release()
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def release(self) -> None:
        """Let go of every core."""
        if self._handle is None:
            return
        for core in self.cores:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, core)

    def close(self) -> None:
        """Let go, and close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))
