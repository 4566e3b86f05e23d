"""Levels that are computed from call to call: against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from amos.errors import NetworkError
from amos.network.dynamic import (
    emit_conv_integer,
    emit_dequantize,
    emit_dynamic_quantize,
    emit_matmul_integer,
    emit_quantize,
)
from amos.network.graph import Constant, Graph, GraphBuilder, Operand
from amos.network.passes.quantized import integer_arithmetic
from amos.network.sessions import plain_session
from tests.network.graphs import evaluate_graph
from tests.network.models import read_whole
from tests.network.quantized_models import SHAPE, Model

Emit = Callable[..., Operand | tuple[Operand, ...]]


def _graph(emit: Emit, *values: np.ndarray | Constant | None) -> Graph:
    """The graph of what a function emits of inputs, constants and nothing."""
    builder = GraphBuilder()
    operands: list[Operand | None] = []
    for position, value in enumerate(values):
        if isinstance(value, np.ndarray):
            name = f"input{position}"
            operands.append(builder.add_input(name, value.shape, str(value.dtype)))
        else:
            operands.append(value)
    results = emit(builder, *operands)
    results = results if isinstance(results, tuple) else (results,)
    return builder.finish(results)


def _ours(emit: Emit, *values: np.ndarray | Constant | None) -> list[np.ndarray]:
    inputs = [each for each in values if isinstance(each, np.ndarray)]
    return evaluate_graph(_graph(emit, *values), inputs)


def _theirs(
    operation: str, *values: np.ndarray | Constant | None, results: int = 1, **attributes: Any
) -> list[np.ndarray]:
    """Results of a single node in onnxruntime."""
    helper, arrays = onnx.helper, {}
    for position, value in enumerate(values):
        if value is not None:
            arrays[f"x{position}"] = value.array if isinstance(value, Constant) else value
    names = [f"x{n}" if value is not None else "" for n, value in enumerate(values)]
    outputs = [f"y{n}" for n in range(results)]
    node = helper.make_node(operation, names, outputs, **attributes)
    constants = [n for n, value in enumerate(values) if isinstance(value, Constant)]
    tensors = [onnx.numpy_helper.from_array(arrays.pop(f"x{n}"), f"x{n}") for n in constants]
    ports = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in arrays.items()
    ]
    graph = helper.make_graph(
        [node], "one", ports, [helper.make_empty_tensor_value_info(n) for n in outputs], tensors
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = plain_session(model, optimized=True)  # its sums do not saturate without VNNI
    got: list[np.ndarray] = session.run(None, arrays)
    return got


def _bytes(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize(
    "x",
    [
        np.random.default_rng(1).standard_normal((3, 40), np.float32) * 3,
        np.random.default_rng(2).uniform(2, 5, (2, 3, 4)).astype(np.float32),
        -np.random.default_rng(3).uniform(2, 5, (7, 3)).astype(np.float32),
        np.zeros((2, 3), np.float32),
        np.full((2, 3), 1e-30, np.float32),
    ],
)
def test_levels_are_those_of_the_range_with_0(x: np.ndarray) -> None:
    expected = _theirs("DynamicQuantizeLinear", x, results=3)
    for ours, theirs in zip(_ours(emit_dynamic_quantize, x), expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("a_zero", [None, 0, 77])
@pytest.mark.parametrize("zeros", ["none", "one", "columns"])
def test_a_product_less_zero_points(kind: str, a_zero: int | None, zeros: str) -> None:
    """Weights as constants with all zero points; the first one as a constant and computed."""
    rng = np.random.default_rng(0)
    a, b = _bytes(rng, "uint8", 2, 5, 24), Constant(_bytes(rng, kind, 24, 6))
    b_zero = {"none": None, "one": 9, "columns": _bytes(rng, kind, 6)}[zeros]
    last = None if b_zero is None else Constant(np.array(b_zero, kind))
    for first in (Constant, np.asarray):
        zero = None if a_zero is None else first(np.array(a_zero, np.uint8))
        operands = a, b, zero, last
        ours = _ours(emit_matmul_integer, *operands)
        np.testing.assert_array_equal(ours[0], _theirs("MatMulInteger", *operands)[0])
        ours = _ours(emit_matmul_integer, a, b.array, zero, last)
        np.testing.assert_array_equal(ours[0], _theirs("MatMulInteger", *operands)[0])


def test_a_product_with_constant_weights_is_one_of_bytes() -> None:
    rng = np.random.default_rng(0)
    a, b = _bytes(rng, "uint8", 5, 24), Constant(_bytes(rng, "int8", 24, 6))
    graph = _graph(emit_matmul_integer, a, b, np.array(3, np.uint8), None)
    operations = sorted(node.operation for node in graph.computing())
    assert operations == ["Cast", "MatMul", "Mul", "Sub"]
    (product,) = (node for node in graph.nodes if node.operation == "MatMul")
    assert [each.dtype for each in product.operands] == ["uint8", "int8"]


def _window(rank: int, pads: Sequence[int], group: int = 1) -> dict[str, Any]:
    ones = (1,) * rank
    return {"strides": (2,) * rank, "dilations": ones, "pads": tuple(pads), "group": group}


@pytest.mark.parametrize("w_zero", [None, 131, "features"])
@pytest.mark.parametrize("x_zero", [None, 0, 77])
@pytest.mark.parametrize(("group", "pads"), [(1, (1, 0, 2, 1)), (2, (1, 1, 1, 1)), (1, (0,) * 4)])
def test_a_convolution_less_zero_points(
    x_zero: int | None, w_zero: int | str | None, group: int, pads: Sequence[int]
) -> None:
    """Padding is the zero point, also where that is computed."""
    rng = np.random.default_rng(0)
    x, w = _bytes(rng, "uint8", 2, 4, 7, 6), Constant(_bytes(rng, "uint8", 6, 4 // group, 3, 2))
    zeros = _bytes(rng, "uint8", 6) if w_zero == "features" else np.array(w_zero or 0, np.uint8)
    window = _window(2, pads, group)
    wide = x.astype(np.int64) - (x_zero or 0)
    sides = (0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(wide, sides), (3, 2), axis=(2, 3))
    weight = w.array.astype(np.int64) - zeros.reshape(-1, 1, 1, 1).astype(np.int64)
    parts = zip(np.split(windows, group, 1), np.split(weight, group), strict=True)
    sums = [np.einsum("nchwrs,fcrs->nfhw", *pair) for pair in parts]
    expected = np.concatenate(sums, 1)[:, :, ::2, ::2]
    last = None if w_zero is None else Constant(zeros)
    emit = partial(_emit_convolution, {**window, "channels_last": False})
    for first in (Constant, np.asarray):
        zero = None if x_zero is None else first(np.array(x_zero, np.uint8))
        np.testing.assert_array_equal(_ours(emit, x, w, zero, last)[0], expected)
    if w_zero != "features":  # onnxruntime has one for all
        np.testing.assert_array_equal(
            _theirs("ConvInteger", x, w, zero, last, **window)[0], expected
        )


def _emit_convolution(
    window: dict[str, Any], builder: GraphBuilder, x: Any, w: Any, x_zero: Any, w_zero: Any
) -> Operand:
    return emit_conv_integer(builder, x, w, x_zero, w_zero, window)


def test_what_a_convolution_lacks_is_named() -> None:
    x, w = np.zeros((1, 2, 3, 3), np.uint8), np.zeros((2, 2, 1, 1), np.int8)
    emit = partial(_emit_convolution, {**_window(2, (0,) * 4), "channels_last": False})
    with pytest.raises(NetworkError, match="weights that the network computes"):
        _graph(emit, x, w, None, None)
    with pytest.raises(NetworkError, match=r"ConvInteger: zero points of shape \(2,\)"):
        _graph(emit, x, Constant(w), Constant(np.arange(2, dtype=np.uint8)), None)


@pytest.mark.parametrize("axis", [0, 1])
def test_levels_may_be_computed(axis: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 6), np.float32)
    for shape in ((), (x.shape[axis],)):
        scale = rng.uniform(0.01, 0.1, shape).astype(np.float32)
        zero = rng.integers(-20, 20, shape, np.int8)
        (ours,) = _ours(partial(_emit_with_axis, emit_quantize, axis), x, scale, zero)
        (theirs,) = _theirs("QuantizeLinear", x, scale, zero, axis=axis)
        np.testing.assert_array_equal(ours, theirs)
        (ours,) = _ours(partial(_emit_with_axis, emit_dequantize, axis), theirs, scale, zero)
        (floats,) = _theirs("DequantizeLinear", theirs, scale, zero, axis=axis)
        np.testing.assert_array_equal(ours, floats)


def _emit_with_axis(emit: Any, axis: int, builder: GraphBuilder, *operands: Any) -> Operand:
    result: Operand = emit(builder, *operands, axis)
    return result


@pytest.mark.parametrize("weights", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_model_that_onnxruntime_quantized(
    tmp_path: Path, weights: str, per_channel: bool
) -> None:
    """Nothing is rounded otherwise: not a bit differs."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    g = Model(seed=3)
    weight = g.constant(g.rng.standard_normal((5, 4, 3, 3)).astype(np.float32))
    bias = g.constant(g.rng.standard_normal(5).astype(np.float32))
    y = g.add("Flatten", g.add("Relu", g.add("Conv", "x", weight, bias, pads=[1, 1, 1, 1])))
    weight = g.constant(g.rng.standard_normal((5 * 36, 6)).astype(np.float32))
    paths = tmp_path / "floats.onnx", tmp_path / "bytes.onnx"
    onnx.save(g.model(g.add("MatMul", y, weight)), paths[0])
    quantize_dynamic(*paths, weight_type=QuantType[weights], per_channel=per_channel)
    graph = integer_arithmetic(read_whole(onnx.load(paths[1]), {"x": SHAPE}))
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    (expected,) = plain_session(paths[1], optimized=True).run(None, {"x": x})
    np.testing.assert_array_equal(evaluate_graph(graph, [x])[0], expected)


def test_pairs_with_levels_that_are_computed() -> None:
    rng = np.random.default_rng(0)
    x, scale = rng.standard_normal((3, 5), np.float32), rng.uniform(0.01, 0.1, 5)
    builder = GraphBuilder()
    ports = builder.add_input("x", (3, 5), "float32"), builder.add_input("s", (5,), "float32")
    zero = Constant(np.arange(5, dtype=np.uint8))
    y = builder.emit("QuantizeLinear", *ports, zero, axis=1)
    y = builder.emit("DequantizeLinear", y, ports[1], zero, axis=1)
    graph = builder.finish([y])
    inputs = x, scale.astype(np.float32)
    plain = integer_arithmetic(graph)
    assert not [node for node in plain.nodes if node.operation.endswith("Linear")]
    np.testing.assert_array_equal(evaluate_graph(plain, inputs), evaluate_graph(graph, inputs))
