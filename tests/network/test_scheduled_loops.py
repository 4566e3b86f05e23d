"""What no kernel computes, under its simple schedule, against NumPy."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from amos.errors import NetworkError
from amos.network.graph import Constant, GraphBuilder, Node
from amos.network.loops import scheduling
from tests.network.lines import (
    compile_loops,
    graph_of,
    line_of,
    run_graph,
    text_of,
    unscheduled_line_of,
)
from tests.network.models import Builder, compile_whole, load_whole

#: Emits something of one input.
Make = Callable[[GraphBuilder, Node], Any]

_WINDOW = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "channels_last": True}
_POOL = _WINDOW | {"kernel_shape": (3, 3)}


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    result: np.ndarray = powers / powers.sum(-1, keepdims=True)
    return result


def _normalized(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return result


def _layer_norm(b: GraphBuilder, x: Node) -> Any:
    weights = (np.full(x.shape[-1:], value, np.float32) for value in (1, 0))
    return b.emit("LayerNormalization", x, *map(Constant, weights), epsilon=1e-5)


@pytest.mark.parametrize("width", [64, 50])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda b, x: b.emit("Softmax", x, axis=1), _softmax),
        (_layer_norm, _normalized),
        (lambda b, x: b.emit("Transpose", x, perm=(1, 0)), lambda x: x.T),
        (lambda b, x: b.emit("ReduceMax", x, axes=(0,), keepdims=False), lambda x: x.max(0)),
    ],
    ids=["softmax", "layer_norm", "transpose", "maximum"],
)
def test_rows_columns_and_what_is_elementwise(
    make: Make, expected: Callable[[np.ndarray], np.ndarray], width: int
) -> None:
    """Rows that vectors divide and rows that they do not; enough of them for every core."""
    values = np.random.default_rng(3).standard_normal((300, width)).astype(np.float32)
    result = _computed(make, values)
    np.testing.assert_allclose(result, expected(values.astype(float)), rtol=2e-5, atol=2e-6)


def _scheduled(make: Make, shape: tuple[int, ...], kind: str = "float32") -> str:
    """The loops of what is made of one tensor."""
    return text_of(graph_of(make, (shape, kind)))


def _computed(make: Make, values: np.ndarray) -> np.ndarray:
    """What is made of one tensor."""
    (result,) = run_graph(graph_of(make, (values.shape, str(values.dtype))), values)
    return result


def _padded_transpose(b: GraphBuilder, x: Node) -> Any:
    return _transposed_round(b, x, (0, 0, 3, 3), (0, 3, 1, 2))


def _transposed_round(
    b: GraphBuilder, x: Node, padding: tuple[int, ...], perm: tuple[int, ...]
) -> Any:
    attributes = {"before": padding, "after": padding, "mode": "constant", "value": 0.0}
    return b.emit("Transpose", b.emit("Pad", b.emit("Round", x), **attributes), perm=perm)


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: b.emit("Softmax", x, axis=3),
        lambda b, x: b.emit("ReduceMean", x, axes=(1, 2), keepdims=False),
        lambda b, x: b.emit("MaxPool", x, **(_POOL | {"strides": (2, 2)})),
        _padded_transpose,
    ],
    ids=["softmax", "mean", "max_pool", "padded_transpose"],
)
def test_what_is_large_is_computed_by_all_cores_in_vectors(make: Make) -> None:
    """A schedule that TVM refuses would leave plain loops, which are right and slow."""
    text = _scheduled(make, (1, 62, 64, 64))
    assert "T.parallel" in text
    assert "T.vectorized" in text


def _after(*functions: str) -> Make:
    """Functions one behind the other."""

    def make(b: GraphBuilder, x: Node) -> Any:
        y: Any = x
        for function in functions:
            y = b.emit(function, y)
        return y

    return make


_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Exp": np.exp,
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("functions", [["Exp"], ["Tanh"], ["Sigmoid"], [*_FUNCTIONS] * 3])
def test_functions_are_polynomials_in_vectors(functions: list[str]) -> None:
    """Of each other too, which as one expression would take minutes to compile."""
    text = _scheduled(_after(*functions), (1, 96))
    assert not re.findall(r"T\.(exp|tanh|sigmoid)\(", text)
    special = [np.nan, np.inf, -np.inf, 0.0, 100.0, -100.0]
    values = np.array([[*np.linspace(-20, 20, 90), *special]], np.float32)
    expected = values.astype(np.float64)
    with np.errstate(over="ignore"):
        for function in functions:
            expected = _FUNCTIONS[function](expected).astype(np.float32).astype(np.float64)
    result = _computed(_after(*functions), values)
    np.testing.assert_allclose(result, expected, rtol=2e-6, atol=1e-37)


def test_values_are_rounded_in_vectors() -> None:
    _, functions = line_of(graph_of(_after("Round"), ((1, 96), "float32")))
    code = compile_loops(functions).inspect_source("s")
    rounding = re.findall(r"\tv?(?:round|rndscale)([ps][sd])\b", code)
    assert set(rounding) == {"ps"}
    values = np.array([[*np.linspace(-4, 4, 33), *np.random.default_rng(0).normal(0, 99, 63)]], "f")
    np.testing.assert_array_equal(_computed(_after("Round"), values), np.rint(values))


def test_what_is_transposed_is_computed_before_in_vectors() -> None:
    """Elements that are moved one by one, padding between them, are not computed one by one."""
    channels_last = _scheduled(
        lambda b, x: _transposed_round(b, x, (0, 0, 3, 3), (0, 2, 3, 1)), (1, 3, 224, 224)
    )
    assert channels_last.count("T.parallel") == 2
    computed, moved = channels_last.split("T.parallel")[1:]
    assert "nearbyint" in computed
    assert "T.vectorized" in computed
    assert "if_then_else" in moved
    assert "nearbyint" not in moved


@pytest.mark.parametrize("fused", [False, True])
def test_products_are_rounded_before_they_are_added(fused: bool) -> None:
    """A quantized result, which may lie halfway between two quanta, depends on it."""
    values = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32) * 2**21
    factors = np.float32(1 / 3), np.float32(1 / 7)

    def quantized(b: GraphBuilder, x: Node) -> Any:
        products = [b.emit("Mul", x, Constant(np.asarray(each))) for each in factors]
        result = b.emit("Round", b.emit("Add", *products))
        return result if fused else [result, *products]  # what is returned is computed apart

    graph = graph_of(quantized, (values.shape, "float32"))
    result = run_graph(graph, values)[0]
    np.testing.assert_array_equal(result, np.rint(values * factors[0] + values * factors[1]))
    assert "T.vectorized" in text_of(graph)


@pytest.mark.parametrize(("axis", "width"), [(1, 17), (2, 17), (2, 24)])
def test_parts_of_a_concatenation_are_copied_one_after_another(axis: int, width: int) -> None:
    """Of different lengths, one of them joined before, and computed with on the way."""

    def joined(b: GraphBuilder, x: Node) -> Any:
        starts, sizes = [0, 0, 0], [*x.shape]
        starts[axis], sizes[axis] = 3, width
        attributes = {"starts": tuple(starts), "steps": (1, 1, 1), "sizes": tuple(sizes)}
        narrow = b.emit("Slice", x, **attributes)
        inner = b.emit("Concat", b.emit("Relu", x), narrow, axis=axis)
        return b.emit("Round", b.emit("Concat", narrow, inner, x, axis=axis))

    values = np.random.default_rng(0).standard_normal((4, 70, 96)).astype(np.float32)
    narrow = values[:, 3 : 3 + width] if axis == 1 else values[:, :, 3 : 3 + width]
    expected = np.concatenate([narrow, np.maximum(values, 0), narrow, values], axis)
    np.testing.assert_array_equal(_computed(joined, values), np.round(expected))
    if axis == 2:
        text = _scheduled(joined, values.shape)
        assert "T.parallel" in text
        assert text.count("_partition") == 4
        assert ("T.vectorized" in text) == (width == 24)


def test_what_follows_sums_is_computed_beside_them() -> None:
    def averages(b: GraphBuilder, x: Node) -> Any:
        pooled = b.emit("AveragePool", x, **_POOL, count_include_pad=False)
        return b.emit("Cast", b.emit("Round", pooled), to="uint8")

    values = np.random.default_rng(0).integers(0, 255, (1, 40, 30, 48)).astype(np.float32)
    padded = np.pad(values, [(0, 0), (1, 1), (1, 1), (0, 0)])
    ones = np.pad(np.ones((40, 30)), 1)
    taps = [(slice(i, i + 40), slice(j, j + 30)) for i in range(3) for j in range(3)]
    sums = sum(padded[:, i, j] for i, j in taps)
    counts = sum(ones[i, j] for i, j in taps)
    expected = np.rint(sums / np.asarray(counts, np.float32)[None, :, :, None])
    np.testing.assert_array_equal(_computed(averages, values), expected)
    assert _scheduled(averages, values.shape).count("T.parallel") == 1


@pytest.mark.parametrize(("kind", "lanes"), [("uint8", 64), ("float32", 16)])
def test_vectors_are_as_long_for_every_dtype(kind: str, lanes: int) -> None:
    text = _scheduled(lambda b, x: b.emit("MaxPool", x, **_POOL), (1, 62, 64, 64), kind)
    assert set(re.findall(r"T.vectorized\(T.int64\((\d+)\)\)", text)) == {str(lanes)}


def test_indices_of_rows_shorten_no_vectors() -> None:
    """They are of 64 bits, and the same for all of a row."""
    indices = Constant(np.array([3, 0, 2]))
    text = _scheduled(lambda b, x: b.emit("Gather", x, indices, axis=0), (4, 64))
    assert set(re.findall(r"T.vectorized\(T.int64\((\d+)\)\)", text)) == {"16"}


@pytest.mark.parametrize(("kind", "atol"), [("float16", 2e-2), ("bfloat16", 2e-1)])
def test_narrow_floats_have_loops(kind: str, atol: float) -> None:
    """A convolution, a batch norm and a clip, beside the loops of each."""
    b = Builder()
    code = TensorProto.FLOAT16 if kind == "float16" else TensorProto.BFLOAT16
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((16, 3, 1, 1)) / 2
    scale, shift, mean, variance = rng.random((4, 16)) + 1
    norm = [b.constant(values, kind) for values in (scale, shift, mean, variance)]
    x = b.node("Conv", b.input("x", (1, 3, 8, 16), code), b.constant(weight, kind))
    y = b.node("BatchNormalization", x, *norm)
    y = b.node("Clip", y, b.constant(0, kind), b.constant(6, kind))
    result = helper.make_tensor_value_info(y, code, None)
    graph = helper.make_graph(b.nodes, "narrow", b.inputs, [result], b.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = compile_whole(load_whole(model), progress=False)
    values = rng.standard_normal((1, 3, 8, 16)).astype("f2" if kind == "float16" else "f4")
    parameters = (v.reshape(-1, 1, 1) for v in (scale, shift, mean, variance))
    product = np.einsum("kc,nchw->nkhw", weight[..., 0, 0], values.astype("f8"))
    scale, shift, mean, variance = parameters
    right = np.clip((product - mean) / np.sqrt(variance + 1e-5) * scale + shift, 0, 6)
    np.testing.assert_allclose(compiled(values).astype("f8"), right, atol=atol)


def test_dropout_keeps_everything() -> None:
    b = Builder()
    y = b.node("Dropout", b.node("Relu", b.input("x", (4, 16))))
    b.nodes[-1].output.append("mask")
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16)
    compiled = compile_whole(load_whole(b.model(y)), progress=False)
    np.testing.assert_array_equal(compiled(values), np.maximum(values, 0))
    ratio, training = b.constant(0.5), b.constant(True, "bool")
    model = b.model(b.node("Dropout", y, ratio, training))
    with pytest.raises(NetworkError, match="Dropout: training mode is not supported"):
        load_whole(model)


def test_constants_keep_64_bits() -> None:
    b = Builder()
    x = b.input("x", (4, 16), TensorProto.INT64)
    total = b.node("Add", x, b.constant(np.arange(16) + 2**40, "int64"))
    y = b.node("Cast", b.node("Sub", total, b.constant(2**40, "int64")), to=TensorProto.FLOAT)
    values = np.arange(64).reshape(4, 16)
    compiled = compile_whole(load_whole(b.model(y)), progress=False)
    np.testing.assert_array_equal(compiled(values), values + np.arange(16))


def test_another_process_schedules_and_compiles_rounded_products() -> None:
    """Helper processes get functions as text, and have not defined AMOS's operators."""

    def make(b: GraphBuilder, x: Node) -> Any:
        product = b.emit("Mul", x, Constant(np.full((1,), 0.3, np.float32)))
        return b.emit("Round", b.emit("Add", product, Constant(np.full((1,), 0.7, np.float32))))

    functions = unscheduled_line_of(graph_of(make, ((300, 64), "float32")))[1]
    exact = scheduling.needs_exact_rounding(functions.values())
    assert exact and "amos_rounded" in str(scheduling.schedule_loops(functions, exact))
    text, module = scheduling.to_text(functions), "amos.network.loops.scheduling"
    code = f"import sys; from {module} import object_code; object_code(sys.stdin.read(), True)"
    subprocess.run([sys.executable, "-c", code], input=text, text=True, check=True)
