"""What AMOS took and then cannot compile, or computes wrongly, goes to onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import amos
from amos.codegen.c.compiler import c_compiler
from amos.errors import BuildError, NetworkError
from amos.network.external.compiled import CompiledNetwork
from amos.network.external.library import write_library
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.race import Timing
from amos.network.inputs import random_arrays
from amos.network.reading.model import read_model
from amos.network.reading.onnx_graph import OnnxGraph
from amos.network.sessions import Reference
from tests.network.external.test_onnxruntime import partly
from tests.network.models import Builder

needs_compiler = pytest.mark.skipif(c_compiler() is None, reason="needs a C compiler")


def _values(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@needs_compiler
def test_a_model_that_cannot_be_compiled_is_onnxruntimes(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(regions: Any, folder: Any) -> Any:
        raise NetworkError("small: TVM cannot compile it: it is full")

    monkeypatch.setattr("amos.network.external.linking.write_library", failing)
    b = Builder()
    model = b.model(b.node("MatMul", b.input("x", (4, 16)), b.random(16, 8)))
    network = amos.load_network(model)
    assert network.is_single_region
    compiled = amos.compile(network, progress=False)
    assert isinstance(compiled, CompiledNetwork)
    assert compiled.failures == ("Region0: small: TVM cannot compile it: it is full",)
    assert f"not used: {compiled.failures[0]}" in str(compiled)
    assert compiled.to_dict()["failures"] == list(compiled.failures)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": _values(4, 16)})
    np.testing.assert_allclose(compiled(_values(4, 16)), expected, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_what_nobody_runs_is_refused_when_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime multiplies no matrices of bfloat16."""

    def failing(regions: Any, folder: Any) -> Any:
        raise NetworkError("small: TVM cannot compile it: it is full")

    b = Builder()
    x = b.node("Cast", b.input("x", (4, 16)), to=TensorProto.BFLOAT16)
    weights = b.node("Cast", b.random(16, 8), to=TensorProto.BFLOAT16)
    product = b.node("Cast", b.node("MatMul", x, weights), to=TensorProto.FLOAT)
    monkeypatch.setattr("amos.network.external.partition.widen_halves", lambda model: model)
    network = amos.load_network(b.model(product))
    assert amos.compile(network, progress=False)(_values(4, 16)).shape == (4, 8)
    monkeypatch.setattr("amos.network.external.linking.write_library", failing)
    with pytest.raises(NetworkError, match="onnxruntime refuses the model.*TVM cannot compile it"):
        amos.compile(network, progress=False)


@needs_compiler
@pytest.mark.long
def test_strings_and_sequences_go_through_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs and results of types that no kernel has, as tokenizers and scikit-learn have them."""
    monkeypatch.setattr(Timing, "wins", property(lambda timing: not timing.fault))
    b = Builder()
    x, words = b.input("x", (4, 16)), b.input("words", (4, 1), TensorProto.STRING)
    big = b.node("Cast", b.input("big", (4, 1), TensorProto.UINT64), to=TensorProto.FLOAT)
    weights = [numpy_helper.from_array(np.array(["yes"], object), "yes")]
    is_yes = b.node("Cast", b.node("Equal", words, "yes"), to=TensorProto.FLOAT)
    y = b.node("Add", b.node("MatMul", x, b.random(16, 8)), b.node("Mul", is_yes, big))
    rows = b.node("SplitToSequence", y, axis=0)
    results = [
        helper.make_tensor_value_info(y, TensorProto.FLOAT, None),
        helper.make_tensor_sequence_value_info(rows, TensorProto.FLOAT, None),
        b.inputs[1],
    ]
    graph = helper.make_graph(b.nodes, "strings", b.inputs, results, [*b.weights, *weights])
    opsets = [helper.make_opsetid("", 19)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    compiled = amos.compile(amos.load_network(model), precision="auto", progress=False)
    assert isinstance(compiled, CompiledNetwork)
    assert compiled.regions
    assert compiled.failures == ()
    values = {
        "x": _values(4, 16),
        "words": np.array([["yes"], ["no"], [""], ["yes"]]),
        "big": np.arange(4, dtype=np.uint64).reshape(4, 1),
    }
    product, sequence, same = compiled(**values)
    (plain,) = ReferenceEvaluator(model).run([y], values | {"words": values["words"].astype("O")})
    np.testing.assert_allclose(product, plain, rtol=2e-2, atol=2e-2)
    assert len(sequence) == 4
    assert same.tolist() == values["words"].tolist()
    with pytest.raises(BuildError, match=r"input 'words': expected string of shape \(4, 1\)"):
        compiled(**values | {"words": np.array(["yes"])})
    with pytest.raises(BuildError, match=r"input 'words': expected string"):
        compiled(**values | {"words": np.array([[b"yes"]] * 4)})


@needs_compiler
def test_a_model_that_draws_numbers_keeps_its_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As speech synthesis does: no two calls have equal results."""
    monkeypatch.setattr(Timing, "wins", property(lambda timing: not timing.fault))
    b = Builder()
    x = b.input("x", (4, 16))
    noisy = b.node("Add", x, b.node("RandomNormalLike", x))
    model = b.model(
        b.node("MatMul", b.node("Relu", b.node("MatMul", noisy, b.random(16, 8))), b.random(8, 8))
    )
    compiled = amos.compile(amos.load_network(model), progress=False)
    assert isinstance(compiled, CompiledNetwork)
    assert compiled.regions
    assert compiled.failures == ()
    assert not np.array_equal(compiled(_values(4, 16)), compiled(_values(4, 16)))


