"""Index arithmetic as C text: the value is what Python's integers give."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from amos.cuda.codegen.expression import Expr, at_most, text, variable
from amos.intrinsics.expression import evaluate
from amos.plan.nest import Group

STEPS = st.lists(
    st.tuples(st.sampled_from(["+", "*", "/", "%", "x+"]), st.integers(1, 9)), max_size=6
)


@given(steps=STEPS, x=st.integers(0, 40))
def test_value_and_range(steps: list[tuple[str, int]], x: int) -> None:
    value, expected = variable("x", 41), x
    for sign, n in steps:
        if sign == "+":
            value, expected = value + n, expected + n
        elif sign == "*":
            value, expected = value * n, expected * n
        elif sign == "/":
            value, expected = value // n, expected // n
        elif sign == "%":
            value, expected = value % n, expected % n
        else:
            value, expected = variable("x", 41) + value, x + expected
    # With values that are not negative C and Python divide alike.
    assert evaluate(text(value).replace("/", "//"), {"x": x}) == expected
    assert expected <= at_most(value)
    if isinstance(value, Expr):
        assert value.low <= expected


def test_nothing_that_changes_nothing() -> None:
    x = variable("x", 8)
    assert text(x % 8) == "x"
    assert text(x // 8) == "0"
    assert text((x * 8 + variable("y", 8)) % 64) == "x * 8 + y"
    assert variable("x", 1) == 0


def test_negative_offsets_are_never_divided() -> None:
    at = variable("p", 7) * 2 + variable("r", 3) - 1
    assert text(at) == "p * 2 + r - 1"
    assert isinstance(at, Expr) and (at.low, at.high) == (-1, 13)


def test_groups_decode_to_c() -> None:
    group = Group("i1", "spatial", 16, ("n", "p", "q"), (2, 3, 5))
    found = {name: text(value) for name, value in group.decode(variable("f", 30)).items()}
    assert found == {"n": "f / 15", "p": "(f % 15) / 5", "q": "f % 5"}
