"""Results of searches and compilations, kept on disk for later processes.

An entry is named by a digest of everything that determines it: the request, the sources of AMOS,
the packages that it computes with, and the CPU. It holds as long as the measured rates of this
machine stay about as they were; rates of further instructions may join them. Entries are pickles
that hold machine code, so only entries are read that belong to the user and that no one else can
write to, in a folder of the same kind.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from amos.machine.cpu import cpu
from amos.measure.host import read_rates

#: Environment variable: MiB that the cache may take, 0 for none. The default without it.
_VARIABLE, _DEFAULT_MIB = "AMOS_CACHE_MIB", 512
#: Packages that searches and compilations depend on.
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "deap", "numpy", "ortools")
#: Share of the limit that entries take after the oldest are removed, and the number of new entries
#: of a process from one scan of the folder to the next.
_PRUNED_SHARE, _STORES_BETWEEN_SCANS = 0.75, 256
#: Factor by which a rate of this machine may differ from that at the writing of an entry.
_TOLERANCE = 1.1
#: Bytes of the digest ahead of each entry.
_DIGEST_BYTES = 32
#: Returned where there is no entry.
MISSING = object()


@dataclass(eq=False)
class ResultCache:
    """A folder of results, which several processes may read and write at once.

    Attributes:
        most_bytes: that they may take; those that were not used for longest are removed.
    """

    folder: Path
    most_bytes: int
    stores: int = 0

    def load(self, key: str, rates: Mapping[str, float] = MappingProxyType({})) -> Any:
        """Return the result of a key; :data:`MISSING` without a sound entry."""
        path = self.folder / key
        try:
            with path.open("rb") as file:
                if not _is_private(os.fstat(file.fileno())):
                    return MISSING
                content = file.read()
            digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            if hashlib.sha256(data).digest() != digest:
                return MISSING
            earlier, value = pickle.loads(data)
            if not all(_is_close(rates[name], rate) for name, rate in earlier.items()):
                return MISSING
            with contextlib.suppress(OSError):  # of a file system that cannot be written to
                os.utime(path)
            return value
        except Exception:  # an unreadable entry is computed again
            return MISSING

    def store(
        self, key: str, value: Any, rates: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """Write a result in one step; where nothing can be written, nothing happens."""
        data = pickle.dumps((dict(rates), value), pickle.HIGHEST_PROTOCOL)
        if len(data) > self.most_bytes:
            return
        with contextlib.suppress(OSError):
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=".partial")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(data).digest() + data)
                os.replace(name, self.folder / key)
            except BaseException:  # the disk is full, or the user interrupts
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
            if self.stores % _STORES_BETWEEN_SCANS == 0:
                self.prune()
            self.stores += 1

    def prune(self) -> None:
        """Remove the entries that were not used for longest, if all take more than the limit."""
        entries = []
        for entry in os.scandir(self.folder):
            with contextlib.suppress(OSError):  # another process has removed it
                state = entry.stat()
                entries.append((state.st_mtime, state.st_size, entry.path))
        total = sum(size for _, size, _ in entries)
        if total <= self.most_bytes:
            return
        for _, size, path in sorted(entries):
            if total <= _PRUNED_SHARE * self.most_bytes:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size


def _is_close(rate: float, earlier: float) -> bool:
    return earlier / _TOLERANCE <= rate <= earlier * _TOLERANCE


def open_cache() -> ResultCache | None:
    """Return the user's cache; ``None`` if there is none, or others can write to it."""
    text = os.environ.get(_VARIABLE, "")
    most_bytes = (int(text) if text.isdecimal() else _DEFAULT_MIB) << 20
    return _open(os.environ.get("XDG_CACHE_HOME", ""), most_bytes) if most_bytes else None


@cache
def _open(_: str, most_bytes: int) -> ResultCache | None:
    from platformdirs import user_cache_path

    if os.name != "posix":  # without permissions of folders
        return None
    folder = user_cache_path("amos", appauthor=False) / "results"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except OSError:
        return None
    return ResultCache(folder, most_bytes) if _is_private(state) else None


def _is_private(state: os.stat_result) -> bool:
    """Return whether a file or folder belongs to the user, and nobody else can write to it."""
    return state.st_uid == os.getuid() and not state.st_mode & 0o022


def key_of(*request: object) -> str:
    """Return the key of a request, the same in every process with this AMOS on such a CPU.

    Args:
        request: plain values, arrays, classes, and dataclasses, mappings and collections of them;
            other objects by their pickles, which may differ from process to process.
    """
    text = json.dumps([_environment_digest(), *map(_canonical, request)])
    return hashlib.sha256(text.encode()).hexdigest()


def key_of_file(path: Path, *request: object) -> str:
    """Return the key of a request about a file, which changes when it is written again."""
    state = path.stat() if path.is_file() else None
    stated = None if state is None else (state.st_size, state.st_mtime_ns)
    return key_of(str(path.absolute()), stated, *request)


def load_result(key: str) -> Any:
    """Return what the cache has under a key; :data:`MISSING` if it has nothing."""
    opened = open_cache()
    return MISSING if opened is None else opened.load(key, read_rates())


def store_result(key: str, value: Any) -> None:
    """Write a result to the cache, if there is one."""
    opened = open_cache()
    if opened is not None:
        opened.store(key, value, read_rates())


def has_result(key: str) -> bool:
    """Return whether the cache has an entry of a key."""
    opened = open_cache()
    return opened is not None and (opened.folder / key).exists()


def _canonical(value: Any) -> Any:
    """Return JSON values that differ for values that differ."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Enum | type):
        return [type(value).__qualname__, str(value)]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return ["array", str(value.dtype), value.shape, content]
    if is_dataclass(value):
        own = [_canonical(getattr(value, field.name)) for field in fields(value)]
        return [type(value).__qualname__, *own]
    if isinstance(value, Mapping):
        return ["mapping", [[_canonical(k), _canonical(v)] for k, v in value.items()]]
    if isinstance(value, frozenset | set):
        return ["set", sorted(map(_canonical, value), key=json.dumps)]
    if isinstance(value, list | tuple):
        return [*map(_canonical, value)]
    return hashlib.sha256(pickle.dumps(value)).hexdigest()


@cache
def _environment_digest() -> str:
    """Return a digest of the sources of AMOS, the packages, Python, and the CPU."""
    digest = hashlib.sha256()
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            digest.update(f"{name} {metadata.version(name)} ".encode())
    here = cpu()
    digest.update(repr((sys.version, here.model, here.cores, sorted(here.features))).encode())
    digest.update(repr(here.caches).encode())
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()
