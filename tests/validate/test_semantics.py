"""The reference against plain loops, and its errors."""

from __future__ import annotations

from itertools import product
from time import thread_time

import numpy as np
import pytest

from amos.errors import OperatorError
from amos.ir import Operator
from amos.validate import evaluate, random_inputs, semantics

TEXTS = {
    "conv": "out[n,k,p,q] += image[n,c,p*2+r,q*2+s] * weight[k,c,r,s]",
    "padded": "out[k,p,q] += pad(image[c,p+r-1,q-s+1]) * weight[k,c,r,s]",
    "reversed": "out[k,p] += image[c,p+r] * weight[k,c,2-r]",
    "depthwise": "out[k,p] += image[k,p+r] * weight[k,r]",
    "outer": "out[p,k] = a[p] * b[k]",
    "elementwise": "out[p,k] = a[p,k] * b[p,k]",
    "sum": "out[p] += a[p,k]",
    "broadcast": "out[p,k] += a[p,r]",
    "three": "out[p,k] += a[p,r] * b[r,s] * d[s,k]",
    "lonely": "out[p] += a[p,r] * b[s]",
    "square": "out[p,q] += a[p,r] * a[q,r]",
    "diagonal": "out[p] += a[r,r] * b[p,r]",
    "strided": "out[p*2+1] += a[p,r] * b[r]",
    "dot": "out[0] += a[r] * b[r]",
}
EXTENTS = dict(n=2, k=3, p=4, q=2, c=3, r=3, s=2)


def make(text: str, dtypes: dict[str, str] | None = None) -> Operator:
    accesses = [access.split("]")[0] for access in text.split("[")[1:]]
    used = {n: e for n, e in EXTENTS.items() if any(n in access for access in accesses)}
    shapes = {"image": (3, 5, 4)} if "pad" in text else {}
    return Operator.parse(text, used, dtypes or {}, "op", shapes)


def plain(op: Operator, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The operator as loops over Python integers or floats."""
    out = np.zeros(op.output.tensor.shape, dtype=object)
    names = list(op.extents)
    for point in product(*map(range, op.extents.values())):
        values = dict(zip(names, point, strict=True))
        term = 1
        for load in op.sources:
            at = [index.evaluate(values) for index in load.indices]
            in_bounds = all(0 <= i < n for i, n in zip(at, load.tensor.shape, strict=True))
            term *= inputs[load.tensor.name][tuple(at)].item() if in_bounds else 0
        out[tuple(index.evaluate(values) for index in op.output.indices)] += term
    return out


@pytest.mark.parametrize("name", TEXTS)
def test_evaluate_is_the_loops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("u8", "s32", "f16", "f32"):
        into = kind if kind.startswith("f") else "s32"
        op = make(TEXTS[name])
        op = op.with_dtypes({t.name: kind for t in op.inputs} | {"out": into})
        inputs = random_inputs(op, np.random.default_rng(3))
        expected = plain(op, inputs)
        if into == "s32":  # wraps around as two's complement does
            expected = ((expected + 2**31) % 2**32 - 2**31).astype(np.int32)
        for unfold in (1, 1 << 25):
            monkeypatch.setattr(semantics, "_UNFOLD", unfold)
            got = evaluate(op, inputs)
            assert got.dtype == op.output.tensor.dtype
            np.testing.assert_array_equal(got, expected.astype(got.dtype), f"{kind} {unfold}")


def test_open_dtypes_are_those_of_the_arrays() -> None:
    op = make("out[p] += a[p,r]")
    a = np.full((4, 3), 100, np.int8)
    assert evaluate(op, {"a": a}).dtype == np.int32
    assert list(evaluate(op, {"a": a})) == [300] * 4
    assert evaluate(op, {"a": a.astype(np.float16)}).dtype == np.float32
    assert evaluate(op, {"a": a.astype(np.uint64)}).dtype == np.uint64
    assert evaluate(op, {"a": np.ones((4, 3), bool)})[0] == 3


def test_inputs_are_not_changed() -> None:
    op = make(TEXTS["conv"], dict(image="f32", weight="f32", out="f32"))
    inputs = random_inputs(op, np.random.default_rng(0))
    copies = {name: array.copy() for name, array in inputs.items()}
    evaluate(op, inputs)
    assert all(np.array_equal(copies[name], inputs[name]) for name in copies)


def test_a_resnet_layer_takes_less_than_a_second() -> None:
    op = Operator.parse(
        TEXTS["conv"],
        dict(n=1, k=64, p=28, q=28, c=64, r=3, s=3),
        dict(image="u8", weight="s8", out="s32"),
    )
    inputs = random_inputs(op, np.random.default_rng(0))
    start = thread_time()
    evaluate(op, inputs)
    assert thread_time() - start < 1


def test_random_inputs_span_the_dtype_and_repeat() -> None:
    op = Operator.parse("out[i] += a[i,k] * b[k]", dict(i=200, k=200), dict(a="u8", b="int4"))
    first, second = (random_inputs(op, np.random.default_rng(5)) for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert (first["a"].min(), first["a"].max()) == (0, 255)
    assert (first["b"].min(), first["b"].max()) == (-8, 7)
    assert first["b"].dtype == np.int8


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": np.zeros((2, 3), np.int8)}, "expected a, b, got a"),
        ({}, "got none"),
        (
            {"a": np.zeros((3, 2), np.int8), "b": np.zeros(3, np.int8)},
            r"'a' of op: expected shape \(2, 3\), got \(3, 2\)",
        ),
        (
            {"a": np.zeros((2, 3)), "b": np.zeros(3, np.int8)},
            "expected dtype int8, got float64",
        ),
        (
            {"a": np.zeros((2, 3), np.int8), "b": np.full(3, 8, np.int8)},
            r"expected values in \[-8, 7\], got 8 at \[0\]",
        ),
    ],
)
def test_bad_inputs(inputs: dict[str, np.ndarray], message: str) -> None:
    op = Operator.parse(
        "out[i] += a[i,k] * b[k]", dict(i=2, k=3), dict(a="s8", b="int4"), name="op"
    )
    with pytest.raises(OperatorError, match=message):
        evaluate(op, inputs)


def test_text_is_no_input() -> None:
    op = Operator.parse("out[i] += a[i,k]", dict(i=2, k=2), name="op")
    with pytest.raises(OperatorError, match="expected integers or floats"):
        evaluate(op, {"a": np.full((2, 2), "x")})
