"""Quantized models as integer arithmetic: against the same model in floats, and in integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest

import amos
from amos.explore.choosing import Chooser, with_useful_ranges
from amos.explore.contenders import contenders
from amos.ir import Operator
from amos.network.graph import Graph
from amos.network.passes.levels import inverse_of
from amos.network.passes.quantized import integer_arithmetic
from amos.validate.epilogue import fma
from tests.network.graphs import evaluate_graph
from tests.network.models import Builder, compile_whole, load_whole, read_whole
from tests.network.quantized_models import (
    CASES,
    IN,
    OUT,
    SHAPE,
    Model,
    convolution,
    moves,
    no_result,
    steps,
)


def _read(model: Any) -> Graph:
    return read_whole(model, {"x": SHAPE})


def _run(graph: Graph, x: np.ndarray) -> list[np.ndarray]:
    return evaluate_graph(graph, [x])


def _in_floats(model: Any, x: np.ndarray) -> list[np.ndarray]:
    result: list[np.ndarray] = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    return result


def _input(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE, dtype=np.float32) * 2


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_it_is_the_model_within_a_quantum(kind: str) -> None:
    """All cases as one model with a result for each, which is compiled once."""
    g = Model(seed=3, kind=kind)
    model = g.model(*(define(g) for define in CASES))
    integers = integer_arithmetic(_read(model))
    operations = {node.operation for node in integers.nodes}
    assert not operations & {"QuantizeLinear", "DequantizeLinear"}
    x = _input(1)
    for define, ours, floats in zip(CASES, _run(integers, x), _in_floats(model, x), strict=True):
        difference = np.abs(ours - floats)
        quantum = 1e-4 if define is no_result else IN if define is moves else OUT
        assert difference.max() <= quantum * 1.001, define.__name__
        assert (difference > 1e-5).mean() < 0.01, define.__name__
        assert floats.std() > 3 * quantum, define.__name__


def _products(graph: Graph) -> set[str]:
    names = ("Conv", "ConvTranspose", "MatMul")
    return {n.dtype for n in graph.nodes if n.operation in names}


@pytest.mark.parametrize("define", CASES[:-4])
def test_products_are_summed_as_integers(define: Callable[[Model], str]) -> None:
    g = Model(seed=3)
    graph = integer_arithmetic(_read(g.model(define(g))))
    assert _products(graph) == {"int32"}


def test_what_moves_elements_moves_bytes() -> None:
    g = Model(seed=3)
    graph = integer_arithmetic(_read(g.model(moves(g))))
    moved = {n.operation: n.dtype for n in graph.nodes if n.operation not in ("input", "Relu")}
    assert {moved[name] for name in ("MaxPool", "Concat", "Reshape")} == {"uint8"}


def test_what_is_joined_is_quantized_before() -> None:
    """Each part where it is made; one part has the levels of the result already."""
    g = Model(seed=5)
    product = g.pair(no_result(g), 0.0531, 100)
    parts = product, g.pair("x", OUT, 9), g.add("Sigmoid", "x")
    model = g.model(g.pair(g.add("Concat", *parts, axis=1), OUT, 9))
    integers = integer_arithmetic(_read(model))
    (joined,) = (node for node in integers.nodes if node.operation == "Concat")
    assert joined.dtype == "uint8"
    x = _input(3)
    (ours,), (floats,) = _run(integers, x), _in_floats(model, x)
    assert np.abs(ours - floats).max() <= OUT * 1.001
    assert (np.abs(ours - floats) > 1e-5).mean() < 0.01


def test_a_tensor_may_be_added_to_itself() -> None:
    g = Model(seed=5)
    y = g.pair(no_result(g), 0.0531, 100)
    total = g.pair(g.add("Add", y, y), OUT, 90)
    model, x = g.model(g.pair(g.add("Sigmoid", total), 1 / 255, 0)), _input(3)
    (ours,), (floats,) = _run(integer_arithmetic(_read(model)), x), _in_floats(model, x)
    assert np.abs(ours - floats).max() <= 1.001 / 255
    assert (np.abs(ours - floats) > 1e-5).mean() < 0.01


def test_a_function_of_one_tensor_is_looked_up() -> None:
    """All steps at once: not a level differs from the model's."""
    for kind in ("uint8", "int8"):
        g = Model(seed=3, kind=kind)
        model = g.model(steps(g))
        integers = integer_arithmetic(_read(model))
        operations = [node.operation for node in integers.nodes]
        assert operations.count("Gather") == 1
        assert "Erf" not in operations
        x = np.random.default_rng(4).uniform(-4, 4, SHAPE).astype(np.float32)
        assert np.array_equal(_run(integers, x)[0], _in_floats(model, x)[0])


