"""Affine expressions against plain evaluation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amos.ir import Affine
from amos.ir.parser import parse_statement

NAMES = ("p", "q", "r")
affine = st.builds(
    Affine.of,
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-4, 4)), max_size=4),
    st.integers(-5, 5),
)
values = st.fixed_dictionaries({name: st.integers(-9, 9) for name in NAMES})
extents = st.fixed_dictionaries({name: st.integers(1, 4) for name in NAMES})


@given(affine, affine, st.integers(-3, 3), values)
def test_arithmetic_is_pointwise(a: Affine, b: Affine, k: int, at: dict[str, int]) -> None:
    assert (a + b).evaluate(at) == a.evaluate(at) + b.evaluate(at)
    assert (a * k).evaluate(at) == a.evaluate(at) * k
    assert (a + k).evaluate(at) == a.evaluate(at) + k


@given(affine, extents)
def test_bounds_are_reached_and_never_left(a: Affine, ranges: dict[str, int]) -> None:
    points = product(*(range(ranges[name]) for name in NAMES))
    seen = [a.evaluate(dict(zip(NAMES, point, strict=True))) for point in points]
    assert a.bounds(ranges) == (min(seen), max(seen))


@given(affine, values)
def test_restrict_sets_the_other_iterations_to_zero(a: Affine, at: dict[str, int]) -> None:
    assert a.restrict(["p"]).evaluate(at) == a.evaluate(at | {"q": 0, "r": 0})


@given(affine)
def test_text_reads_back_the_same(a: Affine) -> None:
    compute = parse_statement(f"o[] += x[{a}]", dict.fromkeys(a.names, 2), {})
    assert compute.sources[0].indices == (a,)


def test_equality_ignores_order_and_evaluation_takes_arrays() -> None:
    a, b = Affine.of([("p", 2), ("q", 1)], 3), Affine.of([("q", 1), ("p", 2)], 3)
    assert a == b
    assert hash(a) == hash(b)
    assert a != Affine.of({"p": 2}, 3)
    assert a != 3
    rows = a.evaluate({"p": np.arange(3), "q": 1})
    np.testing.assert_array_equal(rows, [4, 6, 8])


def test_terms_are_distinct_and_not_zero() -> None:
    with pytest.raises(ValueError, match="repeated"):
        Affine((("p", 1), ("p", 2)))
    with pytest.raises(ValueError, match="zero"):
        Affine((("p", 0),))
    assert Affine.of([("p", 1), ("p", -1)]) == Affine()
