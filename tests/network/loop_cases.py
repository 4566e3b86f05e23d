"""Operators beside each other as one graph, computed by loops and by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from amos.network.graph import Constant, Graph, GraphBuilder
from amos.network.operations import numpy_dtype
from tests.network.graphs import evaluate_graph
from tests.network.lines import run_graph

FLOATS = ("float32", "float16", "float64", "bfloat16")
INTEGERS = ("int32", "int64", "uint8", "int8")
#: What roundings may differ by, as a share of the largest elements.
_TOLERANCES = {"float32": 1e-5, "float16": 1e-2, "float64": 1e-13, "bfloat16": 1e-1}
#: Floats of which operators say something of their own.
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, 2.5, -2.5, 1e-3])

#: An operator, its operands and attributes; constants are in a list.
Case = tuple[str, Sequence[Any], dict[str, Any]]


def values_of(shape: Sequence[int], kind: str, low: float = -4, high: float = 4) -> np.ndarray:
    """Values of a dtype, none of them 0."""
    rng = np.random.default_rng(sum(shape) + len(shape))
    if kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in kind:
        whole = rng.integers(1, 10, shape)
        return (whole if kind[0] == "u" else whole * rng.choice([-1, 1], shape)).astype(kind)
    return np.asarray(rng.uniform(low, high, shape)).astype(numpy_dtype(kind))


def in_float64(array: np.ndarray) -> np.ndarray:
    """Floats in double precision, and other arrays as they are."""
    kind = str(array.dtype)
    return array.astype(np.float64) if kind in FLOATS else array


def graph_of_cases(cases: Sequence[Case], of: Callable[[np.ndarray], np.ndarray]) -> Graph:
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
    return builder.finish(results)


def check_cases(cases: Sequence[Case]) -> None:
    """Compare what loops compute with NumPy in double precision."""
    arrays = [each for _, operands, _ in cases for each in operands if not isinstance(each, list)]
    results = run_graph(graph_of_cases(cases, lambda array: array), *arrays)
    with np.errstate(all="ignore"):
        expected = evaluate_graph(graph_of_cases(cases, in_float64), [*map(in_float64, arrays)])
    for result, right, case in zip(results, expected, cases, strict=True):
        name = f"{case[0]} {[getattr(x, 'shape', x) for x in case[1]]} {case[2]}"
        if (kind := str(result.dtype)) not in FLOATS:
            np.testing.assert_array_equal(result, right, name)
            continue
        finite = right[np.isfinite(right)]
        atol = _TOLERANCES[kind] * float(np.abs(finite).max(initial=0)) / 4
        np.testing.assert_allclose(
            result.astype(np.float64), right, _TOLERANCES[kind], atol, err_msg=name
        )
