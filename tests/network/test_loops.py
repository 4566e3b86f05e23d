"""Loops of every operator, of dtypes, shapes and layouts, against NumPy in double precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from amos.network.graph import Constant, Graph, GraphBuilder
from amos.network.loops import LOOPS
from amos.network.operations import OPERATIONS, numpy_dtype
from tests.network.graphs import evaluate_graph
from tests.network.lines import graph_of, run_graph

_FLOATS = ("float32", "float16", "float64", "bfloat16")
_INTEGERS = ("int32", "int64", "uint8", "int8")
#: Of images.
_KINDS = ("float32", "float16", "bfloat16", "uint8")
#: What roundings may differ by, as a share of the largest elements.
_TOLERANCES = {"float32": 1e-5, "float16": 1e-2, "float64": 1e-13, "bfloat16": 1e-1}
_SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, 2.5, -2.5, 1e-3])

#: An operator, its operands and attributes; constants are in a list.
Case = tuple[str, Sequence[Any], dict[str, Any]]


def _values(shape: Sequence[int], kind: str, low: float = -4, high: float = 4) -> np.ndarray:
    """Values of a dtype, none of them 0."""
    rng = np.random.default_rng(sum(shape) + len(shape))
    if kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in kind:
        whole = rng.integers(1, 10, shape)
        return (whole if kind[0] == "u" else whole * rng.choice([-1, 1], shape)).astype(kind)
    return np.asarray(rng.uniform(low, high, shape)).astype(numpy_dtype(kind))


def _wide(array: np.ndarray) -> np.ndarray:
    kind = str(array.dtype)
    return array.astype(np.float64) if kind in _FLOATS else array


def _graph(cases: Sequence[Case], of: Callable[[np.ndarray], np.ndarray]) -> Graph:
    """A graph of operators beside each other, of arrays that were made something of."""
    builder = GraphBuilder()
    results = []
    for number, (operation, operands, attributes) in enumerate(cases):
        values: list[Any] = []
        for place, operand in enumerate(operands):
            if isinstance(operand, list):
                values.append(Constant(of(np.asarray(operand[0]))))
            else:
                kind = str(of(operand).dtype)
                values.append(builder.add_input(f"x{number}_{place}", operand.shape, kind))
        results.append(builder.emit(operation, *values, **attributes))
    return builder.finish(results, single=False)


def _check(cases: Sequence[Case]) -> None:
    arrays = [each for _, operands, _ in cases for each in operands if not isinstance(each, list)]
    results = run_graph(_graph(cases, lambda array: array), *arrays)
    with np.errstate(all="ignore"):
        expected = evaluate_graph(_graph(cases, _wide), [*map(_wide, arrays)])
    for result, right, case in zip(results, expected, cases, strict=True):
        name = f"{case[0]} {[getattr(x, 'shape', x) for x in case[1]]} {case[2]}"
        if (kind := str(result.dtype)) not in _FLOATS:
            np.testing.assert_array_equal(result, right, name)
            continue
        finite = right[np.isfinite(right)]
        atol = _TOLERANCES[kind] * float(np.abs(finite).max(initial=0)) / 4
        np.testing.assert_allclose(
            result.astype(np.float64), right, _TOLERANCES[kind], atol, err_msg=name
        )


def test_every_operator_has_loops() -> None:
    assert LOOPS.keys() == OPERATIONS.keys()


_DOMAINS = {
    "Acosh": (1.1, 9),
    **dict.fromkeys(("Acos", "Asin", "Atanh"), (-0.9, 0.9)),
    **dict.fromkeys(("Log", "Sqrt"), (0.1, 9)),
}
_UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf"),
    *("Exp", "Floor", "Identity", "Log", "Neg", "Relu", "Round", "Sigmoid", "Sign", "Sin"),
    *("Sinh", "Sqrt", "Swish", "Tan", "Tanh"),
)
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


@pytest.mark.parametrize("kind", _FLOATS)
def test_functions(kind: str) -> None:
    cases: list[Case] = [
        (x, [_values((3, 37), kind, *_DOMAINS.get(x, (-4, 4)))], {}) for x in _UNARY
    ]
    cases += [
        ("Gelu", [_values((3, 37), kind)], {"approximate": form}) for form in ("none", "tanh")
    ]
    special = _SPECIAL.astype(numpy_dtype(kind))
    kept = ("Abs", "Ceil", "Erf", "Floor", "Relu", "Round", "Sigmoid", "Sign", "Tanh")
    cases += [(name, [special], {}) for name in (*kept, "IsNaN")]
    _check(cases)


@pytest.mark.parametrize("kind", _FLOATS)
def test_pairs_of_floats(kind: str) -> None:
    two = [_values((2, 3, 37), kind), _values((3, 1), kind)]
    number = numpy_dtype(kind).type
    cases: list[Case] = [
        (x, two, {}) for x in ("Add", "Div", "Max", "Min", "Mul", "Sub", *_COMPARISONS)
    ]
    cases += [
        *(("Mod", two, {"fmod": form}) for form in (0, 1)),
        ("Pow", [_values((2, 3, 37), kind, 0.5, 2), _values((3, 1), kind)], {}),
        *(("Pow", [two[0], [number(exponent)]], {}) for exponent in (1, 2, 3, 4)),
        ("Where", [_values((3, 1), "bool"), *two], {}),
    ]
    special = _SPECIAL.astype(numpy_dtype(kind))
    pair = [special[:, None], special[None]]
    cases += [(x, pair, {}) for x in ("Add", "Max", "Min", *_COMPARISONS)]
    cases += [(x, [special, [number(1)]], {}) for x in ("Max", "Min", "Less", "GreaterOrEqual")]
    cases += [("Mod", pair, {"fmod": 0}), ("Mod", pair, {"fmod": 1})]
    _check(cases)


@pytest.mark.parametrize("kind", _INTEGERS)
def test_integers(kind: str) -> None:
    two = [_values((2, 3, 37), kind), _values((3, 1), kind)]
    names = (*_COMPARISONS, "Add", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Max", "Min")
    cases: list[Case] = [(name, two, {}) for name in names]
    less = [_values((40,), kind), np.minimum(_values((40,), kind), 1).astype(kind)]
    cases += [("Sub", less, {}), ("Mul", [_values((2, 40), kind), _values((40,), kind)], {})]
    cases += [("Mod", two, {"fmod": form}) for form in (0, 1)]
    cases += [("Pow", [_values((40,), kind), [np.array(2, kind)]], {})]
    cases += [("Where", [_values((3, 1), "bool"), *two], {})]
    signed = () if kind == "uint8" else ("Neg",)
    cases += [(x, two[:1], {}) for x in ("Abs", "BitwiseNot", "Relu", "Sign", *signed)]
    _check(cases)


def test_truth_values() -> None:
    two = [_values((3, 40), "bool"), _values((40,), "bool")]
    cases: list[Case] = [(x, two, {}) for x in ("And", "Equal", "Or", "Xor")]
    _check([*cases, ("Not", two[:1], {}), ("Where", [_values((3, 1), "bool"), *two], {})])


def test_casts() -> None:
    kinds = (*_FLOATS, *_INTEGERS, "bool")
    cases: list[Case] = []
    for source, target in product(kinds, kinds):
        array = _values((70,), source)
        if target == "uint8" and source != "bool":
            array = np.abs(array)
        cases.append(("Cast", [array], {"to": target}))
    zeros = ("Cast", [np.array([0.0, 0.5, -0.5, np.nan], np.float32)], {"to": "bool"})
    _check([*cases, zeros])


def _moves(kind: str) -> Iterator[Case]:
    image, rows = _values((3, 5, 20, 7), kind), _values((5, 40), kind)
    for perm in ((0, 2, 3, 1), (0, 3, 1, 2), (1, 0, 2, 3), (3, 2, 1, 0)):
        yield "Transpose", [image], {"perm": perm}
    for shape in (
        (3, 5, 140),
        (15, 20, 7),
        (3, 100, 7),
        (2100,),
        (3, 5, 4, 5, 7),
        (30, 70),
        (3, 1, 700),
    ):
        yield "Reshape", [image], {"shape": shape}
    yield "Slice", [rows], {"starts": (1, 3), "steps": (2, 1), "sizes": (2, 30)}
    yield "Slice", [rows], {"starts": (4, 39), "steps": (-1, -3), "sizes": (5, 13)}
    yield "Expand", [_values((3, 1), kind)], {"shape": (2, 3, 37)}
    yield "Expand", [_values((), kind)], {"shape": (37,)}
    yield "Tile", [rows], {"repeats": (2, 3)}
    parts = [_values((3, size), kind) for size in (20, 7, 1)]
    yield "Concat", [*parts, [_values((3, 1), kind)]], {"axis": 1}
    yield "Concat", [parts[0], [_values((1, 20), kind)], _values((2, 20), kind)], {"axis": 0}
    yield "Concat", [[_values((1,), kind)], _values((2,), kind)], {"axis": 0}
    indices = np.random.default_rng(0).integers(-5, 5, (3, 40))
    for index in ([indices], indices, indices.astype("int32"), np.abs(indices).astype("uint8")):
        yield (
            "Gather",
            [rows, np.minimum(index, 4) if not isinstance(index, list) else index],
            {"axis": 0},
        )
    yield "Gather", [_values((2, 5, 40), kind), [np.array([3, 1])]], {"axis": 1}
    yield "Gather", [rows, [np.array(-1)]], {"axis": 0}
    yield "Gather", [[_values((256,), kind)], np.arange(256).astype("uint8")], {"axis": 0}
    yield "GatherElements", [rows, indices], {"axis": 0}
    if kind != "bool":
        for mode in ("constant", "edge", "reflect", "wrap"):
            told = {"before": (0, 1, 3), "after": (0, 2, 1), "mode": mode, "value": 2.0}
            yield "Pad", [_values((3, 4, 20), kind)], told


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
def test_moves(kind: str) -> None:
    _check([*_moves(kind)])


def test_indices_outside_are_the_nearest_ones() -> None:
    """Wherever the process would otherwise read."""
    graph = graph_of(_gathered, ((5, 2), "float32"), ((4,), "int64"))
    rows = _values((5, 2), "float32")
    (result,) = run_graph(graph, rows, np.array([-(2**40), -6, 5, 2**40]))
    np.testing.assert_array_equal(result, rows[[0, 0, 4, 4]])


def _gathered(b: GraphBuilder, x: Any, index: Any) -> Any:
    return b.emit("Gather", x, index, axis=0)


@pytest.mark.parametrize("kind", [*_FLOATS, "int32", "int64"])
def test_reductions(kind: str) -> None:
    """Along rows that fill whole vectors and rows that do not, along other axes, and along none."""
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]]
    shapes = [((3, 50), (1,)), ((3, 64), (1,)), ((3, 64), (0,)), ((3, 50), (0, 1)), ((3, 5), ())]
    shapes += [((2, 5, 7, 40), (2, 3)), ((2, 7, 5, 64), (1, 2)), ((2, 7, 5, 6), (1, 3))]
    cases: list[Case] = []
    for n, (shape, axes) in enumerate(shapes):
        told = {"axes": axes, "keepdims": bool(n % 2)}
        for name in ("Max", "Mean", "Min", "Sum"):
            cases.append((f"Reduce{name}", [_values(shape, kind)], told))
        near = _values(shape, kind, 0.9, 1.1) if "float" in kind else np.ones(shape, kind)
        cases.append(("ReduceProd", [near], told))
    if "float" in kind:
        rows = np.stack([np.tile(_SPECIAL, 5), np.full(50, -np.inf), np.full(50, np.inf)])
        for part, name in product((50, 48, 7), ("ReduceMax", "ReduceMin")):
            values = rows[:, :part].astype(numpy_dtype(kind))
            cases.append((name, [values], {"axes": (1,), "keepdims": False}))
    _check(cases)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64"])
def test_positions(kind: str) -> None:
    """Of the first of equal elements or the last one."""
    cases: list[Case] = []
    for shape, axis in (((3, 50), 1), ((3, 64), 1), ((5, 64), 0), ((2, 7, 6), 1)):
        for name, last in product(("ArgMax", "ArgMin"), (False, True)):
            array = np.rint(_values(shape, kind).astype(float)).astype(numpy_dtype(kind))
            told = {"axis": axis, "keepdims": last, "select_last_index": last}
            cases.append((name, [array], told))
    _check(cases)


def _windows() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]]:
    """Extents of images, windows, and their attributes."""
    for extents, window in (((20,), (3,)), ((9, 13), (3, 2)), ((5, 6, 7), (2, 3, 2))):
        n = len(extents)
        for stride, dilation, ahead, behind in ((1, 1, 0, 0), (2, 1, 1, 0), (1, 2, 1, 1)):
            yield (
                extents,
                window,
                {
                    "strides": (stride,) * n,
                    "dilations": (dilation,) * n,
                    "pads": (ahead,) * n + (behind,) * n,
                },
            )


def _image(channels: int, extents: Sequence[int], kind: str, last: bool) -> np.ndarray:
    return _values((2, *extents, channels) if last else (2, channels, *extents), kind)


@pytest.mark.parametrize("kind", _KINDS)
def test_pools(kind: str) -> None:
    cases: list[Case] = []
    for n, (extents, window, told) in enumerate(_windows()):
        last = bool((n + _KINDS.index(kind)) % 2)
        told |= {"kernel_shape": window, "channels_last": last}
        image = _image(16, extents, kind, last)
        cases.append(("MaxPool", [image], told))
        if "float" in kind:
            counted = bool(n // 2 % 2)
            cases.append(("AveragePool", [image], told | {"count_include_pad": counted}))
    if "float" in kind:
        array = np.tile(_SPECIAL, 3).reshape(1, 1, 30).astype(numpy_dtype(kind))
        told = {"strides": (1,), "dilations": (1,), "channels_last": False}
        cases.append(("MaxPool", [array], told | {"kernel_shape": (2,), "pads": (1, 1)}))
    _check(cases)


#: Groups, channels and features of convolutions.
_GROUPS = (1, 4, 16), (2, 4, 6), (4, 4, 4)


@pytest.mark.parametrize("kind", _KINDS)
def test_convolutions(kind: str) -> None:
    cases: list[Case] = []
    for n, (extents, window, told) in enumerate(_windows()):
        turn = n + n // 3 + _KINDS.index(kind)
        (groups, channels, features), last = _GROUPS[turn % 3], bool(turn % 2)
        image = _image(channels, extents, kind, last)
        told = told | {"group": groups, "channels_last": last}
        weight = _values((features, channels // groups, *window), kind)
        cases.append(("Conv", [image, weight], told))
        weight = _values((channels, features // groups, *window), kind)
        more = tuple(stride - 1 for stride in told["strides"])
        cases.append(("ConvTranspose", [image, weight], told | {"output_padding": more}))
    _check(cases)


@pytest.mark.parametrize("kind", [*_FLOATS, *_INTEGERS])
def test_matrix_products(kind: str) -> None:
    shapes = [
        ((3, 5), (5, 7)),
        ((20, 33), (33, 64)),
        ((2, 1, 4, 9), (3, 9, 16)),
        ((4, 9), (5, 9, 7)),
    ]
    _check([("MatMul", [_values(one, kind), _values(two, kind)], {}) for one, two in shapes])


@pytest.mark.parametrize("kind", _FLOATS)
def test_softmax_and_norms(kind: str) -> None:
    cases: list[Case] = []
    for size, axis in (((3, 50), 1), ((3, 64), 1), ((3, 64), 0), ((2, 7, 40), 1), ((4, 10), 1)):
        cases += [(x, [_values(size, kind)], {"axis": axis}) for x in ("Softmax", "LogSoftmax")]
    for rows in ((3, 50), (2, 5, 64), (3, 7), (300, 96)):
        weights = [_values(rows[-1:], kind), [_values(rows[-1:], kind)]]
        cases.append(("LayerNormalization", [_values(rows, kind), *weights], {"epsilon": 1e-5}))
    shapes = [((2, 6, 5, 7), 1, 2), ((2, 8, 60, 60), 1, 8), ((2, 8, 8, 32), 3, 4), ((2, 6), 1, 2)]
    for shape, axis, groups in (*shapes, ((1, 3, 4, 20, 6), 4, 3)):
        weights = [_values(shape[axis : axis + 1], kind), [_values(shape[axis : axis + 1], kind)]]
        told = {"axis": axis, "num_groups": groups, "epsilon": 1e-5}
        cases.append(("GroupNormalization", [_values(shape, kind), *weights], told))
    _check(cases)


def test_softmax_of_what_is_masked() -> None:
    """Where everything is, there is no number."""
    rows = np.zeros((2, 40), np.float32)
    rows[0, 5:], rows[1] = -np.inf, -np.inf
    _check([("Softmax", [rows], {"axis": 1})])


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_levels(kind: str) -> None:
    scale, zero = [np.float32(0.03)], [np.array(3, kind)]
    scales, zeros = [_values((40,), "float32", 0.01, 0.1)], _values((40,), kind)
    floats, levels, told = _values((3, 40), "float32"), _values((3, 40), kind), {"axis": 1}
    _check(
        [
            ("QuantizeLinear", [floats, scale, zero], told),
            ("QuantizeLinear", [floats, scales, zeros], told),
            ("DequantizeLinear", [levels, scale, zero], told),
            ("DequantizeLinear", [levels, scales, zeros], told),
        ]
    )


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
    results = run_graph(_graph(cases, np.asarray), *[values] * 3)
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
    told = {"axis": axis, "epsilon": 1e-5}
    cases: list[Case] = [
        ("GroupNormalization", [values, scale, shift], told | {"num_groups": groups})
        for groups in (2, 6)
    ]
    arrays = [values] * len(cases)
    right = evaluate_graph(_graph(cases, _wide), [*map(_wide, arrays)])
    for result, expected in zip(run_graph(_graph(cases, np.asarray), *arrays), right, strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-3)
