"""What is measured of this machine is kept, and measured again when it is damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import amos
from amos.codegen.probes import memory as probing
from amos.codegen.tir.tensor_intrin import version
from amos.intrinsics import Intrinsic
from amos.machine.cpu import Cache, Cpu
from amos.measure import Runner, host, host_machine
from amos.measure.host import cache_file
from amos.measure.messages import Context, Failure, Reply
from amos.measure.probe import Figures, Probe, Stream
from amos.measure.reference import References

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
#: What the rate of its generic implementation is kept under.
LOOPS = version(VNNI, "generic")
WMMA = amos.intrinsics.get("wmma_m16n16k16_f16_f32")


class _Probe:
    """Answers like a worker, in no time, and counts what it was asked for."""

    memory = 0

    def __init__(self) -> None:
        self.requests: list[tuple[list[str], list[str]]] = []
        self.interval = 2e-9

    def probe(self, job: Probe) -> Figures:
        self.requests.append(([x.name for x in job.intrinsics], list(job.levels)))
        figures = {"latency": 4e-9, "interval": self.interval}
        answer = Figures({x.name: figures for x in job.intrinsics})
        for name, who in job.levels.items():
            answer.read[name] = dict.fromkeys(who, 1e9)
            answer.write[name] = dict.fromkeys(who, 5e8)
        return replace(answer, launch=1e-6, clock=2e9) if job.levels else answer


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Probe:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return _Probe()


def _machine(probe: _Probe, *intrinsics: Intrinsic, **options: Any) -> amos.machine.Machine:
    return host_machine(intrinsics, runner=cast(Runner, probe), **options)


def test_it_is_measured_once(probe: _Probe, tmp_path: Path) -> None:
    first = _machine(probe, VNNI)
    assert cache_file().is_relative_to(tmp_path)
    assert cache_file().exists()
    assert _machine(probe, VNNI) == first
    assert len(probe.requests) == 1
    _machine(probe, VNNI, WMMA)
    assert probe.requests[1] == ([WMMA.name], [])
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
    assert len(probe.requests) == 3


def test_fresh_forgets(probe: _Probe) -> None:
    _machine(probe, VNNI)
    probe.interval = 3e-9
    assert _machine(probe, VNNI, fresh=True).peak(VNNI.name).interval == 3e-9


def test_rates_belong_to_an_implementation(probe: _Probe) -> None:
    """That of the loops is no rate of the instruction, nor the other way round."""
    first = _machine(probe, VNNI).peak(VNNI.name)
    probe.interval = 3e-8
    for _ in range(2):
        generic = host_machine([VNNI], runner=cast(Runner, probe), implementation="generic")
        peak = generic.peak(VNNI.name)
        assert "generic" in peak.source
        assert "(generic implementation)" in str(generic)
    if "generic" not in first.source:
        assert peak.interval == 3e-8
        assert len(probe.requests) == 2
    assert _machine(probe, VNNI).peak(VNNI.name) == first


def test_another_description_of_the_same_name_is_measured(probe: _Probe) -> None:
    _machine(probe, VNNI)
    extents = {"i1": 8, "r1": 4}
    unlisted = Intrinsic.define(
        VNNI.name,
        str(VNNI.compute),
        extents,
        {x.tensor.name: str(x.tensor.dtype) for x in VNNI.operands},
        VNNI.memory,
        family=VNNI.family,
        source=VNNI.source,
    )
    probe.interval = 5e-9
    assert _machine(probe, unlisted).peak(VNNI.name).interval == 5e-9
    assert _machine(probe, VNNI).peak(VNNI.name).interval == 2e-9
    assert len(probe.requests) == 2


def _damage(stored: dict[str, Any], **changes: Any) -> str:
    return json.dumps(stored | changes)


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: "",
        lambda stored: "{",
        lambda stored: "[]",
        lambda stored: "3",
        lambda stored: "null",
        lambda stored: "\ud800".encode("utf-8", "surrogatepass"),
        lambda stored: _damage(stored, read={}),
        lambda stored: _damage(stored, read=dict.fromkeys(stored["read"], -1.0)),
        lambda stored: _damage(stored, write=dict.fromkeys(stored["write"], "x")),
        lambda stored: _damage(stored, peaks=3),
        lambda stored: _damage(stored, peaks={VNNI.name: {"latency": 1.0, "interval": 1.0}}),
        lambda stored: _damage(stored, peaks={version(VNNI, "generic"): {"latency": 1.0}}),
        lambda stored: _damage(
            stored, peaks={version(VNNI, "generic"): {"latency": 1.0, "interval": 0.0}}
        ),
        lambda stored: _damage(stored, launch=None),
        lambda stored: _damage(stored, launch=-1.0),
        lambda stored: _damage(stored, clock="fast"),
        lambda stored: json.dumps({k: v for k, v in stored.items() if k != "launch"}),
    ],
)
def test_a_damaged_file_is_measured_again(probe: _Probe, damage: Any) -> None:
    good = _machine(probe, VNNI)
    text = damage(json.loads(cache_file().read_text()))
    cache_file().write_bytes(text if isinstance(text, bytes) else text.encode())
    assert _machine(probe, VNNI) == good
    assert len(probe.requests) == 2
    assert _machine(probe, VNNI) == good
    assert len(probe.requests) == 2


def test_a_cache_that_cannot_be_written_only_costs_time(
    probe: _Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert _machine(probe, VNNI) == _machine(probe, VNNI)
    assert len(probe.requests) == 2


def test_a_failed_probe_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "request", lambda *_, **__: Reply(Failure("crash", "gone")))
    with Runner() as runner, pytest.raises(amos.AmosError, match="could not be probed: gone"):
        runner.probe(Probe((VNNI,), {}, 1))


def _cpu(cores: int, *caches: tuple[int, int]) -> Cpu:
    """A CPU with caches of so many KiB, and so many of each."""
    answer = (Cache(n + 1, size << 10, units) for n, (size, units) in enumerate(caches))
    return Cpu("none", cores, frozenset(), tuple(answer))


_CPUS = {
    "one core": _cpu(1, (32, 1), (512, 1)),
    "desktop": _cpu(16, (48, 16), (1024, 16), (64 << 10, 1)),
    "two cores of a large server": _cpu(2, (48, 2), (2048, 2), (480 << 10, 1)),
    "one unit of stacked cache": _cpu(8, (32, 8), (1024, 8), (2300 << 10, 1)),
    "a whole server": _cpu(96, (32, 96), (1024, 96), (96 << 10, 12)),
}


@pytest.mark.parametrize("here", _CPUS.values(), ids=_CPUS)
def test_a_probe_of_any_cpu_is_short(here: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large its caches are: seconds of a core that streams 4 GB a second."""
    monkeypatch.setattr(host, "default_memory", lambda: 16 << 30)
    streamed = 0
    for name, who in host._probe_sizes(here).items():
        for size, cores in who.values():
            assert 0 < size * cores <= 3 << 30, name
            passes = max(1, min(1000, (64 << 20) // size))
            # Read and written, and once before the clock runs.
            streamed += 2 * passes * size * (probing.timings(passes * size) + 1)
    assert streamed / 4e9 < 25


@pytest.mark.parametrize("name", ["one core", "desktop", "two cores of a large server"])
def test_memory_is_measured_beyond_the_caches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "default_memory", lambda: 16 << 30)
    sizes, cache = host._probe_sizes(_CPUS[name]), _CPUS[name].caches[-1].capacity
    assert all(size * cores > 2 * cache for size, cores in sizes["DRAM"].values())


def test_of_a_large_cache_only_a_share_is_streamed() -> None:
    """One that a machine shares with others: its L2 of 2 MiB is left all the same."""
    sizes = host._probe_sizes(_CPUS["two cores of a large server"])["L3"]
    assert sizes == {"one": (64 << 20, 1), "all": (32 << 20, 2)}
    assert host._probe_sizes(_CPUS["desktop"])["L3"]["one"] == (32 << 20, 1)


def test_all_cores_together_exceed_every_unit_of_the_last_cache() -> None:
    here = _CPUS["a whole server"]
    size, cores = host._probe_sizes(here)["DRAM"]["all"]
    last = here.caches[-1]
    assert size * cores > 2 * last.capacity * last.units


def test_no_more_is_streamed_than_a_worker_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "default_memory", lambda: 1 << 30)
    for here in _CPUS.values():
        for who in host._probe_sizes(here).values():
            # The array as it is made and as a kernel gets it.
            assert all(2 * size * cores <= 1 << 29 for size, cores in who.values())


