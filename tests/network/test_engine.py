"""What stays with the engine, under its simple schedule, against NumPy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from amos.errors import NetworkError
from amos.network.engine import scheduled_loops
from tests.network.models import Builder, compile_module, compile_whole, load_whole, run_module

Make = Callable[[Builder, str], str]


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    result: np.ndarray = powers / powers.sum(-1, keepdims=True)
    return result


def _normalized(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return result


def _layer_norm(b: Builder, x: str) -> str:
    width = b.inputs[0].type.tensor_type.shape.dim[-1].dim_value
    return b.node("LayerNormalization", x, b.constant(np.ones(width)), axis=-1)


@pytest.mark.parametrize("width", [64, 50])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda b, x: b.node("Softmax", x, axis=-1), _softmax),
        (_layer_norm, _normalized),
        (lambda b, x: b.node("Transpose", x, perm=[1, 0]), lambda x: x.T),
        (lambda b, x: b.node("ReduceMax", x, axes=[0], keepdims=0), lambda x: x.max(0)),
    ],
    ids=["softmax", "layer_norm", "transpose", "maximum"],
)
def test_rows_columns_and_what_is_elementwise(
    make: Make, expected: Callable[[np.ndarray], np.ndarray], width: int
) -> None:
    """Rows that vectors divide and rows that they do not; enough of them for every core."""
    b = Builder()
    model = b.model(make(b, b.input("x", (300, width))))
    values = np.random.default_rng(3).standard_normal((300, width)).astype(np.float32)
    compiled = compile_whole(load_whole(model), verify=False, progress=False)
    result = compiled(values)
    np.testing.assert_allclose(result, expected(values.astype(float)), rtol=2e-5, atol=2e-6)


def _module(call: Callable[..., Any], shape: tuple[int, ...], kind: str) -> Any:
    """The engine's module of an expression over one tensor."""
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, kind))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(call(relax.op, x))
        builder.emit_func_output(result)
    return builder.finalize()


def _scheduled(call: Callable[..., Any], shape: tuple[int, ...], kind: str = "float32") -> str:
    """The loops of an expression over one tensor."""
    return str(scheduled_loops(_module(call, shape, kind)))


def _computed(call: Callable[..., Any], values: np.ndarray, *, fused: bool = True) -> np.ndarray:
    """What the engine computes of one tensor."""
    return run_module(_module(call, values.shape, str(values.dtype)), values, fused=fused)


@pytest.mark.parametrize(
    "call",
    [
        lambda op, x: op.nn.softmax(x, axis=-1),
        lambda op, x: op.mean(x, axis=[1, 2]),
        lambda op, x: op.nn.max_pool2d(x, [3, 3], [2, 2], [1, 1], layout="NHWC"),
        lambda op, x: op.permute_dims(
            op.nn.pad(op.round(x), [0, 0, 1, 1, 0, 0, 0, 0]), (0, 3, 1, 2)
        ),
    ],
    ids=["softmax", "mean", "max_pool", "padded_transpose"],
)
def test_what_is_large_is_computed_by_all_cores_in_vectors(call: Callable[..., object]) -> None:
    """A schedule that TVM refuses would leave plain loops, which are right and slow."""
    text = _scheduled(call, (1, 62, 64, 64))
    assert "T.parallel" in text
    assert "T.vectorized" in text


def _after(*functions: str) -> tuple[Any, str]:
    """The engine's module of functions of a vector, one behind the other, and its loops."""
    from tvm import relax

    builder = relax.BlockBuilder()
    x = y = relax.Var("x", relax.TensorType((1, 96), "float32"))
    with builder.function("main", [x]):
        for function in functions:
            y = builder.emit(getattr(relax.op, function)(y))
        builder.emit_func_output(y)
    module = builder.finalize()
    return module, str(scheduled_loops(module))


_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("functions", [["exp"], ["tanh"], ["sigmoid"], [*_FUNCTIONS] * 3])
def test_functions_are_polynomials_in_vectors(functions: list[str]) -> None:
    """Of each other too, which as one expression would take minutes to compile."""
    module, text = _after(*functions)
    assert not {f"T.{name}(" for name in _FUNCTIONS if f"T.{name}(" in text}
    special = [np.nan, np.inf, -np.inf, 0.0, 100.0, -100.0]
    values = np.array([[*np.linspace(-20, 20, 90), *special]], np.float32)
    expected = values.astype(np.float64)
    with np.errstate(over="ignore"):
        for function in functions:
            expected = _FUNCTIONS[function](expected).astype(np.float32).astype(np.float64)
    result = run_module(module, values)
    np.testing.assert_allclose(result, expected, rtol=2e-6, atol=1e-37)


