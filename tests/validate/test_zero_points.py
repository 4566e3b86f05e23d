"""Sums of differences rewritten as sums of products: the same results, on intrinsics for bytes."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

import amos
from amos.errors import AmosError, MappingError
from amos.ir import Operator
from amos.records.canonical import operator_from, operator_values
from amos.runtime import Kernel
from amos.validate import evaluate, fold_zero_point, random_inputs

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
SIZES = dict(n=1, k=5, p=4, q=3, c=6, r=3, s=2)
CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]", SIZES, {"weight": "s8"}
)
GEMM = Operator.parse("out[i,j] += a[i,k] * weight[k,j]", dict(i=5, j=6, k=8), {"weight": "s8"})


@pytest.mark.parametrize("zero", [0, 3, 128, 255])
def test_convolution(zero: int) -> None:
    """Against loops over differences: what lies outside adds nothing."""
    op = CONV.with_prologue("image[n,h,w,c]", f"s16(x[n,c,h,w] - {zero})", {"x": "u8"})
    fold = fold_zero_point(op, "image")
    assert [(x.name, x.dtype) for x in fold.operator.inputs] == [
        ("x", "uint8"), ("weight", "int8"), ("weight_sums", "int32"),
    ]  # fmt: skip
    inputs = random_inputs(op, np.random.default_rng(zero))
    x, weight = inputs["x"].astype(int) - zero, inputs["weight"].astype(int)
    expected = np.zeros((1, 4, 3, 5), int)
    for k, p, q, c, r, s in product(*map(range, (5, 4, 3, 6, 3, 2))):
        h, w = p + r - 1, q + s - 1
        if 0 <= h < x.shape[2] and 0 <= w < x.shape[3]:
            expected[0, p, q, k] += x[0, c, h, w] * weight[k, c, r, s]
    folded = fold.inputs(inputs)
    assert (folded["weight_sums"] == weight.sum((1, 2, 3))).all()
    assert (evaluate(op, inputs) == expected).all()
    assert (evaluate(fold.operator, folded) == expected).all()
    # Differences of bytes are no bytes; what they are made of is.
    with pytest.raises(MappingError, match="operand `Src1` is uint8; amos.fold_zero_point takes"):
        amos.enumerate_mappings(op, VNNI)
    mapping = amos.enumerate_mappings(fold.operator, VNNI)[-1]
    assert (amos.simulate(mapping, folded) == expected).all()
    kernel = amos.build(mapping, implementation="generic").pack(weight=inputs["weight"])
    assert (kernel(x=inputs["x"], weight_sums=folded["weight_sums"]) == expected).all()
    assert operator_from(operator_values(fold.operator)) == fold.operator


def test_epilogues_and_other_padding_and_signs() -> None:
    op = Operator.parse(
        "out[i,j] += pad(a[i+k-1], -3) * weight[k,j] * weight_b[j]",
        dict(i=5, j=3, k=4), {"weight": "s8", "weight_b": "s8"},
    )  # fmt: skip
    op = op.with_prologue("a", "x[i] + 5", {"x": "s8"}).with_prologue(
        "weight", "s8(w[k,j] + v[j])", {"w": "s8", "v": "s16"}
    )
    op = op.with_epilogue("u8(relu(acc * scale[j]) - acc)")
    fold = fold_zero_point(op, "a")
    assert fold.operator.sources[0].padding == -8
    assert str(fold.operator.epilogue) == (
        "u8(relu((acc - -5 * weight_sums[j]) * scale[j]) - (acc - -5 * weight_sums[j]))"
    )
    inputs = random_inputs(op, np.random.default_rng(3))
    assert (evaluate(fold.operator, fold.inputs(inputs)) == evaluate(op, inputs)).all()


def test_a_zero_point_for_each_row() -> None:
    op = GEMM.with_prologue("a", "s16(x[i,k] - z[i])", {"x": "u8", "z": "u8"})
    fold = fold_zero_point(op, "a")
    assert str(fold.operator.epilogue) == "acc - z[i] * weight_sums[j]"
    inputs = random_inputs(op, np.random.default_rng(0))
    difference = inputs["x"].astype(int) - inputs["z"][:, None]
    expected = difference @ inputs["weight"].astype(int)
    assert (evaluate(fold.operator, fold.inputs(inputs)) == expected).all()
    # What only the source moves along adds the same weights again.
    twice = Operator.parse("o[i] += a[i,k,l] * weight[k]", dict(i=2, k=3, l=4), {"weight": "s8"})
    twice = twice.with_prologue("a", "s16(x[i,k,l] - 7)", {"x": "u8"})
    fold = fold_zero_point(twice, "a")
    assert str(fold.operator.epilogue) == "acc - 7 * (4 * weight_sums[])"
    inputs = random_inputs(twice, np.random.default_rng(0))
    assert (evaluate(fold.operator, fold.inputs(inputs)) == evaluate(twice, inputs)).all()


@pytest.mark.parametrize(
    ("text", "dtypes", "message"),
    [
        ("s16(x[i,k] * 2)", {"x": "u8"}, "expected a difference of a tensor and an integer"),
        ("x[i,k] - 2.5", {"x": "u8"}, "expected a difference of a tensor and an integer"),
        ("s16(x[i,k] - z[k])", {"x": "u8", "z": "u8"}, "z[k] differs along 'k'"),
        ("s8(x[i,k] - 3)", {"x": "u8"}, "differences from -3 to 252 do not all fit int8"),
        ("s16(x[i,k] - 3)", {}, "expected integers, 'x' is float32"),
        ("s16(x[i,k+1] - 3)", {"x": "u8"}, "x[i, k + 1] is not a[i, k] with its dimensions"),
        ("s16(x[i,k,k] - 3)", {"x": "u8"}, "is not a[i, k] with its dimensions in some order"),
    ],
)
def test_refusals(text: str, dtypes: dict[str, str], message: str) -> None:
    op = GEMM.with_prologue("a[i,k]", text, dtypes)
    with pytest.raises(AmosError, match=re.escape(message)) as caught:
        fold_zero_point(op, "a")
    assert "\n" not in str(caught.value)


def test_what_else_is_refused() -> None:
    with pytest.raises(AmosError, match="expected a source with a prologue"):
        fold_zero_point(GEMM, "a")
    padded = CONV.with_prologue("image", "s16(x[n,h,w,c] - z[])", {"x": "u8", "z": "u8"})
    with pytest.raises(AmosError, match="is padded, so that the zero point has to be a number"):
        fold_zero_point(padded, "image")
    below = Operator.parse("o[i] += pad(a[i+k], -4) * weight[k]", dict(i=4, k=3))
    below = below.with_prologue("a", "s16(x[i] - 3)", {"x": "u8"})
    with pytest.raises(AmosError, match="the padding -4 is that of -1, which is no value of 'x'"):
        fold_zero_point(below, "a")
    moving = Operator.parse("o[i,j] += a[i,k] * b[k,j]", dict(i=2, j=3, k=4))
    moving = moving.with_prologue("a", "s16(x[i,k] - 3)", {"x": "u8"})
    with pytest.raises(AmosError, match="'b' may change from call to call"):
        fold_zero_point(moving, "a")


def test_further_results_are_corrected_too() -> None:
    op = GEMM.with_prologue("a", "s16(x[i,k] - 128)", {"x": "u8"})
    op = op.with_result("top[i] max= acc").with_result("f[i,j] = acc * 0.5")
    fold = fold_zero_point(op, "a")
    inputs = random_inputs(op, np.random.default_rng(0))
    total = (inputs["x"].astype(int) - 128) @ inputs["weight"].astype(int)
    folded = fold.inputs(inputs)
    for results in (evaluate(fold.operator, folded), _built(fold.operator)(**folded)):
        for got, expected in zip(results, (total, total.max(axis=1), total * 0.5), strict=True):
            np.testing.assert_array_equal(got, expected)


def _built(op: Operator) -> Kernel:
    return amos.build(amos.enumerate_mappings(op, VNNI)[0])
