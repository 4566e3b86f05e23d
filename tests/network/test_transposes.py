"""Transposes that cancel around slices, sums of constants and channel shuffles."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import amos
from amos.network.transposes import with_fewer_transposes
from tests.network.models import Builder, load_whole, residual_network


def _shuffled(image: tuple[int, ...]) -> tuple[Builder, str]:
    """Two halves of the channels of an image, one through a convolution, shuffled and sliced."""
    b, ones = Builder(), [1] * len(image)
    x = b.convolution(b.input("x", (1, 3, *image)), (8, 3, *ones))
    half, end, axis = (b.constant([n], "int64") for n in (4, 8, 1))
    left = b.node("Slice", x, b.constant([0], "int64"), half, axis)
    right = b.convolution(b.node("Slice", x, half, end, axis), (4, 4, *ones))
    left = b.node("Mul", left, b.constant(0.5))
    y = b.node("Concat", left, b.node("Relu", right), axis=1)
    y = b.node("Reshape", y, b.constant([1, 2, 4, *image], "int64"))
    y = b.node("Transpose", y, perm=[0, 2, 1, *range(3, 3 + len(image))])
    y = b.node("Reshape", y, b.constant([1, 8, *image], "int64"))
    y = b.node("Slice", y, b.constant([1], "int64"), b.constant([7], "int64"), axis)
    return b, b.convolution(y, (5, 6, *ones))


@pytest.mark.parametrize("image", [(5,), (4, 6)])
def test_a_channel_shuffle_stands_where_the_channels_are_last(image: tuple[int, ...]) -> None:
    """Also where its result is returned, which is transposed there."""
    b, result = _shuffled(image)
    model = b.model(result, b.nodes[-2].output[0])
    network = amos.load_network(model)
    moved = [node for node in network.graph.nodes if node.operation == "permute_dims"]
    assert sorted(len(node.shape) - len(image) for node in moved) == [2, 2, 2, 3]
    values = np.random.default_rng(1).standard_normal((1, 3, *image)).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": values})
    compiled = amos.compile(network, verify=False, progress=False)
    for mine, right in zip(compiled(values), expected, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5)


def test_a_graph_with_nothing_to_cancel_stays() -> None:
    graph = load_whole(residual_network()).graph
    assert with_fewer_transposes(graph) is graph
