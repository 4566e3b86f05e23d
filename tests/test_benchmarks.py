"""The benchmarks' workloads and report; what they time is not run here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from amos.operators.tables import TABLE_6

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    if not BENCHMARKS.is_dir():
        pytest.skip("not a checkout of the repository")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from importlib import import_module

    made = import_module("contenders.workloads"), import_module("contenders.report")
    for name in [name for name in sys.modules if name.startswith("contenders")]:
        monkeypatch.delitem(sys.modules, name)
    return made


def test_every_operator_of_table_6_has_six_shapes(modules: tuple[ModuleType, ModuleType]) -> None:
    workloads, _ = modules
    assert set(workloads.SHAPES) == set(TABLE_6) | {"bmm", "dense"}
    assert all(len(rows) >= 6 for rows in workloads.SHAPES.values())


def test_every_workload_is_an_operator(modules: tuple[ModuleType, ModuleType]) -> None:
    workloads, _ = modules
    for name in workloads.names("all"):
        op = workloads.find(name).op
        assert sorted(str(t.dtype) for t in op.inputs) == ["int8", "uint8"], name
        # Both sources of a batched product are activations.
        assert len(op.constants) == (not name.startswith("bmm")), name
    assert workloads.find("resnet18:C5@16").op.extents["n"] == 16
    assert workloads.names("heron:G1,heron:G1,gemv:bert.up") == ["heron:G1", "gemv:bert.up"]
    with pytest.raises(KeyError):
        workloads.names("resnet18:C99")


def test_the_report(modules: tuple[ModuleType, ModuleType]) -> None:
    _, report = modules

    def row(contender: str, trials: int, seconds: float) -> dict[str, object]:
        return {
            "workload": "resnet18:C5",
            "contender": contender,
            "trials": trials,
            "median_seconds": seconds,
            "spread": 0.01,
            "tops": 1e-4 / seconds,
        }

    rows = [row("amos", 16, 1e-4), row("onednn_f32_call", 0, 2e-4), row("fixM1", 16, 5e-5)]
    rows += [row("peak_registers", 0, 4e-5), row("peak_fed", 0, 5e-5)]
    machine = {"cpu": "A", "cores": 2, "peak_tops": 2.5, "peaks": {"peak_fed": 2.0}}
    lines = report.table(rows, machine)
    text = "\n".join(lines)
    assert "peak_fed 2.00" in lines[0]
    assert [line.split()[-2:] for line in lines[3:6]] == [
        ["40.0%", "50.0%"],
        ["20.0%", "25.0%"],
        ["80.0%", "100.0%"],
    ]
    amx = [*rows, row("peak-amx_registers", 0, 1e-5), row("peak-amx_fed", 0, 2e-5)]
    assert report.table(amx, machine)[4].split()[-2:] == ["5.0%", "10.0%"]
    assert "fixM1 16 0.50 (worst 0.50, 1), onednn_f32_call 2.00 (worst 2.00, 1)" in text
    assert "resnet18: fastest call / amos 16 2.00 (worst 2.00, resnet18:C5; 1)" in text
    held = [*rows, row("pytorch-vnni_f32", 0, 3e-4), row("onednn-vnni_u8_primitive", 0, 1e-5)]
    held += [row("amos-amx", 16, 1e-5)]
    told = report.table(held, machine)[-2:]
    assert "fastest call / amos 16 3.00 (" in told[0]
    assert "fastest call / amos-amx 16 20.00 (" in told[1]
    drawn = ElementTree.fromstring(report.picture("resnet18", rows, machine))
    titles = [node.text for node in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "resnet18:C5 amos 16: 0.1000 ms, 1.000 Top/s"
    assert len(titles) == 3
