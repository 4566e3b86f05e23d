"""Loops of reductions, windows, products and norms, against NumPy in double precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from amos.network.operations import numpy_dtype
from tests.network.graphs import evaluate_graph
from tests.network.lines import run_graph
from tests.network.loop_cases import (
    FLOATS,
    INTEGERS,
    SPECIAL,
    Case,
    check_cases,
    graph_of_cases,
    in_float64,
    values_of,
)

#: Of images.
_KINDS = ("float32", "float16", "bfloat16", "uint8")


@pytest.mark.parametrize("kind", [*FLOATS, "int32", "int64"])
def test_reductions(kind: str) -> None:
    """Along rows that fill whole vectors and rows that do not, along other axes, and along none."""
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]]
    shapes = [((3, 50), (1,)), ((3, 64), (1,)), ((3, 64), (0,)), ((3, 50), (0, 1)), ((3, 5), ())]
    shapes += [((2, 5, 7, 40), (2, 3)), ((2, 7, 5, 64), (1, 2)), ((2, 7, 5, 6), (1, 3))]
    cases: list[Case] = []
    for n, (shape, axes) in enumerate(shapes):
        attributes = {"axes": axes, "keepdims": bool(n % 2)}
        turn = n + len(kind)
        for name in (("Max", "Mean"), ("Min", "Sum"))[turn % 2]:
            cases.append((f"Reduce{name}", [values_of(shape, kind)], attributes))
        near = values_of(shape, kind, 0.9, 1.1) if "float" in kind else np.ones(shape, kind)
        cases += [("ReduceProd", [near], attributes)] * (turn % 3 == 0)
    if "float" in kind:
        rows = np.stack([np.tile(SPECIAL, 5), np.full(50, -np.inf), np.full(50, np.inf)])
        for size, name in ((50, "ReduceMax"), (48, "ReduceMin"), (7, "ReduceMax")):
            values = rows[:, :size].astype(numpy_dtype(kind))
            cases.append((name, [values], {"axes": (1,), "keepdims": False}))
    check_cases(cases)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64"])
def test_positions(kind: str) -> None:
    """Of the first of equal elements or the last one."""
    cases: list[Case] = []
    for shape, axis in (((3, 50), 1), ((3, 64), 1), ((5, 64), 0), ((2, 7, 6), 1)):
        for name, last in (("ArgMax", axis == 1), ("ArgMin", axis == 0)):
            array = np.rint(values_of(shape, kind).astype(float)).astype(numpy_dtype(kind))
            attributes = {"axis": axis, "keepdims": last, "select_last_index": last}
            cases.append((name, [array], attributes))
    check_cases(cases)


def _windows() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]]:
    """Extents of images, windows, and their attributes."""
    for extents, window in (((20,), (3,)), ((9, 13), (3, 2)), ((5, 6, 7), (2, 3, 2))):
        n = len(extents)
        for stride, dilation, ahead, after in ((1, 1, 0, 0), (2, 1, 1, 0), (1, 2, 1, 1)):
            yield (
                extents,
                window,
                {
                    "strides": (stride,) * n,
                    "dilations": (dilation,) * n,
                    "pads": (ahead,) * n + (after,) * n,
                },
            )


def _image(channels: int, extents: Sequence[int], kind: str, last: bool) -> np.ndarray:
    return values_of((2, *extents, channels) if last else (2, channels, *extents), kind)


@pytest.mark.parametrize("last", [False, True])
def test_pools(last: bool) -> None:
    cases: list[Case] = []
    for n, (extents, window, attributes) in enumerate(_windows()):
        attributes |= {"kernel_shape": window, "channels_last": last}
        image = _image(16, extents, _KINDS[(n + last) % 4], last)
        cases.append(("MaxPool", [image], attributes))
        image = _image(16, extents, FLOATS[(n + last) % 4], last)
        attributes = attributes | {"count_include_pad": bool(n // 2 % 2)}
        cases.append(("AveragePool", [image], attributes))
    check_cases(cases)


def test_maxima_of_windows_are_nan_of_nan() -> None:
    attributes = {"strides": (1,), "dilations": (1,), "channels_last": False}
    attributes |= {"kernel_shape": (2,), "pads": (1, 1)}
    array = np.tile(SPECIAL, 3).reshape(1, 1, 30)
    check_cases([("MaxPool", [array.astype(numpy_dtype(kind))], attributes) for kind in FLOATS])


#: Groups, channels and features of convolutions.
_GROUPS = (1, 4, 16), (2, 4, 6), (4, 4, 4)


@pytest.mark.parametrize("last", [False, True])
def test_convolutions(last: bool) -> None:
    cases: list[Case] = []
    for n, (extents, window, attributes) in enumerate(_windows()):
        groups, channels, features = _GROUPS[(n + n // 3) % 3]
        attributes = attributes | {"group": groups, "channels_last": last}
        kind = (*_KINDS, "float64")[(n + last) % 5]
        image = _image(channels, extents, kind, last)
        weight = values_of((features, channels // groups, *window), kind)
        cases.append(("Conv", [image, weight], attributes))
        weight = values_of((channels, features // groups, *window), kind)
        more = tuple(stride - 1 for stride in attributes["strides"])
        cases.append(("ConvTranspose", [image, weight], attributes | {"output_padding": more}))
    check_cases(cases)


@pytest.mark.parametrize("kind", [*FLOATS, *INTEGERS])
def test_matrix_products(kind: str) -> None:
    shapes = [
        ((3, 5), (5, 7)),
        ((20, 33), (33, 64)),
        ((2, 1, 4, 9), (3, 9, 16)),
        ((4, 9), (5, 9, 7)),
    ]
    check_cases(
        [
            ("MatMul", [values_of(first, kind), values_of(second, kind)], {})
            for first, second in shapes
        ]
    )


@pytest.mark.parametrize("kind", FLOATS)
def test_softmax_and_norms(kind: str) -> None:
    cases: list[Case] = []
    sizes = [((3, 50), 1), ((3, 64), 1), ((3, 64), 0), ((2, 7, 40), 1), ((4, 10), 1)]
    for n, (size, axis) in enumerate(sizes):
        name = ("Softmax", "LogSoftmax")[(n + len(kind)) % 2]
        cases.append((name, [values_of(size, kind)], {"axis": axis}))
    for rows in ((3, 50), (2, 5, 64), (3, 7)):
        weights = [values_of(rows[-1:], kind), [values_of(rows[-1:], kind)]]
        cases.append(("LayerNormalization", [values_of(rows, kind), *weights], {"epsilon": 1e-5}))
    shapes = [((2, 6, 5, 7), 1, 2), ((1, 3, 4, 20, 6), 4, 3)]
    shapes += [((2, 8, 8, 32), 3, 4)] if kind == "float32" else [((2, 8, 60, 60), 1, 8)]
    for shape, axis, groups in shapes:
        weights = [
            values_of(shape[axis : axis + 1], kind),
            [values_of(shape[axis : axis + 1], kind)],
        ]
        attributes = {"axis": axis, "num_groups": groups, "epsilon": 1e-5}
        cases.append(("GroupNormalization", [values_of(shape, kind), *weights], attributes))
    check_cases(cases)


def test_softmax_of_what_is_masked() -> None:
    """Where everything is, there is no number."""
    rows = np.zeros((2, 40), np.float32)
    rows[0, 5:], rows[1] = -np.inf, -np.inf
    check_cases([("Softmax", [rows], {"axis": 1})])


def test_halves_are_summed_as_floats() -> None:
    """A sum in float16 stands still where what is added is less than half of its last digit."""
    values = np.random.default_rng(0).uniform(9, 11, (1, 2, 60, 60)).astype(np.float16)
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "channels_last": False}
    pool = window | {"kernel_shape": (60, 60), "count_include_pad": False}
    shares = [np.full((1, 2, 60, 60), 2**-10, np.float16)]
    cases: list[Case] = [
        ("ReduceMean", [values], {"axes": (2, 3), "keepdims": True}),
        ("AveragePool", [values], pool),
        ("Conv", [values, shares], window | {"group": 1}),
    ]
    results = run_graph(graph_of_cases(cases, np.asarray), *[values] * 3)
    for result, (name, *_) in zip(results, cases, strict=True):
        expected = values.astype(np.float64).mean((2, 3), keepdims=True)
        expected = values.astype(np.float64).sum() / 2**10 if name == "Conv" else expected
        assert result.dtype == np.float16
        np.testing.assert_allclose(result, expected, rtol=1e-3)


@pytest.mark.parametrize("axis", [1, 3])
def test_norms_of_a_large_mean(axis: int) -> None:
    shape = [2, 8, 8]
    shape.insert(axis, 6)
    rng = np.random.default_rng(1)
    values = rng.standard_normal(shape).astype(np.float32) + 500
    scale, shift = [np.ones(6, np.float32)], [np.arange(6, dtype=np.float32)]
    attributes = {"axis": axis, "epsilon": 1e-5}
    cases: list[Case] = [
        ("GroupNormalization", [values, scale, shift], attributes | {"num_groups": groups})
        for groups in (2, 6)
    ]
    arrays = [values] * len(cases)
    right = evaluate_graph(graph_of_cases(cases, in_float64), [*map(in_float64, arrays)])
    for result, expected in zip(
        run_graph(graph_of_cases(cases, np.asarray), *arrays), right, strict=True
    ):
        np.testing.assert_allclose(result, expected, atol=1e-3)
