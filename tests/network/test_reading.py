"""Models of several nodes whose reading is easily wrong: held against onnx's own evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import amos
from amos.errors import NetworkError
from amos.network.sessions import plain_session
from tests.network.graphs import evaluate_graph
from tests.network.models import Builder, load_whole


def _equal(model: Any, reference: Any = None, **inputs: np.ndarray) -> None:
    results = amos.compile(amos.load_network(model), progress=False)(**inputs)
    expected = ReferenceEvaluator(reference or model).run(None, inputs)
    for actual, desired in zip(results, expected, strict=True):
        np.testing.assert_allclose(actual, desired, atol=1e-5)
        assert actual.dtype == desired.dtype


def _random(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}


def test_a_size_of_a_shape_is_a_number() -> None:
    """Attention is divided by the root of one."""
    b = Builder()
    x = b.input("x", (2, 8, 16))
    size = b.node("Gather", b.node("Shape", x), b.constant(2, "int64"), axis=0)
    size = b.node("Cast", size, to=TensorProto.FLOAT)
    product = b.node("MatMul", x, b.random(16, 4))
    model = b.model(b.node("Div", product, b.node("Sqrt", size)), b.node("Mul", product, size))
    _equal(model, **_random(x=(2, 8, 16)))


def test_windows_that_are_padded_by_themselves() -> None:
    def model(same: dict[str, Any], *padding: dict[str, Any]) -> Any:
        b = Builder()
        x, weight = b.input("x", (1, 4, 7, 8)), b.random(4, 3, 3, 3)
        pools = [
            b.node(kind, x, kernel_shape=[3, 3], strides=[2, 3], **same)
            for kind in ("MaxPool", "AveragePool")
        ]
        strides = [2, 2], [3, 2]
        pairs = zip(strides, padding, strict=True)
        return b.model(
            *pools, *(b.node("ConvTranspose", x, weight, strides=s, **p) for s, p in pairs)
        )

    shapes = dict(output_shape=[14, 16]), dict(output_shape=[22, 15])
    stated = model(dict(auto_pad="SAME_LOWER"), *shapes)
    # Onnx's own evaluation knows no output shape, and rounds the sizes of such pools down.
    pads = dict(pads=[1, 1, 0, 0]), dict(pads=[0, 1, 0, 1], output_padding=[1, 0])
    written = model(dict(pads=[1, 1, 1, 0]), *pads)
    _equal(stated, written, **_random(x=(1, 4, 7, 8)))


def test_means_and_products_of_fewer_axes() -> None:
    b = Builder()
    x = b.node("Conv", b.input("x", (1, 4, 5, 6)), b.random(4, 4, 3, 3))
    y = b.node("MatMul", b.input("y", (4, 5)), b.random(1, 5, 6))
    means = b.node("Mean", x, b.random(4, 1, 1), b.random(1))
    model = b.model(means, b.node("Relu", b.node("Add", y, b.random(6))))
    _equal(model, **_random(x=(1, 4, 5, 6), y=(4, 5)))


def test_what_has_no_other_layout_keeps_its_own() -> None:
    """Behind a convolution, whose channels are last."""
    b = Builder()
    x = b.convolution(b.input("x", (1, 4, 5, 6)), (4, 4, 3, 3))
    norm = b.node("LayerNormalization", x, b.random(4, 5, 6), b.random(4, 5, 6), axis=1)
    y = b.node("ConvTranspose", x, b.random(4, 2, 3, 3), strides=[2, 1])
    _equal(b.model(norm, b.node("Relu", y)), **_random(x=(1, 4, 5, 6)))


def test_pieces_of_inputs_and_results() -> None:
    b = Builder()
    x = b.input("x", (3, 8, 4))
    product = b.node("MatMul", x, b.random(4, 8))
    ranges = [(0, 3), (2, 5), (5, 8)]
    pieces = [
        b.node("Slice", each, *(b.constant([n], "int64") for n in (*begin_and_end, 1)))
        for each in (x, product)
        for begin_and_end in ranges
    ]
    joined = b.node("Concat", x, b.node("Softmax", x, axis=1), x, axis=0)
    _equal(b.model(product, *pieces, joined), **_random(x=(3, 8, 4)))


def test_constants_and_sizes_in_other_forms() -> None:
    b = Builder()
    x = b.input("x", (1, 2, 4, 5))
    doubled = b.node("Resize", x, "", b.constant([1, 1, 2, 1.2]), mode="linear")
    highest = b.node("ArgMax", x, axis=1, keepdims=0)
    places = b.node("OneHot", highest, b.constant(2, "int64"), b.constant([0, 3]))
    model = b.model(doubled, places, b.node("Add", x, b.node("Constant", value_float=0.5)))
    _equal(model, **_random(x=(1, 2, 4, 5)))


def _model(result: str, builder: Builder, opset: int) -> Any:
    values = [helper.make_empty_tensor_value_info(result)]
    graph = helper.make_graph(builder.nodes, "g", builder.inputs, values, builder.weights)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("sign", ["detect_positive", "detect_negative"])
def test_infinities_have_a_sign(sign: str) -> None:
    b = Builder()
    model = _model(b.node("IsInf", b.input("x", (4,)), **{sign: 0}), b, 20)
    x = np.array([np.inf, -np.inf, np.nan, 1], np.float32)
    expected = x == (np.inf if sign == "detect_negative" else -np.inf)
    np.testing.assert_array_equal(
        amos.compile(amos.load_network(model), progress=False)(x), expected
    )


@pytest.mark.parametrize(("opset", "axes"), [(13, [1]), (13, None), (18, [-1]), (18, None)])
def test_means_of_integers_are_integers(opset: int, axes: list[int] | None) -> None:
    b = Builder()
    x = b.input("x", (3, 4), TensorProto.INT32)
    stated = [b.constant(axes, "int64")] if axes and opset == 18 else []
    more = {"axes": axes} if axes and opset == 13 else {}
    model = _model(b.node("ReduceMean", x, *stated, **more), b, opset)
    integers = np.arange(-7, 5, dtype=np.int32).reshape(3, 4)
    compiled = amos.compile(amos.load_network(model), progress=False)
    expected = np.trunc(integers.mean(1 if axes else None, keepdims=True)).astype(np.int32)
    np.testing.assert_array_equal(compiled(integers), expected)
    assert compiled(integers).dtype == expected.dtype


def test_exponents_of_another_dtype() -> None:
    b = Builder()
    x = b.input("x", (2, 4))
    cubes, powers = b.constant(3, "int64"), b.input("n", (4,), TensorProto.INT32)
    model = b.model(b.node("Pow", x, cubes), b.node("Pow", x, powers))
    _equal(model, **_random(x=(2, 4)), n=np.arange(4, dtype=np.int32))
    b = Builder()
    squares = b.node("Pow", b.input("x", (4,), TensorProto.INT32), b.constant(2, "int32"))
    with pytest.raises(
        NetworkError, match="Pow: powers of int32 are not supported; cast it to floats"
    ):
        load_whole(_model(squares, b, 17))


@pytest.mark.parametrize("opset", [7, 9])
def test_images_are_repeated_as_before_resizing(opset: int) -> None:
    b, scales = Builder(), [1.0, 1.0, 2.0, 3.0]
    x = b.input("x", (1, 2, 4, 5))
    stated = [b.constant(scales)] if opset == 9 else []
    more = {} if stated else {"scales": scales}
    model = _model(b.node("Upsample", x, *stated, mode="nearest", **more), b, opset)
    inputs = _random(x=(1, 2, 4, 5))
    result = amos.compile(amos.load_network(model), progress=False)(**inputs)
    np.testing.assert_array_equal(result, inputs["x"].repeat(2, 2).repeat(3, 3))


def test_what_is_not_read_is_refused() -> None:
    def refused(message: str, kind: str, *further: str, **attributes: Any) -> None:
        b = Builder()
        b.node(kind, b.input("x", (1, 2, 4, 5)), *further, **attributes)
        domain = attributes.get("domain")
        values = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        b.nodes[-1].output[:] = ["y"] if domain else ["first", "y"]
        graph = helper.make_graph(b.nodes, "g", b.inputs, values, b.weights)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
        with pytest.raises(NetworkError, match=message):
            load_whole(helper.make_model(graph, opset_imports=opsets, ir_version=8))

    refused("Relu of domain 'own' is not supported", "Relu", domain="own")
    refused("Attention: softcap is not supported", "Attention", "x", "x", softcap=1.0)
    refused("LayerNormalization: output 1 is not supported", "LayerNormalization", "x")
    b = Builder()
    scales = b.constant([1, 1, 2, 2])
    y = b.node("Resize", b.input("x", (1, 2, 4, 5)), "", scales, mode="linear", antialias=1)
    graph = helper.make_graph(
        b.nodes, "g", b.inputs, [helper.make_empty_tensor_value_info(y)], b.weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(NetworkError, match="antialias 1 is not supported"):
        load_whole(model)


def test_a_node_with_more_results_than_it_computes_is_refused() -> None:
    b = Builder()
    names = [f"y{n}" for n in range(7)]
    x = b.input("x", (6, 4))
    b.node("Split", x, b.constant(np.ones(6, np.int64), "int64"))
    b.nodes[-1].output[:] = names
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    graph = helper.make_graph(b.nodes, "g", b.inputs, results, b.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(NetworkError, match="Split: output 6 is not supported"):
        load_whole(model)


def test_levels_and_dtypes_that_are_not_taken() -> None:
    for shape, more in (((4, 1), {}), ((3,), {"axis": 0})):
        b = Builder()
        x = b.input("x", (4, 16), TensorProto.INT8)
        y = b.node("DequantizeLinear", x, b.constant(np.ones(shape)), **more)
        graph = helper.make_graph(
            b.nodes, "g", b.inputs, [helper.make_empty_tensor_value_info(y)], b.weights
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        with pytest.raises(NetworkError, match=rf"scales of shape \({shape[0]}, ?.*: expected one"):
            load_whole(model)
    b = Builder()
    y = b.node("Cast", b.input("x", (4, 16), TensorProto.UINT64), to=TensorProto.FLOAT)
    with pytest.raises(NetworkError, match="input 'x': dtype uint64 is not supported"):
        load_whole(b.model(y))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij->ji", [(3, 4)]),
        ("bij->b", [(2, 3, 4)]),
        ("bij, bjk", [(2, 3, 4), (2, 4, 5)]),
        ("...ij,jk->...ik", [(2, 6, 3, 4), (4, 5)]),
        ("b...d,b...d->b...", [(2, 3, 4, 5), (2, 3, 4, 5)]),
        ("bij,bjk,il->blk", [(2, 3, 4), (2, 4, 5), (3, 6)]),
        ("a,b,c->cba", [(2,), (3,), (4,)]),
        ("abc,cd->a", [(2, 3, 4), (4, 5)]),
    ],
)
def test_einstein_sums(equation: str, shapes: list[tuple[int, ...]]) -> None:
    b = Builder()
    arrays = _random(**{f"x{n}": shape for n, shape in enumerate(shapes)})
    names = [b.input(name, array.shape) for name, array in arrays.items()]
    graph = load_whole(b.model(b.node("Einsum", *names, equation=equation))).graph
    (result,) = evaluate_graph(graph, [*arrays.values()])
    expected = np.einsum(equation, *arrays.values())
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    assert result.shape == expected.shape


def test_rows_at_constant_places_and_empty_parts() -> None:
    """As masks of transformers and caches without a past have them."""
    b = Builder()
    x = b.input("x", (2, 3, 4))
    row = b.node("GatherND", x, b.constant([[1, -1], [0, 2]], "int64"))
    element = b.node("GatherND", x, b.constant([[[1, -1]], [[0, 2]]], "int64"), batch_dims=1)
    nothing = b.node("Slice", x, *(b.constant([each], "int64") for each in (3, 3, 1)))
    none = b.node("ConstantOfShape", b.constant([2, 0, 4], "int64"))
    model = b.model(row, element, b.node("Concat", none, x, nothing, axis=1))
    arrays = _random(x=(2, 3, 4))
    results = evaluate_graph(load_whole(model).graph, [*arrays.values()])
    expected = ReferenceEvaluator(model).run(None, arrays)
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, right)


def test_scalers_and_linear_models_of_tables() -> None:
    b = Builder()
    x = b.input("x", (5, 3))
    own = {"domain": "ai.onnx.ml"}
    filled = b.node("Imputer", x, imputed_value_floats=[0.5], replaced_value_float=np.nan, **own)
    scaled = b.node("Scaler", filled, offset=[1.0, 2.0, 3.0], scale=[0.5, 2.0, 4.0], **own)
    unit = b.node("Normalizer", scaled, norm="L2", **own)
    weights = {"coefficients": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "intercepts": [0.5, -1.0]}
    y = b.node("LinearRegressor", unit, targets=2, **weights, **own)
    values = [helper.make_empty_tensor_value_info(name) for name in (scaled, unit, y)]
    graph = helper.make_graph(b.nodes, "g", b.inputs, values, b.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (array,) = _random(x=(5, 3)).values()
    array[1, 2] = np.nan
    results = evaluate_graph(load_whole(model).graph, [array])
    for result, expected in zip(results, plain_session(model).run(None, {"x": array}), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_onnxruntime_says_what_shape_results_of_its_operators_have() -> None:
    """Here of an LSTM as ``quantize_dynamic`` writes it; the product behind it is read."""
    b = Builder()
    x = b.input("x", (7, 2, 4))
    weights = [b.constant(np.ones((1, size, 12)), "int8") for size in (4, 3)]
    levels = [b.constant([0.1]), b.constant([0], "int8")] * 2
    left_out = [""] * 5
    states = b.node(
        "DynamicQuantizeLSTM",
        *(x, *weights, *left_out, *levels),
        hidden_size=3,
        domain="com.microsoft",
    )
    y = b.node("MatMul", b.node("Squeeze", states, b.constant([1], "int64")), b.random(3, 8))
    values = [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)]
    graph = helper.make_graph(b.nodes, "g", b.inputs, values, b.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    network = amos.load_network(model)
    assert [kind for kind, _ in network.external] == ["DynamicQuantizeLSTM"]
    assert [port.shape for port in network.networks["Region0"].outputs] == [(7, 2, 8)]
