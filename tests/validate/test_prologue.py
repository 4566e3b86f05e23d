"""What NumPy makes of prologues: against loops that say the same once more."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import amos
from amos.ir import Operator
from amos.validate import evaluate, execute_matching, random_inputs

CONV = Operator.parse(
    "out[k,p,q] += pad(image[c,p+r-1,q+s-1], 3) * weight[k,c,r,s]",
    extents=dict(c=4, k=4, p=5, q=4, r=3, s=2),
    dtypes=dict(weight="int8", out="int32"),
)


def _loops(image: np.ndarray, weight: np.ndarray) -> np.ndarray:
    out = np.zeros((4, 5, 4), np.int64)
    for k, p, q, c, r, s in product(*map(range, (4, 5, 4, 4, 3, 2))):
        h, w = p + r - 1, q + s - 1
        in_bounds = 0 <= h < image.shape[1] and 0 <= w < image.shape[2]
        out[k, p, q] += (int(image[c, h, w]) if in_bounds else 3) * int(weight[k, c, r, s])
    return out


@pytest.mark.parametrize("seed", range(3))
def test_evaluate_and_simulate(seed: int) -> None:
    op = CONV.with_prologue("image[c,h,w]", "u8(relu(x[h,w,c] * scale[c] - 3) + z[])", {"z": "s32"})
    inputs = random_inputs(op, np.random.default_rng(seed))
    assert set(inputs) == {"x", "scale", "z", "weight"}
    scaled = inputs["x"].transpose(2, 0, 1) * inputs["scale"][:, None, None]
    value = np.maximum(scaled - np.float32(3), 0) + np.float32(inputs["z"])
    image = np.clip(np.rint(value), 0, 255).astype(np.uint8)
    assert len(np.unique(image)) > 5
    expected = _loops(image, inputs["weight"])
    assert (evaluate(op, inputs) == expected).all()
    unit = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
    mapping = amos.enumerate_mappings(op, unit)[seed]
    assert (amos.simulate(mapping, inputs) == expected).all()
    assert (execute_matching(op, unit, mapping.matching, inputs) == expected).all()


def test_integers_wrap_around_and_are_clamped() -> None:
    op = Operator.parse("o[i] += a[i,k] * b[k]", dict(i=2, k=3), {"a": "int8", "o": "int32"})
    op = op.with_prologue("a", "a[i,k] * x[i,k]", {"a": "s32", "x": "s32"})
    a = np.array([[1 << 30, 5, -7], [1 << 16, 3, 300]], np.int32)
    x = np.array([[4, 5, 6], [1 << 16, -50, 1]], np.int32)
    value = np.array([[0, 25, -42], [0, -128, 127]])
    b = np.array([1, 2, 3], np.int32)
    assert (evaluate(op, {"a": a, "x": x, "b": b}) == value @ b).all()


def test_folded_constants_and_broadcasts() -> None:
    op = Operator.parse("o[i,j] += a[i,k] * weight[k,j]", dict(i=2, j=3, k=4))
    op = op.with_prologue("weight[k,j]", "bf16(w[j])")
    assert op.constants == ("weight",)
    inputs = random_inputs(op, np.random.default_rng(1))
    weight = np.broadcast_to(inputs["w"], (4, 3))
    assert np.allclose(evaluate(op, inputs), inputs["a"] @ weight)
