"""The report: predictions by task, what stays with the engine, and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import amos
from amos.cli.app import main
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
    assert {row["operation"]: row["count"] for row in rows["engine"]} == {
        "permute_dims": 2,
        "nn.max_pool2d": 1,
        "mean": 1,
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
    assert (row.operation, row.reason) == ("matmul", "dtype float64 is not supported")
    assert not network.report("xeon_6240").complete


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(residual_network(), path)
    assert main(["report", str(path), "--machine", "xeon_6240", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["network"] == "model"
    assert main(["report", str(path), "--machine", "xeon_6240"]) == 0
    assert "nn.max_pool2d" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:200])
    assert main(["report", str(path)]) == 2
    assert "is no valid ONNX file" in capsys.readouterr().err
    assert main(["compile", str(tmp_path / "none.onnx")]) == 2
    assert "there is no such file" in capsys.readouterr().err
