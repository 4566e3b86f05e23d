"""Convolutions without the taps that read only padding."""

from __future__ import annotations

import numpy as np
import pytest

from amos.network.graph import Constant, Graph
from amos.network.passes.simplify import without_idle_taps
from tests.network.graphs import evaluate_graph
from tests.network.images import Writer


def _taps(graph: Graph) -> list[int]:
    """Extents of the window of the only convolution."""
    (node,) = (node for node in graph.nodes if node.operation == "Conv")
    return list(node.operands[1].shape[2:])


@pytest.mark.parametrize(
    ("image", "window", "attributes", "before"),
    [
        ((2, 1), (3, 3), {"pads": (1, 1, 1, 1)}, [3, 1]),
        ((1, 1), (5, 3), {"pads": (2, 1, 2, 1), "strides": (2, 1)}, [1, 1]),
        ((2, 2), (3, 3), {"pads": (2, 2, 2, 2), "dilations": (2, 2)}, [1, 1]),
        ((2, 3), (4, 4), {"pads": (2, 0, 1, 1), "strides": (2, 1)}, [2, 3]),
        ((1,), (5,), {"pads": (4, 1)}, [2]),
        ((1,), (5,), {"pads": (2, 4)}, [3]),
        ((1, 2, 3), (3, 3, 3), {"pads": (1,) * 6}, [1, 3, 3]),
        ((1,), (2,), {"pads": (1, 3), "dilations": (3,)}, [1]),
        # What tap 0 would take along is more than there is.
        ((1,), (2,), {"pads": (2, 1), "dilations": (3,)}, [2]),
        ((3, 3), (3, 3), {"pads": (1, 1, 1, 1)}, [3, 3]),
    ],
)
def test_the_result_is_the_same(
    image: tuple[int, ...],
    window: tuple[int, ...],
    attributes: dict[str, tuple[int, ...]],
    before: list[int],
) -> None:
    w, ones = Writer(), (1,) * len(image)
    settings = {"strides": ones, "dilations": ones, "group": 2, "channels_last": False} | attributes
    weight = w.random(4, 2, *window)
    graph = w.graph(w.emit("Conv", w.image(1, 4, *image), weight, **settings))
    fewer = without_idle_taps(graph)
    assert _taps(fewer) == before
    value = w.random(1, 4, *image).array
    (mine,), (right,) = evaluate_graph(fewer, [value]), evaluate_graph(graph, [value])
    np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("readers", [1, 2])
def test_dequantized_weights_lose_taps_where_nothing_else_reads_them(readers: int) -> None:
    w = Writer()
    stored = Constant(w.rng.integers(-127, 128, (16, 8, 3, 3)).astype(np.int8))
    scales = Constant(w.rng.uniform(0.001, 0.004, 16).astype(np.float32))
    weight = w.emit("DequantizeLinear", stored, scales, Constant(np.zeros(16, np.int8)), axis=0)
    attributes = {"strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "group": 1}
    y = w.emit("Conv", w.image(1, 8, 1, 2), weight, channels_last=False, **attributes)
    graph = w.graph(y, *[weight] * (readers - 1))
    fewer = without_idle_taps(graph)
    assert _taps(fewer) == ([1, 3] if readers == 1 else [3, 3])
    value = w.random(1, 8, 1, 2).array
    pairs = zip(evaluate_graph(fewer, [value]), evaluate_graph(graph, [value]), strict=True)
    for mine, right in pairs:
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6)
