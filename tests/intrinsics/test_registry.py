"""Registering, looking up, and plug-ins that do not work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import pytest

from amos import intrinsics
from amos.errors import IntrinsicError, UnknownNameError
from amos.intrinsics import Intrinsic, registry

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
WMMA = "wmma_m16n16k16_f16_f32"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A registry that has loaded nothing yet."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_broken", {})
    monkeypatch.setattr(registry, "_standard", set())
    monkeypatch.setattr(registry, "_loaded", False)
    yield


@dataclass
class EntryPoint:
    name: str
    load: Callable[[], Any]
    value: str = "acme:units"


def _plug_in(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: list(entries))


def _renamed(name: str) -> Intrinsic:
    return replace(intrinsics.get(VNNI), name=name)


def test_names_are_sorted_and_hold_the_built_in_ones() -> None:
    names = intrinsics.names()
    assert list(names) == sorted(names)
    assert {VNNI, WMMA} <= set(names)


def test_an_unknown_name_suggests_near_ones() -> None:
    with pytest.raises(UnknownNameError, match=f"unknown intrinsic 'wmma_m16n16k16'.*{WMMA}"):
        intrinsics.get("wmma_m16n16k16")


def test_a_duplicate_is_refused() -> None:
    with pytest.raises(IntrinsicError, match="registered already"):
        intrinsics.register(intrinsics.get(VNNI))
    with pytest.raises(IntrinsicError, match="expected an Intrinsic, got str"):
        intrinsics.register("vnni")  # type: ignore[arg-type]


@pytest.mark.usefixtures("fresh")
def test_a_registered_intrinsic_is_found() -> None:
    mine = intrinsics.register(_renamed("acme_dot"))
    assert intrinsics.get("acme_dot") is mine
    assert "acme_dot" in intrinsics.names()


@pytest.mark.usefixtures("fresh")
def test_another_process_adopts_what_was_added() -> None:
    assert intrinsics.list_added() == ()
    mine = intrinsics.register(_renamed("acme_dot"))
    assert intrinsics.list_added() == (mine,)
    changed = replace(mine, source="another manual")
    intrinsics.adopt((changed,))
    assert intrinsics.get("acme_dot") is changed
    count = len(intrinsics.names())
    intrinsics.adopt(())
    assert "acme_dot" not in intrinsics.names() and len(intrinsics.names()) == count - 1


def test_plug_ins_are_callables_or_iterables(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    first, two, three = (_renamed(f"acme_{n}") for n in range(3))
    monkeypatch.setattr(registry, "_loaded", False)
    monkeypatch.setattr(registry, "_registered", {})
    _plug_in(
        monkeypatch,
        EntryPoint("call", lambda: lambda: iter([first])),
        EntryPoint("list", lambda: [two]),
        EntryPoint("single", lambda: three),
    )
    assert {"acme_0", "acme_1", "acme_2", VNNI} <= set(intrinsics.names())
    assert intrinsics.list_broken() == {}


def test_a_broken_plug_in_takes_no_other_down(monkeypatch: pytest.MonkeyPatch) -> None:
    good, half = _renamed("acme_good"), _renamed("acme_half")

    def missing() -> Any:
        raise ImportError("no module named acme")

    monkeypatch.setattr(registry, "_loaded", False)
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_broken", {})
    _plug_in(
        monkeypatch,
        EntryPoint("missing", missing),
        EntryPoint("number", lambda: 3),
        EntryPoint("wrong", lambda: [half, "text"]),
        EntryPoint("duplicate", lambda: [replace(good, name=VNNI)]),
        EntryPoint("good", lambda: [good]),
    )
    assert "acme_good" in intrinsics.names()
    assert "acme_half" not in intrinsics.names()
    reasons = intrinsics.list_broken()
    assert set(reasons) == {"missing", "number", "wrong", "duplicate"}
    assert reasons["missing"] == "acme:units: ImportError: no module named acme"
    assert "got int" in reasons["number"]
    assert "registered already" in reasons["duplicate"]


def test_the_memory_of_wmma_is_equation_2() -> None:
    assert [str(m) for m in intrinsics.get(WMMA).memory] == [
        "reg.Src1[i1, r1] = shared.Src1[addr_a + i1 * stride_a + r1]",
        "reg.Src2[r1, i2] = shared.Src2[addr_b + r1 * stride_b + i2]",
        "global.Dst[addr_c + i1 * stride_c + i2] = reg.Dst[i1, i2]",
    ]


def test_vnni_broadcasts_its_first_source() -> None:
    vnni = intrinsics.get(VNNI)
    assert vnni.memory[0].broadcast == ("i1",)
    assert vnni.extents == {"i1": 16, "r1": 4}
    assert vnni.dtypes == ("uint8", "int8", "int32")
    assert vnni.requires == ("avx512_vnni",)
    assert vnni.registers == 32


def test_threads_see_all_of_them_or_wait() -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor as Pool; from amos import intrinsics\n"
        "with Pool(4) as pool: counts = [*pool.map(lambda _: len(intrinsics.names()), range(4))]\n"
        "assert len({*counts}) == 1, counts"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr
