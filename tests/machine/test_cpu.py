"""What the system says about a CPU, read from made-up files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from amos.machine import cpu as host
from amos.machine.cpu import Cache, _caches, _cpuinfo, cpu

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Some CPU @ 2.60GHz
cpu family\t: 6
model\t\t: 85
stepping\t: 7
flags\t\t: fpu avx512f avx512_vnni
processor\t: 1
vendor_id\t: GenuineIntel
model name\t: Some CPU @ 2.60GHz
flags\t\t: fpu avx512f
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU part\t: 0xd0c\n"


def test_an_x86_cpu(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(X86)
    model, maker, features = _cpuinfo(tmp_path / "cpuinfo")
    assert model == "Some CPU @ 2.60GHz, cpu family 6, model 85, stepping 7"
    assert maker == "GenuineIntel"
    assert features == {"fpu", "avx512f", "avx512_vnni"}


def test_an_arm_cpu(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(ARM)
    model, maker, features = _cpuinfo(tmp_path / "cpuinfo")
    assert model
    assert maker == "unknown"
    assert features == {"fp", "asimd", "asimddp"}


def test_no_cpuinfo(tmp_path: Path) -> None:
    model, maker, features = _cpuinfo(tmp_path / "nothing")
    assert model
    assert (maker, features) == ("unknown", frozenset())


def test_features_that_are_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    features = frozenset({"avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx"})
    monkeypatch.setattr(host, "_cpuinfo", lambda _: ("some CPU", "some maker", features))
    monkeypatch.setenv("AMOS_CPU_LACKS", "avx512 avx_vnni")
    assert cpu.__wrapped__().features == {"avx", "avx2"}
    monkeypatch.delenv("AMOS_CPU_LACKS")
    assert cpu.__wrapped__().features == features


def _cache(root: Path, cpu_: int, index: int, **files: str) -> None:
    folder = root / f"cpu{cpu_}" / "cache" / f"index{index}"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def _tree(root: Path) -> None:
    for n in range(4):
        _cache(root, n, 0, type="Data", level="1", size="32K", shared_cpu_list=str(n))
        _cache(root, n, 1, type="Instruction", level="1", size="64K", shared_cpu_list=str(n))
        pair = f"{n // 2 * 2}-{n // 2 * 2 + 1}"
        _cache(root, n, 2, type="Unified", level="2", size="1024K", shared_cpu_list=pair)
        _cache(root, n, 3, type="Unified", level="3", size="32M", shared_cpu_list="0-3")


def test_caches_are_counted_by_who_shares_them(tmp_path: Path) -> None:
    _tree(tmp_path)
    assert _caches(tmp_path, [0, 1, 2, 3]) == (
        Cache(1, 32 << 10, 4),
        Cache(2, 1 << 20, 2),
        Cache(3, 32 << 20, 1),
    )


def test_only_caches_of_allowed_processors_count(tmp_path: Path) -> None:
    _tree(tmp_path)
    assert [cache.units for cache in _caches(tmp_path, [0, 1])] == [2, 1, 1]


def test_unequal_cores_count_with_the_smaller_cache(tmp_path: Path) -> None:
    _cache(tmp_path, 0, 0, type="Data", level="1", size="48K", shared_cpu_list="0")
    _cache(tmp_path, 1, 0, type="Data", level="1", size="32K", shared_cpu_list="1")
    assert _caches(tmp_path, [0, 1]) == (Cache(1, 32 << 10, 2),)


@pytest.mark.parametrize(
    "files",
    [
        dict(type="Data", level="one", size="32K", shared_cpu_list="0"),
        dict(type="Data", level="1", size="", shared_cpu_list="0"),
        dict(type="Data", level="1", size="32Q", shared_cpu_list="0"),
        dict(type="Data", level="1", shared_cpu_list="0"),
    ],
)
def test_what_cannot_be_read_is_left_out(tmp_path: Path, files: dict[str, str]) -> None:
    _cache(tmp_path, 0, 0, **files)
    assert _caches(tmp_path, [0]) == ()
    assert _caches(tmp_path / "nothing", [0]) == ()


def test_this_cpu() -> None:
    here = cpu()
    assert here.model
    assert 1 <= here.cores <= (os.cpu_count() or 1)
    assert here is cpu()
