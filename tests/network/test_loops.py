"""Operators that the engine would compute inexactly, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import amos
from tests.network.models import Builder


def _results(b: Builder, kind: int, *names: str) -> Any:
    ports = [helper.make_tensor_value_info(name, kind, None) for name in names]
    graph = helper.make_graph(b.nodes, "small", b.inputs, ports, b.weights)
    opsets = [helper.make_opsetid("", 21)]
    model: ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return amos.compile(amos.load_network(model), progress=False, verify=False)


def test_halves_are_summed_as_floats() -> None:
    """A sum in float16 stands still where what is added is less than half of its last digit."""
    b = Builder()
    x = b.input("x", (1, 2, 60, 60), TensorProto.FLOAT16)
    names = [
        b.node("GlobalAveragePool", x),
        b.node("AveragePool", x, kernel_shape=[60, 60]),
        b.node("ReduceMean", x, b.constant([2, 3], "int64")),
    ]
    values = np.random.default_rng(0).uniform(9, 11, (1, 2, 60, 60)).astype(np.float16)
    expected = values.astype(np.float64).mean((2, 3), keepdims=True)
    for result in _results(b, TensorProto.FLOAT16, *names)(values):
        assert result.dtype == np.float16
        np.testing.assert_allclose(result, expected, rtol=1e-3)


def test_variances_of_halves_are_summed_as_floats() -> None:
    b = Builder()
    x = b.input("x", (1, 2, 60, 60), TensorProto.FLOAT16)
    scale, shift = b.constant([1, 1], "float16"), b.constant([0, 0], "float16")
    norm = _results(b, TensorProto.FLOAT16, b.node("InstanceNormalization", x, scale, shift))
    values = np.random.default_rng(0).uniform(0, 2, (1, 2, 60, 60)).astype(np.float16)
    centered = values - values.mean((2, 3), np.float64, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean((2, 3), keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm(values), expected, atol=4e-3)


@pytest.mark.parametrize("behind_a_convolution", [False, True])
def test_norms_of_a_large_mean(behind_a_convolution: bool) -> None:
    """Behind a convolution, which here changes nothing, channels are the last axis."""
    b = Builder()
    x = b.input("x", (2, 6, 8, 8))
    scale, shift = b.rng.uniform(1, 2, 6), b.rng.standard_normal(6)
    if behind_a_convolution:
        x = b.node("Conv", x, b.constant(np.eye(6)[:, :, None, None]))
    group = b.node(
        "GroupNormalization", x, b.constant(scale), b.constant(shift), num_groups=2, epsilon=1e-5
    )
    instance = b.node("InstanceNormalization", x, b.constant(scale), b.constant(shift))
    values = np.random.default_rng(1).standard_normal((2, 6, 8, 8)).astype(np.float32) + 500
    results = _results(b, TensorProto.FLOAT, group, instance)(values)
    for result, groups in zip(results, (2, 6), strict=True):
        x_ = values.astype(np.float64).reshape(2, groups, -1)
        centered = x_ - x_.mean(2, keepdims=True)
        standard = centered / np.sqrt((centered**2).mean(2, keepdims=True) + 1e-5)
        expected = standard.reshape(values.shape) * scale[:, None, None] + shift[:, None, None]
        np.testing.assert_allclose(result, expected, atol=1e-3)
