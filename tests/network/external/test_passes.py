"""The model after each pass is a valid one that computes the same, without AMOS's library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import amos
from amos.cli.app import main
from amos.errors import NetworkError
from amos.network.external.passes import write_passes
from amos.network.passes.sequence import PASSES
from tests.network.external.test_onnxruntime import partly
from tests.network.models import Builder, residual_network


def _whole() -> Any:
    b = Builder()
    x = b.node("Relu", b.node("MatMul", b.input("x", (4, 16)), b.random(16, 8)))
    return b.model(b.node("Softmax", x, axis=-1))


@pytest.mark.parametrize(("make", "calls"), [(partly, 2), (_whole, 1)])
def test_onnxruntime_runs_every_pass(make: Any, calls: int, tmp_path: Path) -> None:
    network = amos.load_network(make())
    paths = write_passes(network, tmp_path)
    names = ["read", *PASSES, "groups"]
    assert [path.stem.partition("-")[2] for path in paths] == names
    last = onnx.load(paths[-1])
    assert sum(node.domain == "amos" for node in last.graph.node) == len(network.regions) == calls
    groups = sum(task.weight for task in network.tasks)
    assert len(last.functions) == calls + groups
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(make().SerializeToString()).run(None, {"x": x})
    for path in paths:
        onnx.checker.check_model(path)
        (result,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_names_of_the_model_are_no_names_of_passes(tmp_path: Path) -> None:
    """Values that a pass writes are numbered, and so may be those of a model."""
    b, names = Builder(), [f"{kind}{n}" for kind in "vt" for n in range(6)]
    x = b.input("v0", (4, 16))
    for name in names[1:]:
        x = b.node("Add", b.node("MatMul", x, b.random(16, 16)), b.input(name, (4, 16)))
    model = b.model(x)
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal((4, 16)).astype(np.float32) for name in names}
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, values)
    for path in write_passes(amos.load_network(model), tmp_path):
        (result,) = onnxruntime.InferenceSession(path).run(None, values)
        np.testing.assert_allclose(result, expected, rtol=1e-4)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(residual_network(), tmp_path / "model.onnx")
    folder = tmp_path / "passes"
    assert main(["report", str(tmp_path / "model.onnx"), "--passes", str(folder)]) == 0
    last = folder / f"{len(PASSES) + 2}-groups.onnx"
    assert f"wrote {last}" in capsys.readouterr().out.replace("\n", "")
    (tmp_path / "file").write_text("")
    assert main(["report", str(tmp_path / "model.onnx"), "--passes", str(tmp_path / "file")]) == 2


def test_other_networks_have_no_passes(tmp_path: Path) -> None:
    b = Builder()
    model = b.model(b.node("MatMul", b.input("x", ("rows", 16)), b.random(16, 8)))
    network = amos.load_network(model, buckets={"rows": [4]})
    with pytest.raises(NetworkError, match="passes: expected an ONNX model, without buckets"):
        write_passes(network, tmp_path)
