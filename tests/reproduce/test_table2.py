"""Table 2: the networks have the layers that their papers give them."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from amos.cli import main
from amos.errors import ToolchainError
from amos.ir import Operator
from amos.validate import evaluate


def test_without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    from amos.reproduce.networks import network

    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ToolchainError, match=r"amos-mapper\[onnx\]"):
        network("Bert")


def test_counts() -> None:
    pytest.importorskip("onnx", reason="networks are ONNX models: onnx is not installed")
    from amos.reproduce.table2 import table2

    rows = {row.network: row for row in table2()}
    assert {name: row.mapped for name, row in rows.items()} == {
        "ShuffleNet": 51,
        "ResNet-50": 55,
        "MobileNet": 29,
        "Bert": 96,
        "MI-LSTM": 9,
    }
    assert rows["ResNet-50"].kinds == {"convolution": 53, "mean": 1, "matrix-vector product": 1}
    # 3 projections, an output projection and 2 feed-forward layers; scores and values.
    assert rows["Bert"].kinds == {"matrix product": 12 * 6, "batched product": 12 * 2}
    for row in rows.values():
        assert row.total == row.mapped + sum(row.unmapped.values())
        assert row.mapped >= row.paper_amos > row.paper_xla


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx", reason="networks are ONNX models: onnx is not installed")
    assert main(["reproduce", "table2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["network"] for row in rows][0] == "ShuffleNet"
    assert {"total", "mapped", "paper_total", "paper_xla", "paper_amos"} <= rows[0].keys()


@pytest.mark.parametrize("name", ["ResNet-50", "MobileNet", "ShuffleNet"])
def test_sizes_of_the_networks(name: str) -> None:
    """Multiply-adds of a whole network, in 10^6, as its authors give them."""
    pytest.importorskip("onnx", reason="networks are ONNX models: onnx is not installed")
    from amos.reproduce.networks import network
    from amos.reproduce.table2 import operators_of

    authors = {"ResNet-50": 3800, "MobileNet": 569, "ShuffleNet": 137}
    listed = [op for _, op in operators_of(network(name)) if op is not None and op.name != "mean"]
    total = sum(op.points for op in listed) / 1e6
    assert total == pytest.approx(authors[name], rel=0.1)


def test_a_node_is_its_operator() -> None:
    """A convolution taken from ONNX computes what ONNX defines."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    reference = pytest.importorskip("onnx.reference")
    from amos.reproduce.networks import _Graph
    from amos.reproduce.table2 import operators_of

    g = _Graph("one")
    y = g.conv(g.input("image", 1, 4, 9, 9), 6, 3, 2, groups=2)
    model = g.model(y)
    ((_, op),) = operators_of(model)
    assert isinstance(op, Operator)
    rng = np.random.default_rng(0)
    image = rng.integers(-4, 4, (1, 4, 9, 9)).astype(np.float32)
    weight = rng.integers(-4, 4, (6, 2, 3, 3)).astype(np.float32)
    names = [value.name for value in model.graph.input]
    (expected,) = reference.ReferenceEvaluator(model).run(
        None, dict(zip(names, (image, weight), strict=True))
    )
    inputs = {"image": image.reshape(1, 2, 2, 9, 9), "weight": weight.reshape(2, 3, 2, 3, 3)}
    got = evaluate(op.with_dtypes(dict.fromkeys(("image", "weight", "out"), "float32")), inputs)
    assert np.array_equal(got.reshape(expected.shape), expected)
    assert onnx.__version__
