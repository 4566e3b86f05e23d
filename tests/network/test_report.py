"""The report: predictions by task, what stays with the engine, and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import amos
from amos.cli.app import main
from amos.errors import BuildError, MappingError, UnknownNameError
from amos.explore.choosing import Chooser
from amos.network.lowerings.winograd import list_bands
from tests.network.models import Builder, residual_network


def test_a_report_adds_up() -> None:
    network = amos.load_network(residual_network())
    report = network.report("xeon_6240")
    rows = report.to_dict()
    assert report.machine == "xeon_6240"
    assert [task["count"] for task in rows["tasks"]] == [1] * 7
    total = sum(task["seconds"] * task["count"] for task in rows["tasks"])
    total += sum(row["seconds"] for row in rows["engine"])
    assert rows["predicted_seconds"] == pytest.approx(total)
    assert rows["complete"]
    shares = [task["share"] for task in rows["tasks"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(rows["kernel_seconds"] / total)
    assert {row["operation"]: row["count"] for row in rows["engine"]} == {
        "Transpose": 1,
        "MaxPool": 1,
        "ReduceMean": 1,
    }


def test_the_picture_has_a_bar_for_each_row() -> None:
    pytest.importorskip("plotly", reason="plotly is not installed")
    report = amos.load_network(residual_network()).report("xeon_6240")
    figure = amos.viz.report(report)
    bars = {name: x for trace in figure.data for name, x in zip(trace.y, trace.x, strict=True)}
    assert len(bars) == len(report.tasks) + len(report.engine)
    assert sum(bars.values()) == pytest.approx(report.seconds)
    top = figure.layout.yaxis.categoryarray[::-1]
    assert [bars[name] for name in top] == sorted(bars.values(), reverse=True)
    assert {trace.name for trace in figure.data if trace.name != "engine"} == {
        f"bound by {row.bound}" for row in report.tasks
    }


def test_what_no_instruction_computes_stays_with_a_reason() -> None:
    """float64 is no dtype of any instruction."""
    b = Builder()
    x = b.input("x", (4, 16), onnx.TensorProto.DOUBLE)
    y = b.node("MatMul", x, b.constant(b.rng.standard_normal((16, 8)), "float64"))
    network = amos.load_network(b.model(b.node("Cast", y, to=onnx.TensorProto.FLOAT)))
    (row, *_) = network.report("xeon_6240").engine
    assert (row.operation, row.reason) == ("MatMul", "dtype float64 is not supported")
    assert not network.report("xeon_6240").complete


def test_machines_of_models_without_regions_are_read() -> None:
    b = Builder()
    weights = [b.random(1, 16, size) for size in (5, 4)]
    x = b.input("x", (3, 1, 5))
    network = amos.load_network(b.model(b.node("LSTM", x, *weights, hidden_size=4)))
    assert not network.regions
    with pytest.raises(UnknownNameError, match="unknown machine 'nonsense'"):
        network.report("nonsense")
    report = network.report("vta_pynq")
    assert (report.machine, report.elsewhere) == ("vta_pynq", "host")


@pytest.mark.parametrize("machine", ["vta_pynq", "gemmini"])
def test_without_all_products_there_is_no_total(
    machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Units of integers compute none of these products, and nobody says who their host is."""
    report = amos.load_network(residual_network()).report(machine)
    rows = report.to_dict()
    assert (report.seconds, report.complete, rows["predicted_seconds"]) == (None, False, None)
    assert {row["seconds"] for row in rows["engine"]} == {None}
    assert "no total: 7 without a kernel (products)" in str(report)
    assert (
        str(report)
        .splitlines()[0]
        .endswith(f"{machine}: modelled: 0.0% of the products; 7 of 7 layers are not")
    )
    assert (rows["modelled_share"], rows["kernel_seconds"]) == (0.0, None)
    assert sum(row["count"] for row in rows["unmapped"]) == 7
    assert all(row["products"] > 0 and row["reason"] for row in rows["unmapped"])
    assert "engine" not in str(report)
    path = tmp_path / "model.onnx"
    onnx.save(residual_network(), path)
    assert main(["report", str(path), "--machine", machine]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "predicted no total" in printed
    assert "stays with the host" in printed
    assert "engine" not in printed


@pytest.mark.parametrize("machine", ["vta_pynq", "gemmini"])
def test_what_explore_refuses_is_no_kernel_of_a_report(machine: str) -> None:
    text, extents = "out[i,j] += a[i,k] * weight[k,j]", dict(i=16, j=16, k=16)
    op = amos.Operator.parse(text, extents, dict(a="int8", weight="int8"))
    assert Chooser(machine).choose(op).mapping.intrinsic.name.startswith(machine[:3])
    op = op.with_epilogue("f32(tanh(acc * scale[j]))")
    with pytest.raises(BuildError) as alone:
        amos.explore(op, machine=machine, trials=1, progress=False)
    with pytest.raises(MappingError) as refused:
        Chooser(machine).choose(op)
    assert str(alone.value) in str(refused.value)


@pytest.mark.parametrize("machine", ["a100", "vta_pynq", "gemmini"])
def test_only_cpus_compute_convolutions_by_tiles(machine: str) -> None:
    network = amos.load_network(residual_network())
    for task in network.tasks:
        assert not list_bands(task, Chooser(machine))


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(residual_network(), path)
    assert main(["report", str(path), "--machine", "xeon_6240", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["network"] == "model"
    assert main(["report", str(path), "--machine", "xeon_6240"]) == 0
    assert "MaxPool" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:200])
    assert main(["report", str(path)]) == 2
    assert "is no valid ONNX file" in capsys.readouterr().err
    assert main(["compile", str(tmp_path / "none.onnx")]) == 2
    assert "there is no such file" in capsys.readouterr().err
