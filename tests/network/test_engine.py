"""What stays with the engine, under its simple schedule, against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import amos
from amos.network.engine import scheduled_loops
from tests.network.models import Builder

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
    compiled = amos.compile(amos.load_network(model), verify=False, progress=False)
    result = compiled(values)
    np.testing.assert_allclose(result, expected(values.astype(float)), rtol=2e-5, atol=2e-6)


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
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 62, 64, 64), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(call(relax.op, x)))
    text = str(scheduled_loops(builder.finalize()))
    assert "T.parallel" in text
    assert "T.vectorized" in text
