"""Denormal weights count as zero beside weights of usual size."""

from __future__ import annotations

import numpy as np

import amos
from amos.network.network import Network
from tests.network.models import Builder

_TINY = np.float32(1e-40)


def _model(large: float) -> Network:
    b = Builder()
    filters = np.full((4, 3, 1, 1), large, np.float32)
    filters[1:, 0] = _TINY
    x = b.node("Conv", b.input("x", (1, 3, 5, 5)), b.constant(filters))
    x = b.node("Flatten", x)
    matrix = np.full((8, 100), large, np.float32)
    matrix[::2] = -_TINY
    network = amos.load_network(b.model(b.node("Gemm", x, b.constant(matrix), transB=1)))
    assert isinstance(network, Network)
    return network


def _constants(network: Network) -> list[np.ndarray]:
    return [
        each.array
        for node in network.graph.nodes
        for each in node.operands
        if hasattr(each, "array") and each.array.size > 1
    ]


def test_denormal_weights_become_zeros() -> None:
    arrays = _constants(_model(0.5))
    assert len(arrays) == 2
    for array in arrays:
        values = {*np.unique(array).tolist()}
        assert values == {0.0, 0.5}


def test_weights_that_are_all_small_stay() -> None:
    for array in _constants(_model(1e-35)):
        assert np.abs(array).min() == _TINY


def test_results_stay_what_they_are() -> None:
    compiled = amos.compile(_model(0.5), progress=False)
    assert compiled(np.ones((1, 3, 5, 5), np.float32)).shape == (1, 8)
    assert all(check.passed for check in compiled.checks)