def test_comparisons_are_looked_up_with_what_they_choose() -> None:
    g = Model(seed=3)
    y = g.pair(g.add("Elu", g.pair("x", IN, 100), alpha=0.7), OUT, 30)
    integers = integer_arithmetic(_read(g.model(y)))
    (gather,) = (node for node in integers.nodes if node.operation == "Gather")
    assert gather.operands[0].shape == (256,)
    assert "Where" not in {node.operation for node in integers.nodes}
    x = _input(4)
    assert np.array_equal(_run(integers, x)[0], _in_floats(g.model(y), x)[0])


def test_a_product_may_be_clipped() -> None:
    g = Model(seed=3)
    bounds = g.constant(np.float32(0)), g.constant(np.float32(6))
    model, x = g.model(g.pair(g.add("Clip", no_result(g), *bounds), OUT, 0)), _input(1)
    integers = integer_arithmetic(_read(model))
    assert _products(integers) == {"int32"}
    (ours,), (floats,) = _run(integers, x), _in_floats(model, x)
    assert np.abs(ours - floats).max() <= OUT * 1.001
    assert (np.abs(ours - floats) > 1e-5).mean() < 0.01


def test_a_convolution_is_exact() -> None:
    """As onnxruntime computes it: one product in float32, rounded once, ties to even."""
    g = Model(seed=5)
    model = g.model(convolution(g, zero=7))
    constants = [onnx.numpy_helper.to_array(each) for each in g.weights]
    weight = next(c for c in constants if c.shape == (5, 4, 3, 3)).astype(np.int64)
    scale = next(c for c in constants if c.dtype == np.float32 and c.shape == (5,))
    bias = next(c for c in constants if c.dtype == np.int32)
    x = _input(2)
    image = np.clip(np.rint(x / np.float32(IN)) + 7, 0, 255).astype(np.int64) - 7
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    sums = np.einsum("ncpqrs,kcrs->nkpq", windows, weight) + bias[:, None, None]
    factor = (np.float32(IN) * scale / np.float32(OUT)).astype(np.float32)[:, None, None]
    levels = np.clip(np.rint(sums.astype(np.float32) * factor) + 9, 0, 255)
    expected = (levels.astype(np.int32) - 9).astype(np.float32) * np.float32(OUT)
    assert np.array_equal(_run(integer_arithmetic(_read(model)), x)[0], expected)


def test_arithmetic_of_bytes_wraps_around() -> None:
    """In a kernel's epilogue it would not, so it stays behind the kernel."""
    g = Model(seed=3)
    convolution(g)
    y = g.nodes[-1].input[0]
    total = g.add("Mul", g.add("Add", y, g.constant(np.uint8(200))), y)
    scale, zero = g.constant(np.float32(OUT)), g.constant(np.uint8(90))
    network = load_whole(g.model(g.add("DequantizeLinear", total, scale, zero)))
    assert [group.result.operation for group in network.grouping.groups] == ["Cast"]
    assert {"Add", "Mul"} <= {n.operation for n in network.grouping.ungrouped if n.dtype == "uint8"}


