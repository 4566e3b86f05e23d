"""Operators that no kernel computes, as functions: which are one, and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from amos.network.external.straight_line import COPY, Place
from amos.network.graph import Constant, Graph, GraphBuilder, Node
from amos.network.loops.fusion import fuse
from tests.network.graphs import evaluate_graph
from tests.network.lines import graph_of, line_of, run_graph

_WINDOW = dict(strides=(1, 1), dilations=(1, 1), pads=(1, 1, 1, 1), channels_last=True)


def _functions(graph: Graph) -> list[list[str]]:
    """The operators of each function, in order."""
    return [[node.operation for node in each.nodes] for each in fuse(graph, set(), set())]


def test_elementwise_operators_are_one_function() -> None:
    def make(b: GraphBuilder, x: Node, y: Node) -> Any:
        total = b.emit("Add", b.emit("Relu", x), b.emit("Transpose", y, perm=(1, 0)))
        return b.emit("Mul", total, Constant(np.array(2, np.float32)))

    graph = graph_of(make, ((3, 5), "float32"), ((5, 3), "float32"))
    assert _functions(graph) == [["Relu", "Transpose", "Add", "Mul"]]


def test_sums_are_computed_with_what_is_around_them() -> None:
    """What is read ahead of a sum and behind it is a tensor, as nothing computes it twice."""

    def make(b: GraphBuilder, x: Node) -> Any:
        square = b.emit("Mul", x, x)
        total = b.emit("ReduceSum", square, axes=(1,), keepdims=True)
        root = b.emit("Sqrt", b.emit("Add", total, Constant(np.array(1, np.float32))))
        return b.emit("Div", square, root)

    graph = graph_of(make, ((3, 50), "float32"))
    assert _functions(graph) == [["Mul"], ["ReduceSum", "Add", "Sqrt", "Div"]]


def test_slices_that_begin_elsewhere_share_a_function() -> None:
    def make(b: GraphBuilder, x: Node) -> list[Any]:
        doubled = b.emit("Softmax", x, axis=1)
        wide = [(x, (0, 8)), (x, (2, 5)), (doubled, (1, 7)), (doubled, (0, 0))]
        pieces = [
            b.emit("Slice", each, starts=starts, steps=(1, 2), sizes=(2, 5))
            for each, starts in wide
        ]
        pieces.append(b.emit("Slice", x, starts=(3, 19), steps=(-1, -1), sizes=(2, 5)))
        return pieces

    graph = graph_of(make, ((4, 20), "float32"))
    assert len(line_of(graph)[1]) == 3
    x = np.random.default_rng(0).standard_normal((4, 20)).astype(np.float32)
    for result, right in zip(run_graph(graph, x), evaluate_graph(graph, [x]), strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-5)


def test_small_parts_that_stay_together_are_copied() -> None:
    def make(b: GraphBuilder, x: Node, y: Node) -> list[Any]:
        total = b.emit("ReduceSum", x, axes=(1,), keepdims=True)
        number = Constant(np.full((1, 1, 4), 3, np.float32))
        parts = b.emit("Concat", x, total, number, x, axis=1)
        return [b.emit("Sigmoid", b.emit("Concat", parts, parts, axis=0)), parts]

    graph = graph_of(make, ((1, 6, 4), "float32"), ((1, 2, 4), "float32"))
    line, functions = line_of(graph)
    copied = [each for each in line.steps if each.function == COPY]
    assert [each.buffers[1].begin for each in copied] == [0, 96, 112, 128]
    assert len(functions) == 2
    x = np.random.default_rng(0).standard_normal((1, 6, 4)).astype(np.float32)
    inputs = [x, x[:, :2]]
    for result, right in zip(run_graph(graph, *inputs), evaluate_graph(graph, inputs), strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-5)


def test_windows_read_tensors() -> None:
    """What is ahead of them would be computed once for each of their taps."""

    def make(b: GraphBuilder, x: Node) -> Any:
        pooled = b.emit("MaxPool", b.emit("Tanh", x), kernel_shape=(3, 3), **_WINDOW)
        return b.emit("Relu", pooled)

    graph = graph_of(make, ((1, 8, 8, 16), "float32"))
    assert _functions(graph) == [["Tanh"], ["MaxPool", "Relu"]]


def test_views_are_the_memory_of_what_they_view() -> None:
    def make(b: GraphBuilder, x: Node) -> Any:
        y = b.emit("Softmax", b.emit("Reshape", x, shape=(6, 4)), axis=1)
        return b.emit("Reshape", y, shape=(24,))

    line, _ = line_of(graph_of(make, ((2, 3, 4), "float32")))
    ((source, target),) = (step.buffers for step in line.steps)
    assert (source.place, source.shape) == (Place.INPUT, (6, 4))
    assert (target.place, target.shape) == (Place.OUTPUT, (6, 4))
    assert not line.arena_bytes


def test_views_of_what_is_computed_beside_them_are_no_tensors() -> None:
    def make(b: GraphBuilder, x: Node) -> Any:
        piece = b.emit("Slice", x, starts=(0, 8), steps=(1, 1), sizes=(5, 8))
        heads = b.emit("Reshape", piece, shape=(5, 2, 4))
        return b.emit("Transpose", heads, perm=(1, 0, 2))

    graph = graph_of(make, ((5, 24), "float32"))
    assert _functions(graph) == [["Slice", "Reshape", "Transpose"]]


def test_slices_are_computed_in_each_of_their_readers() -> None:
    def make(b: GraphBuilder, x: Node) -> Any:
        piece = b.emit("Slice", x, starts=(0, 8), steps=(1, 1), sizes=(5, 8))
        return [b.emit("Relu", piece), b.emit("Tanh", piece)]

    assert _functions(graph_of(make, ((5, 24), "float32"))) == [
        ["Slice", "Relu"],
        ["Slice", "Tanh"],
    ]


def test_concatenations_of_many_parts_are_functions() -> None:
    """A reader would check for each element in which part it is."""

    def concatenate(b: GraphBuilder, x: Node, count: int) -> Any:
        return b.emit("Relu", b.emit("Concat", *[x] * count, axis=1))

    def make(b: GraphBuilder, x: Node) -> Any:
        return [concatenate(b, x, 8), concatenate(b, x, 9)]

    graph = graph_of(make, ((3, 2), "float32"))
    assert _functions(graph) == [["Concat", "Relu"], ["Concat"], ["Relu"]]


def test_results_that_are_equal_inputs_or_constants_are_copied() -> None:
    def make(b: GraphBuilder, x: Node) -> Any:
        y = b.emit("Relu", x)
        seven = b.emit("Identity", Constant(np.full(3, 7, np.float32)))
        return [y, b.emit("Reshape", y, shape=(6,)), y, x, seven, x]

    values = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    results = run_graph(graph_of(make, ((2, 3), "float32")), values)
    right = np.maximum(values, 0)
    expected = [right, right.reshape(6), right, values, [7] * 3, values]
    for result, wanted_result in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted_result)


def test_equal_functions_are_one() -> None:
    """Whatever they read."""

    def make(b: GraphBuilder, x: Any) -> Any:
        weights = [Constant(np.full(40, n, np.float32)) for n in range(3)]
        for weight in weights:
            x = b.emit("Softmax", b.emit("Add", x, weight), axis=1)
        return x

    line, functions = line_of(graph_of(make, ((3, 40), "float32")))
    assert (len(line.steps), len(functions), len(line.constants)) == (4, 3, 3)


def test_no_function_has_many_operators() -> None:
    """An expression of hundreds would take TVM minutes."""

    def make(b: GraphBuilder, x: Any) -> Any:
        for number in range(100):
            x = b.emit("Add" if number % 2 else "Mul", x, x)
        return x

    assert [len(each) for each in _functions(graph_of(make, ((8,), "float32")))] == [20, 40, 40]


@st.composite
def _graphs(draw: st.DrawFn) -> Graph:
    """Random graphs of elementwise operators, moves, sums and views of small matrices."""
    b = GraphBuilder()
    values: list[Any] = [b.add_input("x0", (4, 6), "float32"), b.add_input("x1", (4, 6), "float32")]

    def value() -> Any:
        return values[draw(st.integers(0, len(values) - 1))]

    def wide(x: Any) -> Any:
        return b.emit("Expand", x, shape=(4, 6))

    def transposed(x: Any) -> Any:
        return b.emit("Reshape", b.emit("Transpose", x, perm=(1, 0)), shape=(4, 6))

    def joined(x: Any, axis: int) -> Any:
        starts, sizes = ((1, 0), (2, 6)) if axis == 0 else ((0, 2), (4, 3))
        parts = [
            b.emit("Slice", each, starts=starts, steps=(1, 1), sizes=sizes) for each in (x, value())
        ]
        return b.emit("Concat", *parts, axis=axis)

    makers: dict[str, Callable[[], Any]] = {
        "sum": lambda: b.emit("Add", value(), value()),
        "product": lambda: b.emit("Min", value(), b.emit("Abs", value())),
        "mean": lambda: wide(b.emit("ReduceMean", value(), axes=(1,), keepdims=True)),
        "largest": lambda: wide(b.emit("ReduceMax", value(), axes=(0,), keepdims=True)),
        "softmax": lambda: b.emit("Softmax", value(), axis=1),
        "transpose": lambda: transposed(value()),
        "rows": lambda: joined(value(), 0),
        "columns": lambda: joined(value(), 1),
        "view": lambda: b.emit("Reshape", b.emit("Relu", value()), shape=(6, 4)),
        "indices": lambda: b.emit("Gather", value(), Constant(np.array([3, 0, 0, 2])), axis=0),
    }
    for kind in draw(st.lists(st.sampled_from(sorted(makers)), min_size=1, max_size=14)):
        graph = makers[kind]()
        values.append(graph if graph.shape == (4, 6) else b.emit("Reshape", graph, shape=(4, 6)))
    return b.finish([values[-1], value(), b.emit("Reshape", value(), shape=(24,))])


@settings(max_examples=25, deadline=None)
@given(_graphs())
def test_functions_compute_what_their_operators_do(graph: Graph) -> None:
    arrays = [*np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)]
    for result, expected in zip(
        run_graph(graph, *arrays), evaluate_graph(graph, arrays), strict=True
    ):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
