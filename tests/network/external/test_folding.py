"""Constants that are computed before shapes are inferred."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from amos.network.external.onnx_graph import prepare_graph
from amos.network.frontend import plain_session

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
    model = _padded()
    graph = prepare_graph(model, {"x": _SHAPE}, "padded")
    # onnxscript makes the padding, now that it is known, one of the convolution.
    assert {node.op_type for node in graph.nodes} <= {"Pad", "Conv"}
    assert graph.ports["y"].shape == (1, 8, 10)
    values = {"x": np.random.default_rng(1).standard_normal(_SHAPE).astype(np.float32)}
    (expected,) = plain_session(model).run(None, values)
    np.testing.assert_array_equal(plain_session(graph.model).run(None, values)[0], expected)


def test_what_is_drawn_and_what_others_return_stays() -> None:
    more = [
        helper.make_node("RandomNormal", [], ["drawn"], shape=[3]),
        helper.make_node("Identity", ["pads"], ["widths_out"]),
    ]
    model = _padded(*more)
    graph = prepare_graph(model, {"x": _SHAPE}, "padded")
    kinds = [node.op_type for node in graph.nodes]
    assert {"RandomNormal", "Conv"} <= {*kinds}
    values = {"x": np.zeros(_SHAPE, np.float32)}
    results = plain_session(graph.model).run(None, values)
    assert results[2].tolist() == plain_session(model).run(None, values)[2].tolist()