@pytest.mark.long
def test_groups_store_bytes_and_a_network_of_them_is_exact() -> None:
    g = Model(seed=3)
    x, scale = convolution(g, zero=0), np.float32(OUT)
    weight, scales = g.weight(5, 5, 3, 3)
    y = g.add("Conv", x, weight, g.bias(scale * scales), pads=[1, 1, 1, 1])
    y = g.pair(y, 0.0531, 0)
    weight, scales = g.weight(5, 5, 1, 1)
    y = g.pair(g.add("Conv", y, weight, g.bias(np.float32(0.0531) * scales)), 0.0531, 100)
    y = g.pair(g.add("Relu", g.add("Add", y, x)), OUT, 3)
    model = g.model(y)
    network = load_whole(model)
    _, first, second = (group.operator for group in network.grouping.groups)
    # Divisions by a scale are multiplications whose rounded results are the same.
    divided = "times(f32(acc + bias[k]) * scale[k], inverse2[0], inverse3[0])"
    assert str(first.epilogue) == f"u8({divided})"
    # What is quantized only to be added stays a float.
    quantized = f"min(max(round({divided}), low[0]), high[0])"
    total = f"{quantized} * scale2[0] + f32(residual[n, p, q, k] - bias2[0]) * scale3[0]"
    total = f"times({total}, inverse5[0], inverse6[0])"
    assert str(second.epilogue) == f"u8(max(round({total}) + bias3[0], low2[0]))"
    array = _input(6)
    (expected,) = _run(integer_arithmetic(_read(model)), array)
    assert np.array_equal(compile_whole(network, verify=False)(array), expected)


def test_weights_declare_the_range_that_an_instruction_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where one takes part that needs it; elsewhere the task is that of whole bytes."""
    operators = []
    for largest in (64, 65):
        g = Model(seed=3)
        g.pair("x", IN, 0)
        weight = np.clip(g.rng.integers(-127, 128, (16, 4, 3, 3)), -64, largest).astype(np.int8)
        scales = np.full(16, 0.01, np.float32)
        names = g.constant(weight), g.constant(scales), g.constant(np.zeros(16, np.int8))
        y = g.add("Conv", "dequantizelinear1", g.add("DequantizeLinear", *names, axis=0))
        (task,) = load_whole(g.model(g.pair(y, OUT, 3))).tasks
        operators.append(task.operator)
    narrow, whole = operators
    assert [each.sources[1].tensor.bounds for each in operators] == [(-64, 64), None]
    assert narrow.undeclared == whole
    get = amos.intrinsics.get
    words, bytes_, vnni = map(
        get,
        (
            *("avx2_pmaddwd_m8k2_u8_s8_s32", "avx2_pmaddubsw_m8k4_u8_s7_s32"),
            "vnni_dpbusd_m8k4_u8_s8_s32",
        ),
    )
    for units, useful in (
        ([words], whole),
        ([words, bytes_], narrow),
        ([words, bytes_, vnni], whole),
    ):
        among = partial(contenders, units=units, rule="access")
        assert with_useful_ranges(narrow, among) == useful
    requests: Counter[Operator] = Counter()
    monkeypatch.setattr(
        "amos.explore.choosing.contenders",
        lambda operator, *arguments: (
            requests.update([operator]) or contenders(operator, *arguments)
        ),
    )
    chooser = Chooser("host")
    for _ in range(2):
        chooser.choose(narrow)
    assert requests[narrow] == 1 == max(requests.values())


@pytest.mark.parametrize(("zero", "kind"), [(-128, "uint8"), (0, "int8")])
def test_padding_is_0_where_it_can_be(zero: int, kind: str) -> None:
    g = Model(seed=3, kind="int8")
    graph = integer_arithmetic(_read(g.model(convolution(g, zero=zero))))
    assert not [n for n in graph.nodes if n.operation == "Pad"]
    (node,) = (n for n in graph.nodes if n.operation == "Conv")
    assert node.operands[0].dtype == kind


def test_operators_over_integers_are_pairs() -> None:
    g = Model(seed=3)
    scale, zero = g.constant(np.float32(IN)), g.constant(np.uint8(7))
    out, middle = g.constant(np.float32(OUT)), g.constant(np.uint8(90))
    x = g.add("QuantizeLinear", "x", scale, zero)
    values = g.constant(g.rng.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8))
    scales = g.constant(g.rng.uniform(0.001, 0.004, 4).astype(np.float32))
    bias = g.constant(g.rng.integers(-3000, 3000, 4).astype(np.int32))
    weight = values, scales, g.constant(np.zeros(4, np.int8))
    y = g.add("QLinearConv", x, scale, zero, *weight, out, middle, bias, pads=[1] * 4)
    model = g.model(g.add("DequantizeLinear", y, out, middle))
    graph, array = _read(model), _input(4)
    operations = [node.operation for node in graph.computing()]
    assert operations.count("DequantizeLinear") == 4 and operations.count("QuantizeLinear") == 2
    (expected,) = _in_floats(model, array)
    (ours,) = _run(integer_arithmetic(graph), array)
    assert np.array_equal(ours, expected)


def test_a_product_of_bytes_is_scaled_with_its_bias() -> None:
    g = Model(seed=3)
    scale, zero = g.constant(np.float32(IN)), g.constant(np.uint8(7))
    x = g.add("Flatten", g.add("QuantizeLinear", "x", scale, zero))
    weight = g.rng.integers(-127, 128, (4 * 36, 6)).astype(np.int8)
    bias = g.rng.integers(-9000, 9000, 6).astype(np.int32)
    factor = g.constant(np.float32(0.002)), g.constant(np.int8(0))
    inputs = x, scale, zero, g.constant(weight), *factor, g.constant(bias)
    y = g.add("QGemm", *inputs, domain="com.microsoft", alpha=0.5)
    array = _input(5)
    (ours,) = _run(integer_arithmetic(_read(g.model(y))), array)
    levels = np.clip(np.rint(array / np.float32(IN)) + 7, 0, 255).reshape(2, -1) - 7
    expected = 0.5 * IN * 0.002 * (levels @ weight.astype(float) + bias)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


def _build(g: Builder) -> list[str]:
    """A weight of 1, its scale and its zero point."""
    return [g.constant(np.ones((1, 1, 1, 1)), "int8"), g.constant(0.5), g.constant(0, "int8")]


def test_ties_are_those_of_each_node() -> None:
    """Half of all results lie between two quanta; onnxruntime's folded scales move them."""
    g = Builder()
    a, b = (g.input(name, (1, 1, 64, 64), onnx.TensorProto.UINT8) for name in "ab")
    zero = g.constant(0, "uint8")
    x, y = (g.node("DequantizeLinear", each, g.constant(0.1), zero) for each in (a, b))
    weight = g.node("DequantizeLinear", *_build(g))
    results = []
    for value, scale in ((g.node("Add", x, y), 0.2), (g.node("Conv", x, weight), 0.1)):
        results.append(g.node("QuantizeLinear", value, g.constant(scale), zero))
    ports = [onnx.helper.make_tensor_value_info(x, 2, (1, 1, 64, 64)) for x in results]
    graph = onnx.helper.make_graph(g.nodes, "ties", g.inputs, ports, g.weights)
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    inputs = np.random.default_rng(0).integers(0, 256, (2, 1, 1, 64, 64)).astype(np.uint8)
    tenth, fifth, half = np.float32(0.1), np.float32(0.2), np.float32(0.5)
    first, second = inputs.astype(np.float32) * tenth
    expected = np.rint((first + second) / fifth), np.rint(first * half / tenth)
    got = amos.compile(amos.load_network(model), progress=False)(*inputs)
    for ours, right in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours, np.clip(right, 0, 255))


