"""Loops of operators that are elementwise or move elements, against NumPy in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from amos.network.graph import Constant, GraphBuilder, Node
from amos.network.loops.functions import LOOPS
from amos.network.operations import OPERATIONS, numpy_dtype
from tests.network.graphs import evaluate_graph
from tests.network.lines import graph_of, run_graph
from tests.network.loop_cases import (
    FLOATS,
    INTEGERS,
    SPECIAL,
    Case,
    check_cases,
    in_float64,
    values_of,
)


def test_every_operator_has_loops() -> None:
    assert LOOPS.keys() == OPERATIONS.keys() - {"DequantizeLinear", "QuantizeLinear"}


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


@pytest.mark.parametrize("kind", FLOATS)
def test_functions(kind: str) -> None:
    cases: list[Case] = [
        (x, [values_of((3, 37), kind, *_DOMAINS.get(x, (-4, 4)))], {}) for x in _UNARY
    ]
    cases += [
        ("Gelu", [values_of((3, 37), kind)], {"approximate": form}) for form in ("none", "tanh")
    ]
    special = SPECIAL.astype(numpy_dtype(kind))
    unary = ("Abs", "Ceil", "Erf", "Floor", "Relu", "Round", "Sigmoid", "Sign", "Tanh")
    cases += [(name, [special], {}) for name in (*unary, "IsNaN")]
    check_cases(cases)


@pytest.mark.parametrize("kind", FLOATS)
def test_pairs_of_floats(kind: str) -> None:
    two = [values_of((2, 3, 37), kind), values_of((3, 1), kind)]
    number = numpy_dtype(kind).type
    cases: list[Case] = [
        (x, two, {}) for x in ("Add", "Div", "Max", "Min", "Mul", "Sub", *_COMPARISONS)
    ]
    cases += [
        *(("Mod", two, {"fmod": form}) for form in (0, 1)),
        ("Pow", [values_of((2, 3, 37), kind, 0.5, 2), values_of((3, 1), kind)], {}),
        *(("Pow", [two[0], [number(exponent)]], {}) for exponent in (1, 2, 3, 4)),
        ("Where", [values_of((3, 1), "bool"), *two], {}),
    ]
    special = SPECIAL.astype(numpy_dtype(kind))
    pair = [special[:, None], special[None]]
    cases += [(x, pair, {}) for x in ("Add", "Max", "Min", *_COMPARISONS)]
    cases += [(x, [special, [number(1)]], {}) for x in ("Max", "Min", "Less", "GreaterOrEqual")]
    cases += [("Mod", pair, {"fmod": 0}), ("Mod", pair, {"fmod": 1})]
    check_cases(cases)


def test_what_tvm_would_fold_is_computed() -> None:
    """Products with 0, quotients by it, NaN beside constants and values beside themselves."""

    def make(b: GraphBuilder, x: Node) -> Any:
        zero, nan = (Constant(np.array(each, x.dtype)) for each in (0, np.nan))
        names = ("Div", "Max", "Min", "Mul")
        pairs: list[tuple[str, Any]] = [*product(names, (zero, nan))]
        pairs += [(name, x) for name in ("Div", "Max", *_COMPARISONS)]
        results = [b.emit(name, x, second) for name, second in pairs]
        results += [b.emit(name, second, x) for name, second in pairs]
        return [*results, b.emit("Not", b.emit("Equal", x, x)), b.emit("Cast", x, to="bool")]

    for kind in FLOATS:
        special = np.tile(SPECIAL, 4).astype(numpy_dtype(kind))
        graph = graph_of(make, (special.shape, kind))
        for result, expected in zip(
            run_graph(graph, special), evaluate_graph(graph, [special]), strict=True
        ):
            np.testing.assert_array_equal(in_float64(result), in_float64(expected))


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers(kind: str) -> None:
    two = [values_of((2, 3, 37), kind), values_of((3, 1), kind)]
    names = (*_COMPARISONS, "Add", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Max", "Min")
    cases: list[Case] = [(name, two, {}) for name in names]
    less = [values_of((40,), kind), np.minimum(values_of((40,), kind), 1).astype(kind)]
    cases += [("Sub", less, {}), ("Mul", [values_of((2, 40), kind), values_of((40,), kind)], {})]
    cases += [("Mod", two, {"fmod": form}) for form in (0, 1)]
    cases += [("Pow", [values_of((40,), kind), [np.array(2, kind)]], {})]
    cases += [("Where", [values_of((3, 1), "bool"), *two], {})]
    signed = () if kind == "uint8" else ("Neg",)
    cases += [(x, two[:1], {}) for x in ("Abs", "BitwiseNot", "Relu", "Sign", *signed)]
    check_cases(cases)


def test_truth_values() -> None:
    two = [values_of((3, 40), "bool"), values_of((40,), "bool")]
    cases: list[Case] = [(x, two, {}) for x in ("And", "Equal", "Or", "Xor")]
    check_cases([*cases, ("Not", two[:1], {}), ("Where", [values_of((3, 1), "bool"), *two], {})])


def test_casts() -> None:
    kinds = (*FLOATS, *INTEGERS, "bool")
    cases: list[Case] = []
    for source, target in product(kinds, kinds):
        array = values_of((70,), source)
        if target == "uint8" and source != "bool":
            array = np.abs(array)
        cases.append(("Cast", [array], {"to": target}))
    zeros = ("Cast", [np.array([0.0, 0.5, -0.5, np.nan], np.float32)], {"to": "bool"})
    check_cases([*cases, zeros])


def _moves(kind: str) -> Iterator[Case]:
    image, rows = values_of((3, 5, 20, 7), kind), values_of((5, 40), kind)
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
    yield "Expand", [values_of((3, 1), kind)], {"shape": (2, 3, 37)}
    yield "Expand", [values_of((), kind)], {"shape": (37,)}
    yield "Tile", [rows], {"repeats": (2, 3)}
    parts = [values_of((3, size), kind) for size in (20, 7, 1)]
    yield "Concat", [*parts, [values_of((3, 1), kind)]], {"axis": 1}
    yield "Concat", [parts[0], [values_of((1, 20), kind)], values_of((2, 20), kind)], {"axis": 0}
    yield "Concat", [[values_of((1,), kind)], values_of((2,), kind)], {"axis": 0}
    indices = np.random.default_rng(0).integers(-5, 5, (3, 40))
    for index in ([indices], indices, indices.astype("int32"), np.abs(indices).astype("uint8")):
        yield (
            "Gather",
            [rows, np.minimum(index, 4) if not isinstance(index, list) else index],
            {"axis": 0},
        )
    yield "Gather", [values_of((2, 5, 40), kind), [np.array([3, 1])]], {"axis": 1}
    yield "Gather", [rows, [np.array(-1)]], {"axis": 0}
    yield "Gather", [[values_of((256,), kind)], np.arange(256).astype("uint8")], {"axis": 0}
    yield "GatherElements", [rows, indices], {"axis": 0}
    if kind != "bool":
        for mode in ("constant", "edge", "reflect", "wrap"):
            attributes = {"before": (0, 1, 3), "after": (0, 2, 1), "mode": mode, "value": 2.0}
            yield "Pad", [values_of((3, 4, 20), kind)], attributes


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64", "bool"])
def test_moves(kind: str) -> None:
    check_cases([*_moves(kind)])


def test_indices_outside_are_the_nearest_ones() -> None:
    """Wherever the process would otherwise read."""
    graph = graph_of(_gathered, ((5, 2), "float32"), ((4,), "int64"))
    rows = values_of((5, 2), "float32")
    (result,) = run_graph(graph, rows, np.array([-(2**40), -6, 5, 2**40]))
    np.testing.assert_array_equal(result, rows[[0, 0, 4, 4]])


def _gathered(b: GraphBuilder, x: Any, index: Any) -> Any:
    return b.emit("Gather", x, index, axis=0)
