"""NaN and infinities in networks: they go where ONNX's operators send them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.network.models import Builder, compile_whole, load_whole

_SHAPE = (1, 4, 9, 13)


def _image() -> np.ndarray:
    x = np.random.default_rng(0).standard_normal(_SHAPE).astype(np.float32)
    x[0, 1, 5, 5] = x[0, 2, 0, 0] = np.nan
    x[0, 3, 3, 3], x[0, 3, 3, 4] = np.inf, -np.inf
    return x


def _result(b: Builder, name: str) -> np.ndarray:
    got: np.ndarray = compile_whole(load_whole(b.model(name)), verify=False)(_image())
    return got


def test_elements_that_are_nan_stay_nan() -> None:
    """Alone, which the engine computes, all in one model."""
    b, image = Builder(), _image()
    x, ones = b.input("x", _SHAPE), np.ones((4, 1, 1), np.float32)
    ones[3] = np.nan
    results = {
        b.node("Relu", x): np.maximum(image, 0),
        b.node("Clip", x, b.constant(0), b.constant(6)): np.clip(image, 0, 6),
        b.node("Max", x, b.constant(ones)): np.maximum(image, ones),
        b.node("Min", b.constant(ones), x): np.minimum(image, ones),
        b.node("HardSigmoid", x): np.clip(image * np.float32(0.2) + np.float32(0.5), 0, 1),
        b.node("Sign", x): np.sign(image),
        b.node("ThresholdedRelu", x): np.where(image > 1, image, 0),
    }
    total = list(results)
    model = b.model(*total)
    got = compile_whole(load_whole(model), verify=False)(image)
    for name, ours in zip(total, got, strict=True):
        np.testing.assert_allclose(ours, results[name], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", ["MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin"])
def test_the_maximum_with_nan_is_nan(kind: str) -> None:
    b, image = Builder(), _image()
    window: dict[str, Any] = dict(kernel_shape=[3, 3]) if kind == "MaxPool" else {}
    window |= dict(axes=[-1]) if kind.startswith("Reduce") else {}
    got = _result(b, b.node(kind, b.input("x", _SHAPE), **window))
    parts = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (2, 3))
    expected = {
        "MaxPool": lambda: parts.max((-1, -2)),
        "GlobalMaxPool": lambda: image.max((2, 3), keepdims=True),
        "ReduceMax": lambda: image.max(-1, keepdims=True),
        "ReduceMin": lambda: image.min(-1, keepdims=True),
    }[kind]()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", ["Relu", "Clip", "Max", "HardSigmoid"])
def test_nan_passes_an_epilogue(kind: str) -> None:
    b = Builder()
    x = b.input("x", _SHAPE)
    y = b.convolution(x, (4, 4, 3, 3))
    more = {"Clip": [b.constant(0), b.constant(6)], "Max": [x]}.get(kind, [])
    got: np.ndarray = np.isnan(np.asarray(_result(b, b.node(kind, y, *more))))
    spoiled = np.lib.stride_tricks.sliding_window_view(
        np.pad(np.isnan(_image()).any(1), ((0, 0), (1, 1), (1, 1))), (3, 3), (1, 2)
    ).any((-1, -2))
    channels = np.asarray(spoiled)[:, None]
    assert (got >= np.broadcast_to(channels, got.shape)).all()
    assert np.any(spoiled)
    assert not np.any(got[..., 10:])


def test_a_chain_of_maxima_grows_no_faster_than_it_is_long() -> None:
    """Each writes one of its arguments three times: the shorter one."""
    b = Builder()
    x = b.input("x", (1, 16))
    y = b.node("Tanh", x)
    for n in range(20):
        padded = b.node(
            "Pad", b.node("Mul", x, b.constant([float(n)])), b.constant([0, 1, 0, 0], "int64")
        )
        y = b.node(
            "Max",
            y,
            b.node(
                "Slice",
                padded,
                b.constant([0], "int64"),
                b.constant([16], "int64"),
                b.constant([1], "int64"),
            ),
        )
    values = np.random.default_rng(0).standard_normal((1, 16)).astype(np.float32)
    values[0, 3] = np.nan
    model = b.model(b.node("MatMul", y, b.random(16, 4)), y)
    compiled = compile_whole(load_whole(model), progress=False)
    _, maxima = compiled(values)
    (_, expected) = ReferenceEvaluator(model).run(None, {"x": values})
    np.testing.assert_allclose(maxima, expected, rtol=1e-5)