@pytest.mark.parametrize(("seconds", "rounds"), [(1.0, 2), (30.0, 1)])
def test_a_long_round_is_not_made_twice(
    seconds: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, requests = [0.0], [0]

    def bandwidth(size: int, cores: int, *, write: bool) -> float:
        clock[0] += seconds
        requests[0] += 1
        return 1e9 * requests[0]

    monkeypatch.setattr("amos.measure.probe.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(probing, "probe_bandwidth", bandwidth)
    monkeypatch.setattr(probing, "probe_launch", lambda cores: 1e-6)
    monkeypatch.setattr(probing, "probe_clock", lambda: 2e9)
    probe = Probe((), {"L1": {"one": Stream(1 << 14, 1)}}, 1)
    answer = probe.run(Context(References(), lambda: None))
    assert isinstance(answer, Figures)
    assert requests[0] == 2 * rounds
    assert answer.write["L1"]["one"] == 1e9 * requests[0]


def test_a_clock_that_neighbours_slowed_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate that it contradicts is not refused for that; one beyond any clock is."""
    clocks = iter([0.5e9, 0.6e9, 4e9, *[4e9] * 20])
    rates = {"latency": 1e-9, "interval": 0.13e-9}
    monkeypatch.setattr(probing, "probe_clock", lambda: next(clocks))
    monkeypatch.setattr(probing, "probe_rates", lambda *_: dict(rates))
    answer = Probe((VNNI,), {}, 1).run(Context(References(), lambda: None))
    assert isinstance(answer, Figures) and answer.peaks[VNNI.name] == rates
    rates["interval"] = 0.01e-9
    refused = Probe((VNNI,), {}, 1).run(Context(References(), lambda: None))
    assert isinstance(refused, Failure) and "expected at least" in refused.message


def test_this_machine() -> None:
    """The one real measurement: some rates, in an order that makes sense."""
    machine = host_machine([VNNI])
    assert machine.peak(VNNI.name).interval <= machine.peak(VNNI.name).latency * 1.5
    assert all(1e8 < level.read_bandwidth < 1e14 for level in machine.levels)
    assert 0 < machine.launch < 1e-2


def test_a_native_rate_counts_before_loops(probe: _Probe) -> None:
    """Whatever was asked for last: only who asks for loops is told theirs."""
    assert not _machine(probe, VNNI, implementation="native").peak(VNNI.name).generic
    assert _machine(probe, VNNI, implementation="generic").peak(VNNI.name).generic
    assert not _machine(probe, WMMA).peak(VNNI.name).generic


def test_cores_that_neighbours_disturbed_are_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two cores that together get less than one alone, then undisturbed; writing at once."""
    readings = iter([100.0, 30.0, 90.0, 80.0, 50.0, 40.0])
    monkeypatch.setattr(probing, "probe_bandwidth", lambda size, cores, *, write: next(readings))
    monkeypatch.setattr(probing, "probe_launch", lambda cores: 1e-6)
    monkeypatch.setattr(probing, "probe_clock", lambda: 2e9)
    monkeypatch.setattr("amos.measure.probe._ROUNDS", 1)
    levels = {"L3": {"one": Stream(1 << 20, 1), "all": Stream(1 << 20, 2)}}
    figures = Probe((), levels, 2).run(Context(References(), lambda: None))
    assert isinstance(figures, Figures)
    assert figures.read["L3"] == {"one": 100.0, "all": 80.0}
    assert figures.write["L3"] == {"one": 50.0, "all": 40.0}
    assert next(readings, None) is None
