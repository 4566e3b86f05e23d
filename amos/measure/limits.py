"""Limits of a process: memory, cores that it may time on, and time that it had to wait."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

#: Words in which C, C++ and Python programs report that they have no memory left.
_NO_MEMORY = ("bad_alloc", "out of memory", "cannot allocate memory", "memoryerror")

try:
    import fcntl
    import resource
except ImportError:  # not on this system
    fcntl = resource = None  # type: ignore[assignment]


def lower(kind: str, limit: int) -> None:
    """Lower a limit of this process by its name in the module ``resource``; never raise one."""
    if resource is None:
        return
    which = getattr(resource, kind)
    soft, hard = resource.getrlimit(which)
    bounds = [limit] + [x for x in (soft, hard) if x != resource.RLIM_INFINITY]
    resource.setrlimit(which, (min(bounds), hard))


@contextlib.contextmanager
def limit_memory(memory: int) -> Iterator[None]:
    """Let this process allocate ``memory`` more bytes within the block; 0 for no limit."""
    if resource is None or not (memory and (used := address_space())):
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    lower("RLIMIT_AS", used + memory)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def address_space() -> int:
    """Return the bytes of address space in use; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def waiting_seconds(pid: int) -> float:
    """Return the seconds that a ready process waited for a core; 0 where unknown."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def lacks_memory(report: BaseException | str) -> bool:
    """Return whether an error, or the last output of a process, is about memory."""
    text = str(report).lower()
    return isinstance(report, MemoryError) or any(words in text for words in _NO_MEMORY)


class CoreLock:
    """One lock for each core, held by this process until it ends or releases it.

    The locks are bytes of one file in the user's cache directory. The system
    takes them back when the process dies, however it dies. Where that file
    cannot be written nothing is locked.
    """

    def __init__(self) -> None:
        self.cores = sorted(_cores())
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
        except OSError:
            pass  # a file system without locks
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


def _cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))
