"""Denormal weights count as zero beside weights of usual size."""

from __future__ import annotations

import numpy as np

from amos.network.graph import Constant, Graph
from amos.network.passes.denormals import without_denormals
from tests.network.graphs import evaluate_graph
from tests.network.images import Writer

_TINY = np.float32(1e-40)


def _graph(large: float) -> Graph:
    w = Writer()
    filters = np.full((4, 3, 1, 1), large, np.float32)
    filters[1:, 0] = _TINY
    attributes = {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "group": 1}
    x = w.emit("Conv", w.image(1, 3, 5, 5), Constant(filters), channels_last=False, **attributes)
    matrix = np.full((100, 8), large, np.float32)
    matrix[:, ::2] = -_TINY
    x = w.emit("Reshape", x, shape=(1, 100))
    return w.graph(w.emit("MatMul", x, Constant(matrix)))


def _constants(graph: Graph) -> list[np.ndarray]:
    return [
        each.array for node in graph.nodes for each in node.operands if isinstance(each, Constant)
    ]


def test_denormal_weights_become_zeros() -> None:
    arrays = _constants(without_denormals(_graph(0.5)))
    assert len(arrays) == 2
    for array in arrays:
        assert {*np.unique(array).tolist()} == {0.0, 0.5}


def test_weights_that_are_all_small_stay() -> None:
    graph = _graph(1e-35)
    assert without_denormals(graph) is graph


def test_results_stay_what_they_are() -> None:
    graph = _graph(0.5)
    ones = np.ones((1, 3, 5, 5), np.float32)
    (mine,), (right,) = (evaluate_graph(g, [ones]) for g in (without_denormals(graph), graph))
    np.testing.assert_allclose(mine, right, rtol=1e-6, atol=1e-30)
