"""Folders of compiled models, as long as something refers to them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

#: How the folders' names begin, and a file in each that its process locks.
_PREFIX, _LOCK = "amos-", ".lock"


class ModelFolder:
    """A folder that is removed when nothing refers to this any more, or Python ends.

    Folders of processes that were killed are removed by the next one.
    """

    def __init__(self) -> None:
        _remove_leftovers()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        weakref.finalize(self, _remove, self.path, lock, os.getpid())


def _remove(path: Path, lock: int, process: int) -> None:
    """Remove a folder, but not in a fork of the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _remove_leftovers() -> None:
    """Remove the folders whose lock nobody holds."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # it is removed by now, or another user's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
        except OSError:  # it is in use
            pass
        finally:
            os.close(lock)