@needs_compiler
def test_slices_backwards_and_sums_of_nothing() -> None:
    b = Builder()
    x = b.input("x", (2, 8))
    backwards = b.node("Slice", x, *(b.constant([each], "int64") for each in (0, 5, 1, -1)))
    zeros = b.node("MatMul", backwards, b.constant(np.zeros((0, 4))))
    product = b.node("MatMul", b.node("Concat", backwards, x, axis=1), b.random(8, 4))
    reduced = b.node("ReduceProd", backwards, axes=[1], keepdims=1)
    model = b.model(b.node("Add", b.node("Mul", product, reduced), zeros))
    (expected,) = ReferenceEvaluator(model).run(None, {"x": _values(2, 8)})
    result = amos.compile(amos.load_network(model), progress=False)(_values(2, 8))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def _misread(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    """Have AMOS read every weight of regions wrongly."""

    def read(model: Any, *arguments: Any) -> OnnxGraph:
        wrong = type(model)()
        wrong.CopyFrom(model)
        for weight in wrong.graph.initializer:
            values = numpy_helper.to_array(weight)
            if values.dtype == np.float32:
                weight.CopyFrom(numpy_helper.from_array(values * np.float32(scale), weight.name))
        return replace(read_model(wrong, *arguments), model=model)

    monkeypatch.setattr("amos.network.external.partition.read_model", read)


@needs_compiler
def test_a_wrong_region_stays_with_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    _misread(monkeypatch, 3)
    model = partly()
    compiled = amos.compile(amos.load_network(model), progress=False)
    assert isinstance(compiled, CompiledNetwork)
    assert not compiled.regions and len(compiled.failures) == len(compiled.timings) == 2
    assert all("differs from onnxruntime by" in each for each in compiled.failures)
    assert "Region0: differs from onnxruntime" in str(compiled.timings[0])
    x = _values(4, 16)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(compiled(x), expected, rtol=1e-3)


@needs_compiler
def test_a_region_that_cannot_be_compiled_stays_with_onnxruntime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(models: Any, folder: Any) -> Any:
        if any(model.function == "Region0" for model in models):
            raise NetworkError("region: TVM cannot compile it")
        return usual(models, folder)

    usual = write_library
    monkeypatch.setattr("amos.network.external.linking.write_library", write)
    monkeypatch.setattr(Timing, "wins", True)
    compiled = amos.compile(amos.load_network(partly()), progress=False)
    assert isinstance(compiled, CompiledNetwork)
    assert [*compiled.regions] == ["Region1"]
    assert compiled.failures == ("Region0: region: TVM cannot compile it",)
    assert compiled(_values(4, 16)).shape == (4, 8)


@needs_compiler
def test_weights_in_blocks_are_not_rounded_any_further() -> None:
    """onnxruntime would round the other operand to 8 bits."""
    rng = np.random.default_rng(0)
    b = Builder()
    levels = b.constant(rng.integers(-128, 128, (64, 24)), "int8")
    scales = b.constant(rng.uniform(0.01, 0.1, (4, 24)))
    weights = b.node("DequantizeLinear", levels, scales, axis=0, block_size=16)
    y = b.node("MatMul", b.input("x", (1, 64)), weights)
    graph = helper.make_graph(
        b.nodes, "g", b.inputs, [helper.make_tensor_value_info(y, TensorProto.FLOAT, (1, 24))],
        b.weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    network = amos.load_network(model)
    assert isinstance(network, PartitionedNetwork)
    x = _values(1, 64)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    result = amos.compile(network, progress=False)(x)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_shapes_that_contradict_a_branch_nobody_takes_are_not_stated() -> None:
    """One branch is for signals, the other for rows of them; the model takes both."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    weights = [
        numpy_helper.from_array(np.ones((1, 16, 4), np.float32), "w"),
        numpy_helper.from_array(np.ones((1, 16, 4), np.float32), "r"),
        numpy_helper.from_array(np.ones((4, 4), np.float32), "m"),
        numpy_helper.from_array(np.array([0, 2], np.int64), "axes"),
        numpy_helper.from_array(np.array(3, np.int64), "three"),
    ]
    branches = {}
    for name, first in (("then", "Identity"), ("else", "Squeeze")):
        inputs = ["x", "axes"] if first == "Squeeze" else ["x"]
        nodes = [
            helper.make_node(first, inputs, [f"{name}_x"]),
            helper.make_node("LSTM", [f"{name}_x", "w", "r"], [f"{name}_y"], hidden_size=4),
        ]
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
        branches[f"{name}_branch"] = helper.make_graph(nodes, name, [], [out])
    nodes = [
        helper.make_node("Size", ["x"], ["size"]),
        helper.make_node("Greater", ["size", "three"], ["many"]),
        helper.make_node("MatMul", ["x", "m"], ["product"]),
        helper.make_node("If", ["many"], ["y"], **branches),
    ]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "product")]
    graph = helper.make_graph(nodes, "g", [x], results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    network = amos.load_network(model, shapes={"x": (5, 1, 4)})
    assert isinstance(network, PartitionedNetwork)
    assert network.inputs[0].shape == (5, 1, 4)
    values = _values(5, 1, 4)
    for result, right in zip(
        amos.compile(network, progress=False)(values),
        ReferenceEvaluator(model).run(None, {"x": values}),
        strict=True,
    ):
        np.testing.assert_allclose(result, right, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_operators_decide_where_a_result_is_stated_with_another_shape() -> None:
    """Exporters leave the shapes of an older version behind; onnxruntime warns and runs."""
    b = Builder()
    product = b.node("MatMul", b.input("x", (3, 8)), b.constant(_values(8, 4)))
    y = b.node("Unsqueeze", product, b.constant(np.array([1]), "int64"))
    stated = helper.make_tensor_value_info(y, TensorProto.FLOAT, (1, "length"))
    graph = helper.make_graph(b.nodes, "g", b.inputs, [stated], b.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = _values(3, 8)
    result = amos.compile(amos.load_network(model), progress=False)(x)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert result.shape == (3, 1, 4)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_what_divides_integers_outside_of_regions_draws_no_zeros() -> None:
    """Division of integers by 0 ends the process, whoever computes it."""
    b = Builder()
    product = b.node("MatMul", b.input("x", (3, 8)), b.constant(_values(8, 4)))
    quotient = b.node("Div", b.constant([6, 7], "int64"), b.input("n", (2,), TensorProto.INT64))
    infos = [
        helper.make_tensor_value_info(product, TensorProto.FLOAT, (3, 4)),
        helper.make_tensor_value_info(quotient, TensorProto.INT64, (2,)),
        helper.make_tensor_value_info("places", TensorProto.INT64, None),
    ]
    nodes = [*b.nodes, helper.make_node("NonZero", [product], ["places"])]
    graph = helper.make_graph(nodes, "g", b.inputs, infos, b.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    network = amos.load_network(model)
    assert ("Div", "no product is near it") in network.external
    assert network.divides_integers
    assert all(array.all() for array in random_arrays(network)[1:])


@needs_compiler
def test_only_what_is_unstable_may_differ() -> None:
    b = Builder()
    x = b.input("x", (4, 16))
    model = b.model(b.node("MatMul", x, b.random(16, 8)), b.node("MatMul", x, b.random(16, 4)))
    compiled = amos.compile(amos.load_network(model), progress=False)
    assert isinstance(compiled, CompiledNetwork)
    values = _values(4, 16)
    right = [np.asarray(each) for each in compiled(values)]

    def check(stable: float) -> Any:
        def evaluate(arrays: Any) -> Any:
            moves = 5.0 if np.array_equal(arrays[0], values) else 9.0
            return [right[0] + moves, right[1] + stable]

        rival = Reference("onnxruntime", evaluate)
        return replace(compiled, reference=rival).worst_check(values)

    assert not check(0.0).is_fault and not check(0.0).passed
    assert check(1.0).is_fault
