"""Constants that are computed before shapes are inferred."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import amos
from amos.network.reading.model import read_model
from amos.network.sessions import plain_session

_SHAPE = [1, 4, 9]


def _padded(*more: Any) -> Any:
    """A padding whose widths PyTorch computes at run time, as it exports it, and a convolution."""
    constants = {"four": [4], "axes": [-1, 2], "begin": [-1], "end": [-(2**31)], "zero": [0]}
    constants |= {"step": [-1], "flat": [-1]}
    weights = {name: np.array(value, np.int64) for name, value in constants.items()}
    weights["widths"] = np.array([1, 2], np.int64)
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    w = np.random.default_rng(0).standard_normal((8, 4, 3)).astype(np.float32)
    tensors.append(numpy_helper.from_array(w, "w"))
    node = helper.make_node
    nodes = [
        node("ConstantOfShape", ["four"], ["none"], value=helper.make_tensor("v", 7, [1], [0])),
        node("Concat", ["widths", "none"], ["all"], axis=0),
        node("Reshape", ["all", "axes"], ["pairs"]),
        node("Slice", ["pairs", "begin", "end", "zero", "step"], ["turned"]),
        node("Transpose", ["turned"], ["ends"], perm=[1, 0]),
        node("Reshape", ["ends", "flat"], ["pads"]),
        node("Pad", ["x", "pads"], ["wide"]),
        node("Conv", ["wide", "w"], ["y"]),
        *more,
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, _SHAPE)
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b", "c"])]
    outputs += [helper.make_empty_tensor_value_info(n) for each in more for n in each.output]
    graph = helper.make_graph(nodes, "padded", [x], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_shapes_behind_a_computed_padding_are_known() -> None:
    reading = read_model(_padded(), {"x": _SHAPE})
    assert not reading.external
    assert [node.operation for node in reading.operators] == ["input", "Pad", "Conv"]
    assert reading.values["y"].shape == (1, 8, 10)


def test_what_is_drawn_stays_and_what_is_known_is_returned() -> None:
    more = [
        helper.make_node("RandomNormal", [], ["drawn"], shape=[3]),
        helper.make_node("Identity", ["pads"], ["widths_out"]),
    ]
    model = _padded(*more)
    network = amos.load_network(model)
    assert [kind for kind, _ in network.external] == ["RandomNormal"]
    values = np.random.default_rng(1).standard_normal(_SHAPE).astype(np.float32)
    results, expected = (
        amos.compile(network, progress=False)(values),
        plain_session(model).run(None, {"x": values}),
    )
    np.testing.assert_allclose(results[0], expected[0], rtol=1e-4, atol=1e-5)
    assert results[2].tolist() == expected[2].tolist()
