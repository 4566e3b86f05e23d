"""Transposed convolutions by phases, in networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.network.models import Builder, compile_whole, load_whole


@pytest.mark.parametrize(
    ("shape", "kernel", "window"),
    [
        ((2, 16, 9), (16,), {"strides": [8], "pads": [4, 4]}),
        ((1, 8, 7), (4,), {"strides": [2], "pads": [1, 1]}),
        ((1, 8, 5, 6), (4, 2), {"strides": [2, 1], "pads": [1, 0, 1, 0]}),
    ],
)
def test_transposed_convolutions_of_one_axis_or_of_axes_that_differ(
    shape: tuple[int, ...], kernel: tuple[int, ...], window: dict[str, Any]
) -> None:
    b = Builder()
    y = b.node("ConvTranspose", b.input("x", shape), b.random(shape[1], 6, *kernel), **window)
    model = b.model(b.node("Tanh", y))
    values = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    network = load_whole(model)
    assert [task.operator.name for task in network.tasks] == [f"transposed_conv{len(kernel)}d"]
    compiled = compile_whole(network, progress=False)
    assert not dict(compiled.fallbacks)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": values})
    np.testing.assert_allclose(compiled(values), expected, rtol=1e-4, atol=1e-5)
