"""Channels last in the whole network, transposed only where something else is needed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amos.network.graph import Constant, Graph, Operand
from amos.network.passes.layouts import channels_last
from tests.network.graphs import evaluate_graph
from tests.network.images import Writer, count_operations


def _checked(graph: Graph) -> Graph:
    """The graph with channels last, which computes the same."""
    result = channels_last(graph)
    rng = np.random.default_rng(1)
    values = [(rng.standard_normal(each.shape) * 3).astype(each.dtype) for each in graph.inputs]
    pairs = zip(evaluate_graph(result, values), evaluate_graph(graph, values), strict=True)
    for mine, right in pairs:
        np.testing.assert_allclose(mine, right, rtol=1e-3, atol=1e-3)
    assert all(node.attributes.get("channels_last", True) for node in result.nodes)
    return result


def _transposes(graph: Graph) -> int:
    return count_operations(_checked(graph))["Transpose"]


def _residual(w: Writer) -> Graph:
    x = w.pooled(w.emit("Relu", w.biased(w.convolution(w.image(2, 3, 8, 8), 4, 3))))
    y = w.emit("Relu", w.biased(w.convolution(x, 4, 3)))
    return w.classified(w.emit("Relu", w.emit("Add", w.biased(w.convolution(y, 4, 3)), x)))


def _mobile(w: Writer) -> Graph:
    x = w.biased(w.convolution(w.image(1, 3, 8, 8), 4, 3))
    six = Constant(np.asarray(6, np.float32))
    x = w.emit("Min", w.emit("Relu", x), six)
    return w.classified(w.convolution(w.convolution(x, 4, 3, group=4), 8))


def _excited(w: Writer) -> Graph:
    x = w.convolution(w.image(1, 3, 6, 6), 8, 3)
    y = w.emit("Sigmoid", w.convolution(w.emit("Relu", w.convolution(w.mean(x), 2)), 8))
    return w.classified(w.emit("Mul", x, y))


def _excited_by_products(w: Writer) -> Graph:
    x = w.convolution(w.image(2, 3, 6, 6), 8, 3)
    y = w.emit("MatMul", w.mean(x, keepdims=False), w.random(8, 8))
    y = w.emit("Reshape", w.emit("Sigmoid", y), shape=(2, 8, 1, 1))
    return w.classified(w.emit("Mul", x, y))


def _dense(w: Writer) -> Graph:
    x = w.convolution(w.image(1, 3, 6, 6), 4, 3)
    for _ in range(2):
        y = w.emit("Relu", w.biased(w.emit("Mul", x, w.random(x.shape[1], 1, 1))))
        x = w.emit("Concat", x, w.convolution(y, 4, 3), axis=1)
    return w.classified(w.pooled(x, "AveragePool"))


def _u_shaped(w: Writer) -> Graph:
    """Returns an image of one channel, which is moved by nothing."""
    x = w.convolution(w.image(1, 1, 8, 8), 4, 3)
    y = w.convolution(w.pooled(x), 8, 3)
    y = w.transposed(y, w.random(8, 4, 2, 2), 2)
    x = w.convolution(w.emit("Concat", x, w.biased(y), axis=1), 4, 3)
    x = w.emit("Concat", x, w.upsampled(w.pooled(x)), axis=1)
    return w.graph(w.emit("Sigmoid", w.convolution(x, 1)))


def _shuffled(w: Writer) -> Graph:
    """Two halves of the channels, one through convolutions, shuffled and sliced."""
    return w.classified(w.convolution(_shuffle(w, w.convolution(w.image(1, 3, 5, 4), 8)), 5))


def _shuffle(w: Writer, x: Operand) -> Operand:
    n, c, *image = x.shape
    lower, right = (w.sliced(x, 1, begin, c // 2) for begin in (0, c // 2))
    x = w.emit("Concat", lower, w.emit("Relu", w.convolution(right, c // 2)), axis=1)
    x = w.emit("Reshape", x, shape=(n, 2, c // 2, *image))
    x = w.emit("Transpose", x, perm=(0, 2, 1, *range(3, 3 + len(image))))
    return w.emit("Reshape", x, shape=(n, c, *image))


def _of_pixels(w: Writer) -> Graph:
    """Channels become pixels between convolutions."""
    x = w.convolution(w.image(1, 1, 4, 4), 8)
    x = w.emit("Reshape", x, shape=(1, 2, 2, 2, 4, 4))
    x = w.emit("Transpose", x, perm=(0, 1, 4, 2, 5, 3))
    return w.classified(w.convolution(w.emit("Reshape", x, shape=(1, 2, 8, 8)), 4))


def _of_patches(w: Writer) -> Graph:
    """A transformer on what a convolution makes of patches."""
    x = w.convolution(w.image(1, 1, 8, 8), 6, 2, strides=(2, 2), pads=(0, 0, 0, 0))
    x = w.emit("Reshape", x, shape=(1, 6, x.shape[2] * x.shape[3]))
    return w.graph(w.emit("MatMul", w.emit("Transpose", x, perm=(0, 2, 1)), w.random(6, 4)))


def _of_channels_last(w: Writer) -> Graph:
    """A block that normalizes and multiplies with the channels last, as ConvNeXt has it."""
    x = w.convolution(w.image(1, 1, 5, 5), 4, 3)
    y = w.emit("Transpose", w.convolution(x, 4, 3, group=4), perm=(0, 2, 3, 1))
    y = w.emit("LayerNormalization", y, w.random(4), w.random(4), epsilon=1e-5)
    y = w.emit("Mul", w.emit("MatMul", y, w.random(4, 4)), w.random(4))
    y = w.emit("Add", x, w.emit("Transpose", y, perm=(0, 3, 1, 2)))
    return w.classified(y)


def _attention(w: Writer) -> Graph:
    """Heads of a sequence: queries, keys, values and results are transposed, nothing else."""
    x = w.image(1, 5, 8)
    heads = [
        w.emit("Reshape", w.emit("MatMul", x, w.random(8, 8)), shape=(1, 5, 2, 4)) for _ in range(3)
    ]
    query, value = (w.emit("Transpose", each, perm=(0, 2, 1, 3)) for each in heads[::2])
    key = w.emit("Transpose", heads[1], perm=(0, 2, 3, 1))
    query = w.emit("Mul", query, Constant(np.asarray(0.5, np.float32)))
    scores = w.emit("Softmax", w.emit("MatMul", query, key), axis=3)
    y = w.emit("Transpose", w.emit("MatMul", scores, value), perm=(0, 2, 1, 3))
    y = w.emit("Add", w.emit("Reshape", y, shape=(1, 5, 8)), x)
    return w.graph(w.emit("LayerNormalization", y, w.random(8), w.random(8), epsilon=1e-5))


def _of_signals(w: Writer) -> Graph:
    """Convolutions along time, then products of what each time has, which are last already."""
    x = w.emit("Gelu", w.convolution(w.image(2, 1, 12), 4, 3), approximate="none")
    x = w.convolution(w.pooled(x), 6, 3)
    y = w.emit("MatMul", w.emit("Transpose", x, perm=(0, 2, 1)), w.random(6, 6))
    return w.graph(y)


@pytest.mark.parametrize(
    ("write", "transposes"),
    [
        (_residual, 1),
        (_mobile, 1),
        (_excited, 1),
        (_excited_by_products, 1),
        (_dense, 1),
        (_u_shaped, 0),
        (_shuffled, 2),
        (_of_pixels, 1),
        (_of_patches, 0),
        (_of_channels_last, 0),
        (_attention, 4),
        (_of_signals, 0),
    ],
)
def test_few_values_are_transposed(write: Callable[[Writer], Graph], transposes: int) -> None:
    """The image where it has several channels, and what is shuffled."""
    assert _transposes(write(Writer())) == transposes


@pytest.mark.parametrize("image", [(5,), (4, 6), (2, 3, 4)])
def test_a_channel_shuffle_stands_where_the_channels_are_last(image: tuple[int, ...]) -> None:
    """Also where its result is returned, which is transposed there."""
    w = Writer()
    y = _shuffle(w, w.convolution(w.image(1, 3, *image), 8))
    graph = _checked(w.graph(w.convolution(w.sliced(y, 1, 1, 6), 5), y))
    moved = [len(node.shape) for node in graph.nodes if node.operation == "Transpose"]
    assert sorted(each - len(image) for each in moved) == [2, 2, 2, 3]


def test_a_flattened_image_has_its_channels_first() -> None:
    w = Writer()
    y = w.emit("Reshape", w.convolution(w.image(1, 1, 4, 4), 3, 3), shape=(1, 48))
    assert _transposes(w.graph(w.emit("MatMul", y, w.random(48, 2)))) == 1
    w = Writer()
    y = w.emit("Reshape", w.mean(w.convolution(w.image(1, 1, 4, 4), 3, 3)), shape=(1, 3))
    assert _transposes(w.graph(y)) == 0


def test_what_is_enlarged_in_the_end_is_transposed_before() -> None:
    w = Writer()
    x = w.emit("Relu", w.convolution(w.image(1, 1, 4, 4), 3, 3))
    graph = _checked(w.graph(w.upsampled(x)))
    (moved,) = (node for node in graph.nodes if node.operation == "Transpose")
    assert moved.shape == (1, 3, 4, 4)


def test_pooled_bytes_are_not_transposed() -> None:
    """What becomes larger is an image of channels alone in the end."""
    w = Writer()
    x = w.emit("Cast", w.emit("Abs", w.convolution(w.image(1, 1, 3, 3), 2, 3)), to="uint8")
    assert _transposes(w.classified(w.emit("Cast", x, to="float32"))) == 0


def test_what_two_read_as_it_was_is_transposed_once() -> None:
    w = Writer()
    x = w.convolution(w.image(1, 1, 4, 4), 3, 3)
    assert _transposes(w.graph(w.emit("Relu", x), w.emit("Sigmoid", x))) == 1


def test_tables_are_read_where_their_indices_are() -> None:
    w = Writer()
    x = w.emit("Cast", w.emit("Abs", w.convolution(w.image(1, 1, 3, 3), 2, 3)), to="uint8")
    x = w.emit("Gather", w.random(256), x, axis=0)
    assert _transposes(w.graph(w.convolution(x, 1))) == 0


def test_a_graph_without_images_stays() -> None:
    w = Writer()
    x = w.image(1, 5, 8)
    y = w.emit("Softmax", w.emit("Add", w.emit("MatMul", x, w.random(8, 8)), x), axis=1)
    counts = count_operations(_checked(w.graph(y)))
    assert counts == {"MatMul": 1, "Add": 1, "Softmax": 1}


def test_transposed_convolutions_without_a_kernel_keep_channels_second() -> None:
    w = Writer()
    x = w.convolution(w.image(1, 2, 6), 4, 3)
    y = w.transposed(x, w.random(4, 3, 2), 2, group=2)
    graph = channels_last(w.graph(y))
    (node,) = (node for node in graph.nodes if node.operation == "ConvTranspose")
    assert not node.attributes["channels_last"]


class _Random:
    """Appends random nodes that have channels, or lose them."""

    def __init__(self, draw: st.DrawFn, rank: int) -> None:
        self.draw = draw
        self.writer = w = Writer(draw(st.integers(0, 99)))
        shape = [draw(st.integers(1, 2)), *(draw(st.integers(1, 4)) for _ in range(rank - 1))]
        self.values: list[Operand] = [w.image(*shape)]
        if draw(st.booleans()):
            self.values.append(w.add_input("other", shape, "float32"))

    def choose(self, rank: int = 0) -> Operand:
        fit = [x for x in self.values if len(x.shape) >= rank]
        return self.draw(st.sampled_from(fit or self.values[:1]))

    def permutation(self, x: Operand) -> tuple[int, ...]:
        return tuple(self.draw(st.permutations(range(len(x.shape)))))

    def axis(self, x: Operand) -> int:
        return self.draw(st.integers(0, len(x.shape) - 1))

    def append(self) -> None:
        steps: list[Callable[[], Operand | None]] = [
            self._window, self._window, self._broadcast, self._constant, self._moved,
            self._reduced, self._reshaped, self._permuted, self._gathered, self._softmax,
            self._normed, self._joined,
        ]  # fmt: skip
        value = self.draw(st.sampled_from(steps))()
        if value is not None and 0 < np.prod(value.shape) < 5000:
            self.values.append(value)

    def _window(self) -> Operand | None:
        x = self.choose(3)
        if not 3 <= len(x.shape) <= 5:
            return None
        if min(x.shape[2:]) >= 2 and self.draw(st.booleans()):
            kind = self.draw(st.sampled_from(["MaxPool", "AveragePool"]))
            return self.writer.pooled(x, kind)
        group = x.shape[1] if self.draw(st.booleans()) else 1
        return self.writer.convolution(x, x.shape[1], self.draw(st.sampled_from([1, 3])), group)

    def _broadcast(self) -> Operand | None:
        x, y = self.choose(), self.choose()
        try:
            np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            return None
        return self.writer.emit(self.draw(st.sampled_from(["Add", "Mul", "Max"])), x, y)

    def _constant(self) -> Operand:
        x = self.choose()
        shape = [self.draw(st.sampled_from([1, each])) for each in x.shape]
        first = self.draw(st.integers(0, len(shape)))
        operands = [x, self.writer.random(*shape[first:])]
        return self.writer.emit("Add", *self.draw(st.permutations(operands)))

    def _moved(self) -> Operand:
        x, w = self.choose(), self.writer
        axis, rank = self.axis(x), len(x.shape)
        pads = tuple(self.draw(st.integers(0, 1)) for _ in range(rank))
        kind = self.draw(st.sampled_from(["Slice", "Pad", "Tile", "Expand", "Relu", "Cast"]))
        if kind == "Slice":
            return w.sliced(x, axis, x.shape[axis] // 2, x.shape[axis] - x.shape[axis] // 2)
        if kind == "Pad":
            return w.emit("Pad", x, before=pads, after=(0,) * rank, mode="constant", value=1.0)
        if kind == "Tile":
            return w.emit("Tile", x, repeats=tuple(n + 1 for n in pads))
        if kind == "Expand":
            shape = (2, *(2 if extent == 1 else extent for extent in x.shape))
            return w.emit("Expand", x, shape=shape[self.draw(st.integers(0, 1)) :])
        return w.emit(kind, x, **({"to": "float32"} if kind == "Cast" else {}))

    def _reduced(self) -> Operand:
        x = self.choose()
        keepdims = self.draw(st.booleans())
        if self.draw(st.booleans()):
            axes = self.draw(st.sets(st.integers(0, len(x.shape) - 1), min_size=1))
            kind = self.draw(st.sampled_from(["ReduceMean", "ReduceMax"]))
            return self.writer.emit(kind, x, axes=tuple(sorted(axes)), keepdims=keepdims)
        attributes = {"axis": self.axis(x), "keepdims": keepdims, "select_last_index": False}
        return self.writer.emit("Cast", self.writer.emit("ArgMax", x, **attributes), to="float32")

    def _reshaped(self) -> Operand:
        x = self.choose()
        shape = [*x.shape]
        axis = self.axis(x) if shape else 0
        for _ in range(2):
            kind = self.draw(st.sampled_from(["merge", "split", "one"]))
            if kind == "merge" and axis + 1 < len(shape):
                shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
            elif kind == "split" and axis < len(shape) and shape[axis] % 2 == 0:
                shape[axis : axis + 1] = [2, shape[axis] // 2]
            elif kind == "one":
                shape.insert(axis, 1)
        return self.writer.emit("Reshape", x, shape=tuple(shape))

    def _permuted(self) -> Operand:
        x = self.choose()
        perm = (0, *range(2, len(x.shape)), 1) if len(x.shape) > 2 else self.permutation(x)
        perm = self.draw(st.sampled_from([perm, self.permutation(x)]))
        return self.writer.emit("Transpose", x, perm=perm)

    def _gathered(self) -> Operand:
        x = self.choose()
        axis = self.axis(x)
        shape = self.draw(st.sampled_from([(), (3,), (2, 2)]))
        index = self.writer.rng.integers(0, x.shape[axis], shape)
        return self.writer.emit("Gather", x, Constant(np.asarray(index)), axis=axis)

    def _softmax(self) -> Operand:
        x = self.choose()
        return self.writer.emit("Softmax", x, axis=self.axis(x))

    def _normed(self) -> Operand | None:
        x, w = self.choose(3), self.writer
        if len(x.shape) < 3:
            return None
        scale, bias = w.random(x.shape[1]), w.random(x.shape[1])
        attributes = {"num_groups": 1, "epsilon": 1e-3, "axis": 1}
        return w.emit("GroupNormalization", x, scale, bias, **attributes)

    def _joined(self) -> Operand:
        x = self.choose()
        same = [each for each in self.values if each.shape == x.shape]
        operand = self.draw(st.sampled_from([*same, self.writer.random(*x.shape)]))
        return self.writer.emit("Concat", x, operand, axis=self.axis(x))


@st.composite
def _graphs(draw: st.DrawFn) -> Graph:
    graph = _Random(draw, draw(st.integers(3, 5)))
    for _ in range(draw(st.integers(2, 12))):
        graph.append()
        graph.values = [x for x in graph.values if x.shape]
    return graph.writer.graph(*graph.values[-3:])


@settings(max_examples=100, deadline=None)
@given(_graphs())
def test_random_graphs_compute_the_same(graph: Graph) -> None:
    _checked(graph)
