"""The virtual accelerator: its calls, and units other than the scalar statement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from amos import intrinsics
from amos.errors import MappingError, OperatorError
from amos.intrinsics.meaning import scalar_unit
from amos.ir import Operator
from amos.validate import evaluate, execute_matching, random_inputs

WMMA = intrinsics.get("wmma_m16n16k16_f16_f32")
OP = Operator.parse(
    "out[i,j,b] += a[i,k,b] * w[k,j]",
    dict(i=3, j=5, b=2, k=7),
    dict(a="f16", w="f16", out="f32"),
    name="op",
)
# Columns i j b k.
MATRIX = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]


def test_one_call_for_each_value_of_the_unmatched_iterations() -> None:
    shapes: list[tuple[tuple[int, ...], ...]] = []
    scalar = scalar_unit(WMMA)

    def counting(accumulator: np.ndarray, fragments: Sequence[np.ndarray]) -> np.ndarray:
        shapes.append((accumulator.shape, *(f.shape for f in fragments)))
        return scalar(accumulator, fragments)

    inputs = random_inputs(OP, np.random.default_rng(0))
    got = execute_matching(OP, WMMA, MATRIX, inputs, counting)
    assert shapes == [((3, 5), (3, 7), (7, 5))] * 2
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, evaluate(OP, inputs))


def test_a_unit_of_another_make() -> None:
    inputs = random_inputs(OP, np.random.default_rng(0))
    expected = evaluate(OP, inputs)

    def product(acc: np.ndarray, parts: Sequence[np.ndarray]) -> np.ndarray:
        return np.asarray(acc + parts[0] @ parts[1])

    def forgetful(acc: np.ndarray, parts: Sequence[np.ndarray]) -> np.ndarray:
        return np.asarray(acc + parts[0][:, 1:] @ parts[1][1:])

    np.testing.assert_array_equal(execute_matching(OP, WMMA, MATRIX, inputs, product), expected)
    assert not np.array_equal(execute_matching(OP, WMMA, MATRIX, inputs, forgetful), expected)


def test_sources_in_another_order() -> None:
    inputs = random_inputs(OP, np.random.default_rng(0))
    swapped = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    got = execute_matching(OP, WMMA, swapped, inputs, order=(1, 0))
    np.testing.assert_array_equal(got, evaluate(OP, inputs))
    with pytest.raises(MappingError, match=r"order \(1, 1\): expected a permutation"):
        execute_matching(OP, WMMA, swapped, inputs, order=(1, 1))


def test_a_wrong_matching_computes_something_else() -> None:
    inputs = random_inputs(OP, np.random.default_rng(0))
    joined = [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
    assert not np.array_equal(execute_matching(OP, WMMA, joined, inputs), evaluate(OP, inputs))


def test_bad_inputs() -> None:
    with pytest.raises(OperatorError, match="expected a, w, got none"):
        execute_matching(OP, WMMA, MATRIX, {})
