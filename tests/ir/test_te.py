"""Reading TE tensors: what is accepted, and what is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from amos.errors import OperatorError
from amos.ir import Operator
from amos.ir.te import from_te

te = pytest.importorskip("tvm.te", reason="apache-tvm is not installed")
tirx = pytest.importorskip("tvm.tirx", reason="apache-tvm is not installed")


def placeholder(name: str, *shape: int, dtype: str = "float32") -> Any:
    return te.placeholder(shape, name=name, dtype=dtype)


def test_quantized_product_reads_like_its_line_of_math() -> None:
    a, b = placeholder("A", 4, 5, dtype="uint8"), placeholder("B", 5, 6, dtype="int8")
    k = te.reduce_axis((0, 5), "k")
    c = te.compute(
        (4, 6),
        lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), axis=k),
        name="C",
    )
    assert from_te(c) == Operator.parse(
        "C[i,j] += A[i,k] * B[k,j]",
        {"i": 4, "j": 6, "k": 5},
        {"A": "u8", "B": "s8", "C": "s32"},
    )


def test_strided_convolution_keeps_its_image_shape() -> None:
    image, weight = placeholder("image", 1, 3, 12, 12), placeholder("weight", 8, 3, 3, 3)
    c, r, s = (te.reduce_axis((0, 3), name) for name in "crs")
    out = te.compute(
        (1, 8, 5, 5),
        lambda n, k, p, q: te.sum(
            image[n, c, p * 2 + r, 2 * q + s] * weight[k, c, 2 - r, s], axis=[c, r, s]
        ),
        name="out",
    )
    op = from_te(out)
    assert str(op.compute) == (
        "out[n, k, p, q] += image[n, c, p*2 + r, q*2 + s] * weight[k, c, -r + 2, s]"
    )
    assert op.inputs[0].shape == (1, 3, 12, 12)


def test_plain_product_scalar_and_copy() -> None:
    x, y, alpha = placeholder("x", 4), placeholder("y", 6), placeholder("alpha")
    assert str(from_te(te.compute((4, 6), lambda i, j: x[i] * y[j], name="o")).compute) == (
        "o[i, j] = x[i] * y[j]"
    )
    assert str(from_te(te.compute((4,), lambda i: alpha() * x[i], name="o")).compute) == (
        "o[i] = alpha[] * x[i]"
    )
    assert str(from_te(te.compute((4,), lambda i: y[i + 2], name="o")).compute) == "o[i] = y[i + 2]"


def test_repeated_and_foreign_names_become_unique() -> None:
    a, b = placeholder("t.x", 4, 5), placeholder("t.x", 5)
    k = te.reduce_axis((0, 5), "i")
    op = from_te(te.compute((4,), lambda i: te.sum(a[i, k] * b[k], axis=k), name="t.x"))
    assert str(op.compute) == "t_x[i] += t_x_1[i, i_1] * t_x_2[i_1]"


def test_reduction_that_starts_late_shifts_the_index() -> None:
    a = placeholder("a", 4, 5)
    k = te.reduce_axis((2, 5), "k")
    op = from_te(te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="o"))
    assert str(op) == "o[i] += a[i, k + 2]  with i=4, k=3  (a: f32, o: f32)"


def test_other_functions_than_sums_of_products() -> None:
    a, b = placeholder("a", 4, 8), placeholder("b", 8)
    k = te.reduce_axis((0, 8), "k")
    product = te.comm_reducer(lambda x, y: x * y, lambda kind: tirx.const(1, kind))
    lowest = te.comm_reducer(lambda x, y: tirx.max(x, y), lambda kind: tirx.const(-math.inf, kind))
    bodies = {
        "o[i] max= a[i, k]": lambda i: te.max(a[i, k], axis=k),
        "o[i] min= a[i, k] + b[k]": lambda i: te.min(a[i, k] + b[k], axis=k),
        "o[i] *= a[i, k]": lambda i: product(a[i, k], axis=k),
        "o[i] max= max(a[i, k], b[k])": lambda i: lowest(tirx.max(a[i, k], b[k]), axis=k),
        "o[i] = a[i, 0] - b[i] - b[0]": lambda i: a[i, 0] - b[i] - b[0],
        "o[i] = a[i, 0] + b[i] + b[0]": lambda i: a[i, 0] + (b[i] + b[0]),
    }
    for text, body in bodies.items():
        assert str(from_te(te.compute((4,), body, name="o")).compute) == text


def refused(body: Any, *shape: int) -> str:
    with pytest.raises(OperatorError) as caught:
        from_te(te.compute(shape, body, name="o"))
    return str(caught.value)


def test_refusals_name_what_is_not_supported() -> None:
    a, b = placeholder("a", 8, 8), placeholder("b", 8, dtype="int32")
    half = placeholder("half", 8, dtype="float16")
    k = te.reduce_axis((0, 8), "k")
    assert "Mul among the sources" in refused(lambda i: a[i, 0] + a[i, 1] * a[i, 2], 8)
    assert "Sub among the sources" in refused(lambda i: a[i, 0] - (a[i, 1] - a[i, 2]), 8)
    assert "constant factor" in refused(lambda i: a[i, 0] * 2.0, 8)
    positive = te.comm_reducer(lambda x, y: tirx.max(x, y), lambda kind: tirx.const(0, kind))
    assert "reduced by Max" in refused(lambda i: positive(a[i, k], axis=k), 8)
    halved = te.comm_reducer(lambda x, y: x + y * 0.5, lambda kind: tirx.const(0, kind))
    assert "reduced by Add" in refused(lambda i: halved(a[i, k], axis=k), 8)
    assert "where=" in refused(lambda i: te.sum(a[i, k], axis=k, where=k > 2), 8)
    assert "not affine: FloorDiv" in refused(lambda i: a[i // 2, 0], 8)
    assert "product of i and k" in refused(lambda i: te.sum(a[i * k, 0], axis=k), 2)
    assert "depends on the data of 'b'" in refused(lambda i: a[b[i], 0], 8)
    assert "changes values" in refused(lambda i: a[i, 0].astype("float16"), 8)
    assert "after it was rounded" in refused(lambda i: (half[i] * half[i]).astype("float32"), 8)
    assert "if_then_else" in refused(
        lambda i: tirx.if_then_else(i > 0, a[i, 0], tirx.const(0, "float32")), 8
    )


def test_padded_stage_is_refused_by_name() -> None:
    a = placeholder("a", 8)
    padded = te.compute(
        (10,),
        lambda i: tirx.if_then_else(tirx.all(i > 0, i < 9), a[i - 1], tirx.const(0, "float32")),
        name="padded",
    )
    assert "'padded' is computed by a stage of its own" in refused(lambda i: padded[i], 8)


def test_other_objects_and_symbolic_shapes_are_refused() -> None:
    with pytest.raises(OperatorError, match=r"expected a tvm\.te\.Tensor, got int"):
        from_te(3)
    with pytest.raises(OperatorError, match="not the result of te.compute"):
        from_te(placeholder("a", 4))
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    with pytest.raises(OperatorError, match="not a constant integer"):
        from_te(te.compute((n,), lambda i: x[i], name="o"))
    y = placeholder("y", 4)
    pair = te.compute((4,), lambda i: (y[i], y[i]), name="pair")
    with pytest.raises(OperatorError, match="2 tensors at once"):
        from_te(pair[0])
