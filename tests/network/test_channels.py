"""Convolutions of integers whose channels fill whole vectors."""

from __future__ import annotations

import numpy as np
import pytest

from amos.network.graph import Constant, Graph, Operand
from amos.network.passes.channels import count_filled, fill_channels
from tests.network.graphs import evaluate_graph
from tests.network.images import Writer

_ONES = {"strides": (1, 1), "dilations": (1, 1), "group": 1, "channels_last": False}


class _Bytes(Writer):
    """Writes convolutions of bytes."""

    def bytes(self, *shape: int) -> Operand:
        return self.add_input("image", shape, "uint8")

    def summed(self, x: Operand, features: int, window: int = 1) -> Operand:
        weight = self.rng.integers(-127, 128, (features, x.shape[1], window, window))
        pads = (window // 2,) * 4
        return self.emit("Conv", x, Constant(weight.astype(np.int8)), pads=pads, **_ONES)

    def rounded(self, x: Operand) -> Operand:
        """Integers with a bias and a scale for each channel, as bytes."""
        channels = x.shape[1]
        bias = self.rng.integers(-3000, 3000, (1, channels, 1, 1)).astype(np.int32)
        scale = self.rng.uniform(0.001, 0.002, (channels, 1, 1)).astype(np.float32)
        x = self.emit("Cast", self.emit("Add", x, Constant(bias)), to="float32")
        x = self.emit("Div", self.emit("Mul", x, Constant(scale)), self.number(0.5))
        x = self.emit("Max", self.emit("Round", x), self.number(0))
        return self.emit("Cast", self.emit("Min", x, self.number(255)), to="uint8")

    def number(self, value: float) -> Constant:
        return Constant(np.array(value, np.float32))


def _channels(graph: Graph) -> list[int]:
    return [node.shape[1] for node in graph.nodes if node.operation == "Conv"]


def _checked(graph: Graph) -> Graph:
    """The graph with further channels, which computes the same."""
    result = fill_channels(graph)
    rng = np.random.default_rng(1)
    values = [rng.integers(0, 256, each.shape).astype(each.dtype) for each in graph.inputs]
    pairs = zip(evaluate_graph(result, values), evaluate_graph(graph, values), strict=True)
    for mine, right in pairs:
        assert right.any() and mine.dtype == right.dtype
        np.testing.assert_array_equal(mine, right)
    return result


@pytest.mark.parametrize(
    ("channels", "filled"),
    [
        (61, 64),
        (122, 128),
        (243, 256),
        (486, 512),
        (30, 32),
        (15, 16),
        (12, 12),
        (24, 24),
        (80, 80),
    ],
)
def test_few_channels_are_added(channels: int, filled: int) -> None:
    assert count_filled(channels) == filled


def test_channels_between_convolutions_fill_vectors() -> None:
    w = _Bytes()
    x = w.pooled(w.rounded(w.summed(w.bytes(1, 5, 6, 6), 61, 3)))
    y = w.rounded(w.summed(x, 61, 3))
    both = w.rounded(w.emit("Add", w.summed(y, 30), w.summed(x, 30)))
    assert _channels(_checked(w.graph(w.summed(both, 20)))) == [64, 64, 32, 32, 20]


def test_channels_that_others_read_stay() -> None:
    w = _Bytes()
    x, y = (w.rounded(w.summed(w.bytes(1, 5, 4, 4), 61)) for _ in range(2))
    sliced = w.sliced(y, 1, 3, 16)
    graph = _checked(w.graph(w.summed(x, 8), x, w.summed(y, 8), w.summed(sliced, 8)))
    assert _channels(graph) == [61, 61, 8, 8, 8]


def test_what_is_added_to_channels_that_stay_stays_as_well() -> None:
    w = _Bytes()
    image = w.bytes(1, 61, 4, 4)
    floats = w.emit("Cast", w.summed(image, 61), to="float32")
    total = w.emit("Add", floats, w.emit("Cast", image, to="float32"))
    graph = _checked(w.graph(w.summed(w.emit("Cast", total, to="uint8"), 8)))
    assert _channels(graph) == [61, 8]


def test_channels_that_are_no_channels_of_the_sum_stay() -> None:
    w = _Bytes()
    signal, image = w.add_input("signal", (1, 3, 4), "uint8"), w.bytes(1, 3, 61, 4)
    weight = Constant(np.ones((61, 3, 1), np.int8))
    line = dict(strides=(1,), dilations=(1,), pads=(0, 0), group=1, channels_last=False)
    total = w.emit("Add", w.summed(image, 61), w.emit("Conv", signal, weight, **line))
    graph = _checked(w.graph(w.summed(w.emit("Cast", total, to="uint8"), 8)))
    assert _channels(graph) == [61, 61, 8]


def test_floats_stay() -> None:
    w = Writer()
    graph = w.graph(w.convolution(w.convolution(w.image(1, 4, 3, 3), 61), 8))
    assert fill_channels(graph) is graph


def test_values_of_one_axis_have_no_channels() -> None:
    writer = _Bytes()
    x = writer.add_input("x", (8,), "float32")
    graph = writer.finish([writer.emit("Add", x, writer.number(1))])
    assert [node.shape for node in fill_channels(graph).nodes] == [(8,), (8,)]
