"""Models that errors are measured on have the results of the model, also beyond finite numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from amos.network.precision.measured_models import rewrite_for_measuring
from amos.network.sessions import plain_session

_VALUES = np.array([np.nan, np.inf, -np.inf, -0.0, 0.5, -3.0, 3.0] * 5)


def _model(nodes: list[Any], kind: str = "float32") -> Any:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    x, y = (helper.make_tensor_value_info(name, element, [None]) for name in "xy")
    opsets = [helper.make_opsetid("", 21)]
    graph = helper.make_graph(nodes, "small", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _run(model: Any, x: np.ndarray) -> np.ndarray:
    (result,) = plain_session(model).run(None, {"x": x})
    return np.asarray(result)


@pytest.mark.parametrize("name", ["Min", "Max"])
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("float32", 0.5),
        ("float32", np.nan),
        ("float32", np.inf),
        ("float32", -np.inf),
        ("float64", -3.0),
        ("float16", 0.5),
        ("int32", 2),
        ("uint8", 2),
    ],
)
def test_bounds_keep_every_value(name: str, kind: str, number: float) -> None:
    constant = numpy_helper.from_array(np.array(number, kind))
    bound = helper.make_node("Constant", [], ["bound"], value=constant)
    model = _model([bound, helper.make_node(name, ["bound", "x"], ["y"])], kind)
    values = _VALUES.astype(kind) if kind.startswith("f") else np.arange(_VALUES.size).astype(kind)
    measured = rewrite_for_measuring(model)
    clips = [node.op_type for node in measured.graph.node].count("Clip")
    assert clips == (number == number)
    np.testing.assert_array_equal(_run(measured, values), _run(model, values))


def test_small_sigmoids_are_exact() -> None:
    model = _model([helper.make_node("Sigmoid", ["x"], ["y"])])
    x = np.array([-40.0, -20.0, 2.0], np.float32)
    exact = 1 / (1 + np.exp(-x.astype(float)))
    np.testing.assert_allclose(_run(rewrite_for_measuring(model), x), exact, rtol=1e-5)
