"""Scales that become part of weights, and moves that go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amos.network.graph import Constant, Graph, Operand
from amos.network.passes.simplify import fold_scales, merge_moves
from tests.network.graphs import evaluate_graph
from tests.network.images import Writer, count_operations

_Pass = Callable[[Graph], Graph]


def _checked(graph: Graph, transform: _Pass) -> Graph:
    """What a pass makes of a graph, which computes the same."""
    result = transform(graph)
    rng = np.random.default_rng(1)
    values = [rng.standard_normal(each.shape).astype(each.dtype) for each in graph.inputs]
    pairs = zip(evaluate_graph(result, values), evaluate_graph(graph, values), strict=True)
    for mine, right in pairs:
        assert mine.dtype == right.dtype
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-4)
    return result


def _normed(w: Writer, x: Operand, *shape: int) -> Operand:
    return w.emit("Add", w.emit("Mul", x, w.random(*shape)), w.random(*shape))


def _linear(w: Writer, kind: str) -> Operand:
    if kind == "MatMul":
        return w.emit("MatMul", w.image(3, 5, 4), w.random(4, 6))
    if kind == "ConvTranspose":
        return w.transposed(w.image(1, 4, 3, 2), w.random(4, 3, 2, 2), 2, group=2)
    return w.convolution(w.image(2, 4, 3, 5), 6, 3, group=2)


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "MatMul"])
@pytest.mark.parametrize("biased", [False, True])
def test_norms_behind_linear_operators_become_weights_and_one_sum(kind: str, biased: bool) -> None:
    w = Writer()
    x = _linear(w, kind)
    shape = (6,) if kind == "MatMul" else (6, 1, 1)
    if biased:
        x = w.emit("Add", w.random(1, *shape), x)
    x = _normed(w, _normed(w, x, *shape)) if biased else _normed(w, x, *shape)
    graph = _checked(w.graph(w.emit("Relu", x)), fold_scales)
    assert count_operations(graph) == {kind: 1, "Add": 1, "Relu": 1}


def test_factors_of_all_channels_need_no_sum() -> None:
    w = Writer()
    y = w.emit(
        "Mul", w.convolution(w.image(1, 2, 3, 3), 4), Constant(np.full((1, 1), 0.5, np.float32))
    )
    assert count_operations(_checked(w.graph(y), fold_scales)) == {"Conv": 1}


def test_what_is_no_factor_of_channels_stays() -> None:
    w = Writer()
    x = w.convolution(w.image(1, 3, 3, 3), 3)
    for shape in [(3,), (3, 1), (3, 3, 1), (1, 1, 3, 1)]:
        graph = w.graph(w.emit("Mul", x, w.random(*shape)))
        assert fold_scales(graph) is graph
    graph = w.graph(w.emit("Mul", w.biased(x), w.random(2, 1, 1, 1)))
    assert fold_scales(graph) is graph  # of a larger result


@pytest.mark.parametrize("factor", [np.inf, np.nan, 1e30])
def test_factors_stay_where_weights_would_not_be_finite(factor: float) -> None:
    w = Writer()
    x = w.emit(
        "Conv",
        w.image(1, 1, 2, 2),
        Constant(np.full((1, 1, 1, 1), 1e20, np.float32)),
        strides=(1, 1),
        dilations=(1, 1),
        pads=(0,) * 4,
        group=1,
        channels_last=False,
    )
    graph = w.graph(w.emit("Mul", x, Constant(np.asarray(factor, np.float32))))
    assert fold_scales(graph) is graph


def test_what_others_read_stays() -> None:
    w = Writer()
    x = w.convolution(w.image(1, 2, 3, 3), 4)
    y = w.emit("Mul", x, w.random(4, 1, 1))
    graph = w.graph(y, x)
    assert fold_scales(graph) is graph
    z = w.emit("Relu", x)
    graph = w.graph(w.emit("Add", y, z))
    assert fold_scales(graph) is graph


def test_sums_of_integers_stay() -> None:
    w = Writer()
    x = w.add_input("x", (2, 3), "uint8")
    y = w.emit("MatMul", x, Constant(np.ones((3, 4), np.int8)))
    graph = w.graph(w.emit("Mul", y, Constant(np.asarray(3, np.int32))))
    assert fold_scales(graph) is graph


def test_moves_that_move_nothing_go() -> None:
    w = Writer()
    x: Operand = w.image(2, 1, 3)
    steps: list[tuple[str, dict[str, Any]]] = [
        ("Identity", {}),
        ("Cast", {"to": "float32"}),
        ("Reshape", {"shape": (2, 1, 3)}),
        ("Transpose", {"perm": (0, 1, 2)}),
        ("Expand", {"shape": (2, 1, 3)}),
        ("Concat", {"axis": 1}),
        ("Tile", {"repeats": (1, 1, 1)}),
        ("Pad", {"before": (0,) * 3, "after": (0,) * 3, "mode": "constant", "value": 0.0}),
        ("Slice", {"starts": (0,) * 3, "steps": (1,) * 3, "sizes": (2, 1, 3)}),
    ]
    for operation, attributes in steps:
        x = w.emit(operation, x, **attributes)
    graph = _checked(w.graph(w.emit("Relu", x)), merge_moves)
    assert count_operations(graph) == {"Relu": 1}


def test_a_backward_slice_of_everything_stays() -> None:
    w = Writer()
    x = w.emit("Slice", w.image(3, 2), starts=(2, 0), steps=(-1, 1), sizes=(3, 2))
    assert count_operations(_checked(w.graph(x), merge_moves)) == {"Slice": 1}


def test_several_moves_become_one() -> None:
    w = Writer()
    x = w.emit("Transpose", w.image(2, 3, 4), perm=(1, 2, 0))
    once = w.emit("Transpose", x, perm=(0, 2, 1))
    back = w.emit("Transpose", x, perm=(2, 0, 1))
    flat = w.emit("Reshape", w.emit("Reshape", back, shape=(6, 4)), shape=(24,))
    graph = _checked(w.graph(once, w.emit("Relu", back), flat), merge_moves)
    assert count_operations(graph) == {"Transpose": 1, "Relu": 1, "Reshape": 1}


def test_a_transpose_of_axes_of_one_element_is_a_reshape() -> None:
    w = Writer()
    x = w.emit("Transpose", w.image(1, 3, 1, 4), perm=(2, 1, 3, 0))
    assert count_operations(_checked(w.graph(x), merge_moves)) == {"Reshape": 1}


def test_operands_are_not_repeated_where_the_others_give_the_shape() -> None:
    w = Writer()
    x, y = w.image(2, 3, 4), w.add_input("y", (3, 1), "float32")
    wide = w.emit("Expand", y, shape=(2, 3, 4))
    total = w.emit("Add", w.emit("Mul", x, wide), wide)
    graph = _checked(w.graph(total), merge_moves)
    assert count_operations(graph) == {"Mul": 1, "Add": 1}
    graph = _checked(w.graph(w.emit("Relu", wide)), merge_moves)
    assert count_operations(graph) == {"Expand": 1, "Relu": 1}
    graph = _checked(w.graph(w.emit("Add", wide, wide)), merge_moves)
    assert count_operations(graph) == {"Expand": 1, "Add": 1}


@pytest.mark.parametrize(
    ("small", "shape", "axis"), [((4, 1), (4, 4), 0), ((3, 4, 5), (2, 3, 4, 5), 2)]
)
def test_scales_along_an_axis_are_no_shape_of_what_they_scale(
    small: tuple[int, ...], shape: tuple[int, ...], axis: int
) -> None:
    w = Writer()
    x = w.add_input("x", small, "float32")
    wide = w.emit("Expand", x, shape=shape)
    scale, zero = Constant(np.full(4, 0.5, np.float32)), Constant(np.zeros(4, np.int8))
    levels = w.emit("QuantizeLinear", wide, scale, zero, axis=axis)
    values = w.emit("DequantizeLinear", levels, scale, zero, axis=axis)
    operations = count_operations(_checked(w.graph(values), merge_moves))
    assert operations["QuantizeLinear"] == operations["DequantizeLinear"] == 1


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_norm_of_reshaped_groups_is_one_of_the_image(groups: int) -> None:
    w = Writer()
    image = w.image(2, 6, 3, 5)
    rows = w.emit("Reshape", image, shape=(2, groups, 90 // groups))
    attributes = {"num_groups": groups, "epsilon": 1e-5, "axis": 1}
    norm = w.emit("GroupNormalization", rows, w.random(groups), w.random(groups), **attributes)
    back = w.emit("Reshape", norm, shape=(2, 6, 3, 5))
    graph = _checked(w.graph(_normed(w, back, 6, 1, 1)), merge_moves)
    assert count_operations(graph) == {"GroupNormalization": 1, "Mul": 1, "Add": 1}


def test_a_norm_of_channels_that_a_reshape_mixes_stays() -> None:
    w = Writer()
    for shape in [(2, 3, 20), (4, 2, 15)]:
        groups = shape[1]
        rows = w.emit("Reshape", w.image(2, 4, 3, 5), shape=shape)
        attributes = {"num_groups": groups, "epsilon": 1e-5, "axis": 1}
        norm = w.emit("GroupNormalization", rows, w.random(groups), w.random(groups), **attributes)
        graph = _checked(w.graph(w.emit("Reshape", norm, shape=(2, 4, 3, 5))), merge_moves)
        assert count_operations(graph)["Reshape"] == 2