@pytest.mark.parametrize("scale", [0.1, 0.2, 0.0123, 1 / 3, 2.0**-7, 1e-3])
def test_a_division_by_a_scale_is_two_products(scale: float) -> None:
    value = np.float32(scale)
    inverse = inverse_of(np.asarray(value))
    assert inverse is not None
    high, low = inverse
    x = np.random.default_rng(0).integers(-1000, 1000, 1 << 14).astype(np.float32) * value / 2
    ours = fma(x, high, x * low)
    np.testing.assert_array_equal(np.rint(ours), np.rint(x / value))


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_what_a_float_convolution_reads_may_be_its_residual(kind: str) -> None:
    g = Model(seed=3, kind=kind)
    y = g.pair(no_result(g), 0.05, 0)
    channels = onnx.shape_inference.infer_shapes(g.model(y)).graph.output[0]
    count = channels.type.tensor_type.shape.dim[1].dim_value
    weight = g.constant(g.rng.standard_normal((count, count, 3, 3)).astype(np.float32) / 9)
    z = g.add("Add", y, g.add("Conv", y, weight, pads=[1] * 4))
    model, x = g.model(g.add("Relu", z)), _input(3)
    got = amos.compile(amos.load_network(model), progress=False, verify=False)(x)
    (floats,) = _in_floats(model, x)
    assert (np.abs(got - floats) > 1e-3).mean() < 0.01
