"""Described machines: every file loads, every mistake is named."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import amos
from amos.errors import MachineError, UnknownNameError
from amos.machine import Costs, Level, Machine, Peak, catalogue, fitted_costs
from amos.machine.makers import FITTED

GOOD = """
name = "m"
source = "a manual"
cores = 4
clock = 1e9
[[level]]
name = "L1"
capacity = 1024
units = 4
read_bandwidth = 1e9
write_bandwidth = 1e9
[[level]]
name = "DRAM"
capacity = 0
units = 1
read_bandwidth = 1e8
write_bandwidth = 1e8
[peak.unit]
latency = 1e-9
interval = 1e-9
"""


@pytest.mark.parametrize("name", catalogue.names())
def test_every_described_machine_loads(name: str) -> None:
    machine = amos.machines.get(name)
    assert machine.name == name
    assert machine.source
    assert machine.peaks
    assert set(machine.peaks) <= set(amos.intrinsics.names())
    for level in machine.levels:
        assert level.name in str(machine)
    for peak in machine.peaks.values():
        assert peak.interval <= peak.latency


def test_the_example_is_good() -> None:
    machine = catalogue.from_toml(GOOD)
    assert (machine.cores, [level.name for level in machine.levels]) == (4, ["L1", "DRAM"])
    assert machine.peak("unit").source == "a manual"
    assert machine.costs == Costs()
    assert catalogue.from_toml("costs = {find = 3}\n" + GOOD).costs == Costs(find=3)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("clock = 1e9\n", "", ["m.toml: clock: expected this key, found none"]),
        (
            "cores = 4\n",
            "cores = 4\ncolour = 1\n",
            ["m.toml:5: colour: expected one of name, source, clock"],
        ),
        ("units = 4\n", "", ["level[0].units: expected this key"]),
        ("units = 4\n", "units = 4\nsize = 1\n", ["level[0].size: expected one of name, capacity"]),
        ("latency = 1e-9\n", "", ["m.toml:18: peak.unit.latency: expected this key"]),
        (
            "latency = 1e-9\n",
            "latency = 1e-9\nrate = 2\n",
            ["peak.unit.rate: expected one of latency"],
        ),
        ("read_bandwidth = 1e9", "read_bandwidth = 0", ["'L1'", "read_bandwidth must be positive"]),
        ("write_bandwidth = 1e8", "write_bandwidth = -1", ["'DRAM'", "write_bandwidth"]),
        ("read_bandwidth = 1e9", "read_bandwidth = nan", ["'L1'", "read_bandwidth", "nan"]),
        (
            "read_bandwidth = 1e9",
            'read_bandwidth = "1"',
            ["m.toml:10: level[0].read_bandwidth: expected a number, found '1'"],
        ),
        ("capacity = 1024", "capacity = []", ["level[0].capacity", "[]"]),
        (
            "interval = 1e-9",
            "interval = true",
            ["peak.unit.interval: expected a number, found True"],
        ),
        ("cores = 4", "cores = 0", ["cores must be positive"]),
        ("cores = 4", 'cores = "4"', ["cores: expected a whole number, found '4'"]),
        ("clock = 1e9", "clock = 0", ["clock must be positive"]),
        ("capacity = 0", "capacity = 4096", ["outermost level must be unbounded"]),
        ("capacity = 1024", "capacity = 0", ["capacities must grow outward"]),
        ("cores = 4", "cores = 4\ncosts = 3", ["costs: expected a table, found 3"]),
        (
            "cores = 4",
            "cores = 4\ncosts = {nap = 1}",
            ["costs: expected dense, window", "found 'nap'"],
        ),
        (
            "cores = 4",
            "cores = 4\ncosts = {find = 'x'}",
            ["costs.find: expected a number, found 'x'"],
        ),
        ("cores = 4", "cores = 4\nlaunch = -1", ["launch is negative"]),
        ("cores = 4", "cores =", ["m.toml:4: expected TOML, found: invalid value"]),
    ],
)
def test_a_mistake_is_named(old: str, new: str, words: list[str]) -> None:
    assert old in GOOD.lower()
    with pytest.raises(MachineError) as caught:
        catalogue.from_toml(GOOD.replace(old, new, 1), "m.toml")
    message = str(caught.value)
    assert message.startswith("m.toml:")
    assert len(message.splitlines()) == 1
    missing = [word for word in words if word.lower() not in message.lower()]
    assert not missing, message


@pytest.mark.parametrize("text", ["level = 3", "peak = 3", "level = [1]", "peak = [1]"])
def test_a_table_must_be_a_table(text: str) -> None:
    key = text.split()[0]
    head = 'name = "m"\nsource = "s"\ncores = 1\nclock = 1.0\n'
    empty_entry = "peak = {}" if key == "level" else "level = []"
    with pytest.raises(MachineError, match=key):
        catalogue.from_toml(f"{head}{text}\n{empty_entry}\n", "m.toml")


def test_an_unknown_machine_is_suggested() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown machine 'a10': did you mean 'a100'"):
        amos.machines.get("a10")
    assert "host" in amos.machines.names()
    with pytest.raises(MachineError, match="'host' is this computer; expected a described one"):
        catalogue.get("host")


def test_capacities_must_grow() -> None:
    levels = [Level(name, size, 1.0, 1.0) for name, size in [("L1", 64), ("L2", 32), ("M", 0)]]
    with pytest.raises(MachineError, match=r"capacities must grow outward, got \[64, 32\]"):
        Machine("m", 1, 1.0, tuple(levels))
    with pytest.raises(MachineError, match="capacity and units must be positive"):
        Level("L1", 64, 1.0, 1.0, units=0)
    with pytest.raises(MachineError, match="latency and interval"):
        Peak(1.0, 0.0)


def test_cores_share_a_level() -> None:
    level = Level("L3", 64, 8.0, 4.0, units=2, core_read=3.0)
    groups = np.array([1, 2, 4])
    alone = np.ones(3)
    assert level.rate(groups, alone, write=True).tolist() == [4.0, 4.0, 2.0]
    # One core draws no more than its own part, two of a group twice that.
    assert level.rate(groups, alone, write=False).tolist() == [3.0, 3.0, 3.0]
    assert level.rate(groups, 2 * alone, write=False).tolist() == [6.0, 6.0, 4.0]


def test_a_rate_that_a_machine_lacks_is_that_of_the_description() -> None:
    unit = amos.intrinsics.get("mma_sync_m16n8k16_f16_f32")
    assert unit.name not in catalogue.get("a100").peaks
    machine = catalogue.get("a100", [unit])
    # 8 cycles of a sub-core; nobody has published the latency, which is no less.
    assert machine.peak(unit.name).interval == pytest.approx(8 / 1.41e9)
    assert machine.peak(unit.name).latency == machine.peak(unit.name).interval
    assert "A100" in machine.peak(unit.name).source
    with pytest.raises(MachineError, match="no rate"):
        catalogue.get("v100", [unit]).peak(unit.name)


def test_the_machine_s_own_rate_comes_first_and_a_figure_of_no_machine_last() -> None:
    wmma = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    anywhere = amos.intrinsics.Timing(100, "a guess", 200)
    faster = replace(wmma, timing=(anywhere,))
    assert catalogue.get("a100", [faster]) == catalogue.get("a100")
    own = amos.intrinsics.Timing(10, "measured", 20, "a100")
    both = replace(wmma, name="new_m16n16k16_f16_f32", timing=(anywhere, own))
    assert catalogue.get("a100", [both]).peak(both.name).interval == pytest.approx(10 / 1.41e9)
    assert catalogue.get("v100", [both]).peak(both.name).latency == pytest.approx(200 / 1.53e9)


def test_documents_count_the_constants() -> None:
    words = {9: "nine", 10: "ten", 11: "eleven", 12: "twelve"}
    count = words[len(fields(Costs))]
    root = Path(__file__).parents[2]
    for page in ("ARCHITECTURE.md", "docs/performance-model.md"):
        text = " ".join((root / page).read_text(encoding="utf-8").split())
        assert re.search(rf"\b{count} (constants )?for (a|each) maker of CPUs", text), page


@pytest.mark.parametrize("name", ["xeon_4110", "xeon_6240"])
def test_described_cpus_have_the_constants_of_their_maker(name: str) -> None:
    assert amos.machines.get(name).costs == FITTED["GenuineIntel"]


@pytest.mark.parametrize("name", ["mali_g76", "vta_pynq", "a100"])
def test_what_is_no_cpu_has_constants_that_leave_every_term_out(name: str) -> None:
    assert amos.machines.get(name).costs == fitted_costs("") == Costs()


def test_a_cpu_of_an_unknown_maker_is_no_machine_without_costs() -> None:
    assert fitted_costs("VIA VIA VIA") == FITTED["AuthenticAMD"]
