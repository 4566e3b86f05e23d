"""Statements that do not sum products: what they say, what they are refused for, and their text."""

from __future__ import annotations

import math

import numpy as np
import pytest

from amos.errors import OperatorError
from amos.ir import Operator, dtype
from amos.ir.combining import COMBINERS, JOINS, fills_lanes, function, neutral
from amos.records.canonical import operator_from, operator_values

STATEMENTS = {
    "o[i] = a[i] + b[i]": ("= a + b", 1),
    "o[i] = a[i] - b[i] - c[i]": ("= a - b - c", 1),
    "o[i] = max(a[i], b[i])": ("= max(a, b)", 1),
    "o[i] max= a[i, k]": ("max= a", 1),
    "o[i] min= a[i, k] + b[k]": ("min= a + b", 2),
    "o[i] *= a[i, k]": ("*= a", 1),
    "o[i] += min(a[i, k], b[k])": ("+= min(a, b)", 2),
    "o[i] max= pad(a[i + k - 1], -inf)": ("max= a", 1),
}


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_statement_reads_its_own_text(text: str) -> None:
    op = Operator.parse(text, {"i": 4} | ({"k": 3} if "k" in text else {}))
    arithmetic, operations = STATEMENTS[text]
    assert (str(op.compute), op.compute.arithmetic) == (text, arithmetic)
    assert op.operations == operations * op.points
    assert operator_from(operator_values(op)) == op


@pytest.mark.parametrize("kind", ["u8", "s8", "s32", "f16", "f32", "f64", "bf16", "e4m3"])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_a_neutral_value_leaves_every_other_one(combiner: str, kind: str) -> None:
    into = dtype(kind).numpy
    ends = dtype(kind).limits if dtype(kind).is_integer else (-3.5, 0, 448.0)
    values = np.array([*ends, 1]).astype(into)
    start = np.array(neutral(combiner, kind)).astype(into)
    assert start == neutral(combiner, kind)
    np.testing.assert_array_equal(function(combiner).ufunc(start, values), values)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("kind", ["s32", "u8", "f32"])
def test_empty_lanes_count_for_nothing_where_that_is_claimed(
    combiner: str, join: str, kind: str
) -> None:
    rng, into = np.random.default_rng(0), dtype(kind).numpy
    some = rng.integers(0, 9, 64).astype(into)
    start = np.array(neutral(combiner, kind)).astype(into)
    join_, combine = function(join).ufunc, function(combiner).ufunc
    with np.errstate(all="ignore"):
        if fills_lanes(combiner, join, 2, kind):
            np.testing.assert_array_equal(combine(some, join_(start, start)), some)
        if fills_lanes(combiner, join, 2, kind, arbitrary_source=True):
            second = rng.integers(0, 99, 64).astype(into)
            np.testing.assert_array_equal(combine(some, join_(start, second)), some)
            np.testing.assert_array_equal(combine(some, join_(second, start)), some)


def test_what_is_claimed_of_well_known_pairs() -> None:
    assert fills_lanes("+", "*", 2, "s32", arbitrary_source=True)
    assert fills_lanes("max", "+", 2, "f32", arbitrary_source=True)
    assert fills_lanes("max", "min", 2, "s8", arbitrary_source=True)
    assert not fills_lanes("max", "+", 2, "s32")
    assert not fills_lanes("*", "+", 2, "f32")
    assert not fills_lanes("+", "+", 2, "f32", arbitrary_source=True)


@pytest.mark.parametrize(
    ("text", "dtypes", "message"),
    [
        ("o[i] max= a[i, k]", {"a": "s32", "o": "s8"}, "'o' is int8, which does not hold every"),
        ("o[i] += max(a[i], b[i, k])", {"a": "u8", "b": "s8", "o": "u8"}, "value of 'b', int8"),
        ("o[i] += pad(a[i, k + 1], inf)", {}, "only max= and min= take an infinity"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    text: str, dtypes: dict[str, str], message: str
) -> None:
    with pytest.raises(OperatorError, match="padding of|which does not hold") as caught:
        Operator.parse(text, {"i": 4, "k": 3}, dtypes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_infinity_is_a_value_of_a_float() -> None:
    for kind in ("f16", "bf16", "f32", "f64"):
        op = Operator.parse("o[i] max= pad(a[i+k-1], -inf)", {"i": 4, "k": 3}, {"a": kind})
        assert op.sources[0].padding == -math.inf


def test_an_infinity_is_an_end_of_a_type_that_has_none() -> None:
    text, extents = "o[i] max= pad(a[i+k-1], -inf)", {"i": 4, "k": 3}
    for kind, end in (("u8", 0), ("s8", -128), ("e4m3", -448)):
        op = Operator.parse(text, extents, {"a": kind})
        assert op.sources[0].padding == end
        assert Operator.parse(text, extents).with_dtypes({"a": kind}) == op
