"""Models of floats of 16 bits: what is widened, that ports stay, and what kernels compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, checker, helper, numpy_helper

import amos
from amos.network import halves
from amos.network.checks import relative_norm
from amos.network.halves import find_halves, widen_halves
from amos.network.operations import numpy_dtype
from amos.network.precision.choosing import keep_precision
from amos.network.precision.variants import has_bfloat16, multiplies

_CODES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def _constant(name: str, values: Any, kind: str) -> Any:
    return numpy_helper.from_array(np.asarray(values).astype(numpy_dtype(kind)), name)


def _model(nodes: list[Any], inputs: Any, outputs: Any, weights: list[Any]) -> Any:
    ports = [
        [helper.make_tensor_value_info(name, code, shape) for name, code, shape in each]
        for each in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "half", *ports, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _perceptron(kind: str) -> Any:
    """Two products with a ReLU between; the first one's weights are there as a copy, too."""
    rng, code = np.random.default_rng(0), _CODES[kind]
    weights = [
        _constant(name, rng.standard_normal((64, 64)) / 8, kind) for name in ("first", "second")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["sums"]),
        helper.make_node("Relu", ["sums"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "second"], ["y"]),
    ]
    return _model(nodes, [("x", code, (8, 64))], [("y", code, (8, 64))], weights)


def _branches() -> Any:
    """A branch that reads an input of f16, a constant and a conversion in it, and int64 beside."""
    code = TensorProto.FLOAT16
    constant = helper.make_node("Constant", [], ["two"], value=_constant("", 2, "float16"))
    twice = helper.make_node("Mul", ["x", "two"], ["twice"])
    half = helper.make_node("Cast", ["count"], ["half"], to=code)
    sums = helper.make_node("Add", ["twice", "half"], ["more"])
    same = helper.make_node("Identity", ["x"], ["same"])
    bodies = [
        helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, code, (2,))])
        for nodes, name in (([constant, twice, half, sums], "more"), ([same], "same"))
    ]
    branch = helper.make_node("If", ["flag"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    inputs = [("x", code, (2,)), ("count", TensorProto.INT64, ()), ("flag", TensorProto.BOOL, ())]
    return _model([branch], inputs, [("y", code, (2,)), ("x", code, (2,))], [])


def test_ports_keep_their_dtypes_and_all_else_is_wide() -> None:
    import onnxruntime

    model = _branches()
    assert find_halves(model) == {"float16"}
    wide = widen_halves(model)
    checker.check_model(wide, full_check=True)
    assert [*wide.graph.input, *wide.graph.output] == [*model.graph.input, *model.graph.output]
    assert find_halves(model) == {"float16"}  # it was copied
    x = np.array([1.5, -3], np.float16)
    for flag in (True, False):
        values = {"x": x, "count": np.array(7), "flag": np.array(flag)}
        results, expected = (
            onnxruntime.InferenceSession(each.SerializeToString()).run(None, values)
            for each in (wide, model)
        )
        for result, right in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, right)
            assert result.dtype == np.float16


def test_names_of_widened_ports_are_their_own() -> None:
    """Another value has the name that the widened input would get; a weight is a result, too."""
    import onnxruntime

    weight = _constant("w", np.eye(4) * 2, "float16")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["x_float32"]),
        helper.make_node("Add", ["x_float32", "x"], ["y"]),
    ]
    half = TensorProto.FLOAT16
    results = [("y", half, (3, 4)), ("w", half, (4, 4))]
    wide = widen_halves(_model(nodes, [("x", half, (3, 4))], results, [weight]))
    checker.check_model(wide, full_check=True)
    x = np.arange(12, dtype=np.float16).reshape(3, 4)
    session = onnxruntime.InferenceSession(wide.SerializeToString())
    for got, expected in zip(session.run(None, {"x": x}), (3 * x, np.eye(4) * 2), strict=True):
        assert got.dtype == np.float16
        np.testing.assert_array_equal(got, expected)


def test_results_without_a_dtype_keep_theirs() -> None:
    model, open_model = _perceptron("float16"), _perceptron("float16")
    open_model.graph.output[0].ClearField("type")
    assert widen_halves(open_model).graph.output == widen_halves(model).graph.output


def test_models_without_halves_and_those_that_are_too_large_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = widen_halves(_perceptron("float16"))
    inner = _model([*wide.graph.node][1:-1], [], [], [*wide.graph.initializer])
    assert not find_halves(inner)
    monkeypatch.setattr(halves, "_LARGEST", 1000)
    model = _perceptron("float16")
    assert widen_halves(model) is model


def test_products_of_mixed_models_stay_as_they_are() -> None:
    """Some programs convert around single products, and leave others in float32 for a reason."""
    model = _perceptron("bfloat16")
    assert amos.load_network(model).factors == "bfloat16"
    model.graph.initializer.append(_constant("third", np.eye(64), "float32"))
    del model.graph.node[-1]
    nodes = [
        helper.make_node("Cast", ["hidden"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["wide", "third"], ["exact"]),
        helper.make_node("Cast", ["exact"], ["narrow"], to=TensorProto.BFLOAT16),
        helper.make_node("MatMul", ["narrow", "second"], ["y"]),
    ]
    model.graph.node.extend(nodes)
    network = amos.load_network(model)
    assert network.halves == {"bfloat16"} and not network.factors
    assert keep_precision(network) is network


@pytest.mark.skipif(not multiplies("float16"), reason="this CPU has neither f16c nor avx512f")
@pytest.mark.long
def test_weights_of_models_in_float16_stay_so_where_products_wait_for_them() -> None:
    rng = np.random.default_rng(0)
    weight = _constant("w", rng.standard_normal((1024, 2048)), "float16")
    ports = [(name, TensorProto.FLOAT16, (1, n)) for name, n in (("x", 1024), ("y", 2048))]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    network = amos.load_network(_model([node], ports[:1], ports[1:], [weight]))
    assert network.factors == "float16"
    (region,) = keep_precision(network).networks.values()
    (task,) = region.tasks
    assert {str(each.dtype) for each in task.operator.inputs} == {"float16"}


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_products_are_kernels(kind: str) -> None:
    """Of bfloat16 the factors stay so, where the CPU has the instruction; sums are float32."""
    network = amos.load_network(_perceptron(kind))
    assert network.halves == {kind}
    assert [port.dtype for port in network.inputs] == [kind]
    compiled = amos.compile(network, progress=False)
    dtypes = {str(x.dtype) for task in compiled.kernels for x in task.operator.inputs}
    if kind == "bfloat16":
        assert dtypes == {"bfloat16" if has_bfloat16() else "float32"} or not compiled.regions
    x = np.random.default_rng(1).standard_normal((8, 64)).astype(numpy_dtype(kind))
    first, second = (
        numpy_helper.to_array(each).astype(np.float64)
        for each in _perceptron(kind).graph.initializer
    )
    exact = np.maximum(x.astype(np.float64) @ first, 0) @ second
    result = compiled(x.astype(np.float16 if kind == "float16" else np.float32))
    assert result.dtype == (np.float16 if kind == "float16" else np.float32)
    assert relative_norm(result, exact) < (1e-3 if kind == "float16" else 1e-2)
    assert relative_norm(result, exact) > 1e-5
