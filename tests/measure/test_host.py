"""What is measured of this machine is kept, and measured again when it is damaged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import amos
from amos.intrinsics import Intrinsic
from amos.measure import Runner, host_machine
from amos.measure.host import cache_file

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
WMMA = amos.intrinsics.get("wmma_m16n16k16_f16_f32")


class _Probe:
    """Answers like a worker, in no time, and counts what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], list[str]]] = []
        self.interval = 2e-9

    def probe(
        self, intrinsics: Sequence[Intrinsic], levels: dict[str, Any], cores: int
    ) -> dict[str, Any]:
        self.asked.append(([x.name for x in intrinsics], list(levels)))
        figures = {"latency": 4e-9, "interval": self.interval}
        found: dict[str, Any] = {"peaks": {x.name: figures for x in intrinsics}}
        found |= {"read": {}, "write": {}}
        for name, who in levels.items():
            found["read"][name] = dict.fromkeys(who, 1e9)
            found["write"][name] = dict.fromkeys(who, 5e8)
        return found | ({"launch": 1e-6, "clock": 2e9} if levels else {})


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Probe:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return _Probe()


def _machine(probe: _Probe, *intrinsics: Intrinsic, **options: bool) -> amos.perfmodel.Machine:
    return host_machine(intrinsics, runner=cast(Runner, probe), **options)


def test_it_is_measured_once(probe: _Probe, tmp_path: Path) -> None:
    first = _machine(probe, VNNI)
    assert cache_file().is_relative_to(tmp_path)
    assert cache_file().exists()
    assert _machine(probe, VNNI) == first
    assert len(probe.asked) == 1
    _machine(probe, VNNI, WMMA)
    assert probe.asked[1] == ([WMMA.name], [])
    assert [p.name for p in cache_file().parent.iterdir()] == [cache_file().name]


def test_the_machine_is_described(probe: _Probe) -> None:
    machine = _machine(probe, VNNI)
    assert machine.name == "host"
    assert machine.levels[-1].name == "DRAM"
    assert machine.peak(VNNI.name).interval == 2e-9
    assert machine.launch == 1e-6
    assert machine.source.startswith("measured on ")
    for level in machine.levels:
        sharing = max(1.0, machine.cores / level.units)
        assert level.read_bandwidth == pytest.approx(1e9 * sharing)
        assert level.write_bandwidth == pytest.approx(5e8 * sharing)
    assert machine.clock == 2e9


def test_again_keeps_the_better_rate(probe: _Probe) -> None:
    _machine(probe, VNNI)
    for interval, best in ((3e-9, 2e-9), (1e-9, 1e-9)):
        probe.interval = interval
        assert _machine(probe, VNNI, again=True).peak(VNNI.name).interval == best
    assert len(probe.asked) == 3


def test_fresh_forgets(probe: _Probe) -> None:
    _machine(probe, VNNI)
    probe.interval = 3e-9
    assert _machine(probe, VNNI, fresh=True).peak(VNNI.name).interval == 3e-9


def _damage(known: dict[str, Any], **changes: Any) -> str:
    return json.dumps(known | changes)


@pytest.mark.parametrize(
    "damage",
    [
        lambda known: "",
        lambda known: "{",
        lambda known: "[]",
        lambda known: "3",
        lambda known: "null",
        lambda known: "\ud800".encode("utf-8", "surrogatepass"),
        lambda known: _damage(known, read={}),
        lambda known: _damage(known, read=dict.fromkeys(known["read"], -1.0)),
        lambda known: _damage(known, write=dict.fromkeys(known["write"], "x")),
        lambda known: _damage(known, peaks=3),
        lambda known: _damage(known, peaks={VNNI.name: {"latency": 1.0}}),
        lambda known: _damage(known, peaks={VNNI.name: {"latency": 1.0, "interval": 0.0}}),
        lambda known: _damage(known, launch=None),
        lambda known: _damage(known, launch=-1.0),
        lambda known: _damage(known, clock="fast"),
        lambda known: json.dumps({k: v for k, v in known.items() if k != "launch"}),
    ],
)
def test_a_damaged_file_is_measured_again(probe: _Probe, damage: Any) -> None:
    good = _machine(probe, VNNI)
    text = damage(json.loads(cache_file().read_text()))
    cache_file().write_bytes(text if isinstance(text, bytes) else text.encode())
    assert _machine(probe, VNNI) == good
    assert len(probe.asked) == 2
    assert _machine(probe, VNNI) == good
    assert len(probe.asked) == 2


def test_a_cache_that_cannot_be_written_only_costs_time(
    probe: _Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert _machine(probe, VNNI) == _machine(probe, VNNI)
    assert len(probe.asked) == 2


def test_a_failed_probe_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "request", lambda *_, **__: {"failure": "crash", "message": "gone"})
    with Runner() as runner, pytest.raises(amos.AmosError, match="could not be probed: gone"):
        runner.probe([VNNI], {}, 1)


def test_this_machine() -> None:
    """The one real measurement: some rates, in an order that makes sense."""
    machine = host_machine([VNNI])
    assert machine.peak(VNNI.name).interval <= machine.peak(VNNI.name).latency * 1.5
    assert all(1e8 < level.read_bandwidth < 1e14 for level in machine.levels)
    assert 0 < machine.launch < 1e-2
