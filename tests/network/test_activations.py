"""Activations that kernels compute behind products: what onnxruntime makes of all elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amos.network.sessions import plain_session
from tests.network.models import Builder, compile_whole, load_whole

_SHAPE = (1, 8, 6, 10)
ACTIVATIONS: list[tuple[str, dict[str, Any]]] = [
    ("LeakyRelu", {}),
    ("LeakyRelu", {"alpha": 0.3}),
    ("LeakyRelu", {"alpha": -0.5}),
    ("LeakyRelu", {"alpha": 2.0}),
    ("Elu", {}),
    ("Elu", {"alpha": 0.5}),
    ("Selu", {}),
    ("Selu", {"alpha": 1.5, "gamma": 0.5}),
    ("PRelu", {}),
]


def _activated(b: Builder, kind: str, x: str, attributes: dict[str, Any]) -> str:
    slopes = b.random(8, 1, 1)
    return b.node(kind, x, *([slopes] if kind == "PRelu" else []), **attributes)


@pytest.mark.parametrize(("kind", "attributes"), ACTIVATIONS)
def test_behind_a_convolution_one_kernel_computes_it(kind: str, attributes: dict[str, Any]) -> None:
    b = Builder()
    y = b.node("Conv", b.input("x", _SHAPE), b.random(8, 8, 3, 3), pads=[1, 1, 1, 1])
    model = b.model(_activated(b, kind, y, attributes))
    network = load_whole(model)
    assert {node.operation for node in network.grouping.ungrouped} <= {"Transpose", "Reshape"}
    compiled = compile_whole(network, verify=False, progress=False)
    values = np.random.default_rng(1).standard_normal(_SHAPE).astype(np.float32)
    (expected,) = plain_session(model).run(None, {"x": values})
    np.testing.assert_allclose(compiled(values), expected, rtol=1e-5, atol=2e-6)


def test_zeros_infinities_and_nan() -> None:
    b = Builder()
    x = b.input("x", _SHAPE)
    model = b.model(*(_activated(b, kind, x, attributes) for kind, attributes in ACTIVATIONS))
    values = np.random.default_rng(2).standard_normal(_SHAPE).astype(np.float32)
    values[0, :, 0, :6] = np.nan, np.inf, -np.inf, 0.0, -0.0, -90.0
    compiled = compile_whole(load_whole(model), verify=False, progress=False)
    for got, right in zip(
        compiled(values), plain_session(model).run(None, {"x": values}), strict=True
    ):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=2e-7)
