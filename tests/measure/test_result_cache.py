"""The cache on disk: the same keys in every process, sound entries only, a bounded size."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from amos._processes import python
from amos.measure import result_cache
from amos.measure.helpers import map_in_processes
from amos.measure.result_cache import MISSING, ResultCache, key_of, load_result, store_result


@dataclass(frozen=True)
class Request:
    names: frozenset[str]
    sizes: dict[str, int]
    values: np.ndarray


def draw_request(size: int = 3) -> Request:
    names = frozenset(f"name{number}" for number in range(20))
    return Request(names, {"a": 1, "b": size}, np.arange(4, dtype=np.float32))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an empty cache that is switched on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("AMOS_CACHE_MIB", raising=False)
    yield tmp_path / "amos" / "results"
    result_cache._open.cache_clear()


def test_keys_are_the_same_in_another_process_and_differ_where_requests_do() -> None:
    text = subprocess.run(
        python(__name__), env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True
    )
    assert text.stdout.strip() == key_of(draw_request()), text.stderr
    keys = {key_of(draw_request()), key_of(draw_request(4)), key_of(draw_request(), 1)}
    keys |= {key_of(np.zeros(2)), key_of(np.zeros(2, np.float32)), key_of([0.0, 0.0]), key_of(Path)}
    assert len(keys) == 7


def test_a_result_is_read_by_another_cache_of_the_folder(folder: Path) -> None:
    key = key_of("request")
    assert load_result(key) is MISSING
    store_result(key, {"result": None})
    assert ResultCache(folder, 1 << 20).load(key) == {"result": None}
    assert folder.stat().st_mode & 0o077 == 0


def test_broken_entries_do_not_exist(folder: Path) -> None:
    store_result("key", "result")
    content = (folder / "key").read_bytes()
    for broken in (b"", content[:-1], content[:40], content.replace(b"result", b"resulT")):
        (folder / "key").write_bytes(broken)
        assert load_result("key") is MISSING


def test_what_others_can_write_to_is_not_read(folder: Path) -> None:
    store_result("key", "result")
    (folder / "key").chmod(0o666)
    assert load_result("key") is MISSING
    (folder / "key").unlink()
    folder.chmod(0o777)
    result_cache._open.cache_clear()
    store_result("key", "result")
    assert load_result("key") is MISSING and not [*folder.iterdir()]


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_what_is_not_written_whole_leaves_nothing(
    failure: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt) if failure.args == () else nullcontext():
        ResultCache(tmp_path, 10_000).store("key", "result")
    assert not [*tmp_path.iterdir()]


def test_a_cache_that_cannot_be_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ResultCache(tmp_path, 10_000)
    cache.store("key", "result")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    for name in ("utime", "replace"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    cache.store("another", "result")
    assert cache.load("key") == "result" and cache.load("another") is MISSING


def test_no_space_is_no_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMOS_CACHE_MIB", "0")
    store_result("key", "result")
    assert load_result("key") is MISSING and not folder.exists()


def test_entries_that_were_not_used_for_longest_are_removed(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, 10_000)
    for number in range(8):
        cache.store(f"{number}", bytes(1000))
        os.utime(tmp_path / f"{number}", (number, number))
    assert cache.load("0") == bytes(1000)  # and so is the newest
    cache.most_bytes = 4000
    cache.prune()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0", "7"]
    cache.store("large", bytes(5000))
    assert cache.load("large") is MISSING


def _stamp(number: int) -> tuple[int, float]:
    return number, time.perf_counter()


def test_entries_hold_while_rates_stay_about_the_same(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, 10_000)
    cache.store("key", "result", {"clock": 2.0, "peak": 1e-9})
    assert cache.load("key", {"clock": 2.1, "peak": 0.98e-9, "another peak": 7.0}) == "result"
    for rates in ({"clock": 2.3, "peak": 1e-9}, {"clock": 2.0}, {}):
        assert cache.load("key", rates) is MISSING


@pytest.mark.usefixtures("folder")
def test_calls_of_one_key_are_made_once_and_not_again() -> None:
    keys = ["a", "b", "a", ""]
    first = [*map_in_processes(_stamp, [1, 2, 1, 4], keys=keys)]
    assert first[0] == first[2] and [number for number, _ in first] == [1, 2, 1, 4]
    again = [*map_in_processes(_stamp, [1, 2, 1, 4], keys=keys)]
    assert again[:3] == first[:3] and again[3] != first[3]


if __name__ == "__main__":
    sys.stdout.write(key_of(draw_request()))