def test_values_are_rounded_in_vectors() -> None:
    module, _ = _after("round")
    built = compile_module(module)
    rounding = re.findall(
        r"\tv?(?:round|rndscale)([ps][sd])\b", built.mod.imports[0].inspect_source("s")
    )
    assert set(rounding) == {"ps"}
    values = np.array([[*np.linspace(-4, 4, 33), *np.random.default_rng(0).normal(0, 99, 63)]], "f")
    result = run_module(module, values)
    np.testing.assert_array_equal(result, np.rint(values))


def test_what_is_transposed_is_computed_before_in_vectors() -> None:
    """Elements that are moved one by one, padding between them, are not computed one by one."""
    channels_last = _scheduled(
        lambda op, x: op.permute_dims(
            op.nn.pad(op.round(x), [0, 0, 0, 0, 3, 3, 3, 3]), (0, 2, 3, 1)
        ),
        (1, 3, 224, 224),
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

    def quantized(op: Any, x: Any) -> Any:
        from tvm import relax

        first, other = (op.multiply(x, relax.const(each, "float32")) for each in factors)
        return op.round(op.add(first, other))

    expected = np.rint(values * factors[0] + values * factors[1])
    np.testing.assert_array_equal(_computed(quantized, values, fused=fused), expected)
    assert "T.vectorized" in _scheduled(quantized, values.shape)


@pytest.mark.parametrize("axis", [1, 2])
def test_parts_of_a_concatenation_are_copied_one_after_another(axis: int) -> None:
    """Of different lengths, one of them joined before, and computed with on the way."""

    def joined(op: Any, x: Any) -> Any:
        narrow = op.strided_slice(x, axes=[axis], begin=[3], end=[20])
        inner = op.concat([op.nn.relu(x), narrow], axis)
        return op.round(op.concat([narrow, inner, x], axis))

    values = np.random.default_rng(0).standard_normal((4, 70, 96)).astype(np.float32)
    narrow = values[:, 3:20] if axis == 1 else values[:, :, 3:20]
    expected = np.concatenate([narrow, np.maximum(values, 0), narrow, values], axis)
    np.testing.assert_array_equal(_computed(joined, values), np.round(expected))
    if axis == 2:
        text = _scheduled(joined, values.shape)
        assert "T.parallel" in text
        assert text.count("_partition") == 4


def test_what_follows_sums_is_computed_beside_them() -> None:
    def averages(op: Any, x: Any) -> Any:
        pooled = op.nn.avg_pool2d(x, [3, 3], padding=[1, 1, 1, 1], layout="NHWC")
        return op.astype(op.round(pooled), "uint8")

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
    text = _scheduled(
        lambda op, x: op.nn.max_pool2d(x, [3, 3], [2, 2], [1, 1], layout="NHWC"),
        (1, 62, 64, 64),
        kind,
    )
    assert set(re.findall(r"T.vectorized\(T.int64\((\d+)\)\)", text)) == {str(lanes)}


@pytest.mark.parametrize(("kind", "atol"), [("float16", 2e-2), ("bfloat16", 2e-1)])
def test_narrow_floats_stay_with_the_engine(kind: str, atol: float) -> None:
    """A convolution, a batch norm and a clip, beside what the engine makes of them unchanged."""
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
    each = (v.reshape(-1, 1, 1) for v in (scale, shift, mean, variance))
    product = np.einsum("kc,nchw->nkhw", weight[..., 0, 0], values.astype("f8"))
    scale, shift, mean, variance = each
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
    with pytest.raises(NetworkError, match="Dropout in training mode is not supported"):
        load_whole(model)


def test_constants_keep_64_bits() -> None:
    b = Builder()
    x = b.input("x", (4, 16), TensorProto.INT64)
    total = b.node("Add", x, b.constant(np.arange(16) + 2**40, "int64"))
    y = b.node("Cast", b.node("Sub", total, b.constant(2**40, "int64")), to=TensorProto.FLOAT)
    values = np.arange(64).reshape(4, 16)
    compiled = compile_whole(load_whole(b.model(y)), progress=False)
    np.testing.assert_array_equal(compiled(values), values + np.arange(16))
