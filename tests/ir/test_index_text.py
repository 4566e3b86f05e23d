"""Index arithmetic as C text: the value is what Python's integers give."""

from __future__ import annotations

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from amos.ir.index_text import Expr, text, upper_bound, variable
from amos.plan.nest import Group

STEPS = st.lists(
    st.tuples(st.sampled_from(["+", "-", "*", "/", "%", "x+", "*-1"]), st.integers(1, 9)),
    max_size=6,
)


@given(steps=STEPS, x=st.integers(0, 40))
def test_value_and_range(steps: list[tuple[str, int]], x: int) -> None:
    value, expected = variable("x", 41), x
    for sign, n in steps:
        if sign == "+":
            value, expected = value + n, expected + n
        elif sign == "-":
            value, expected = value + -n, expected - n
        elif sign == "*-1":
            value, expected = value * -1, -expected
        elif sign == "*":
            value, expected = value * n, expected * n
        elif sign == "/":
            value, expected = value // n, expected // n
        elif sign == "%":
            value, expected = value % n, expected % n
        else:
            value, expected = variable("x", 41) + value, x + expected
    # Only values that are not negative are divided, where C and Python agree.
    result = eval(text(value).replace("/", "//"), {"x": x})  # noqa: S307 - our own arithmetic
    assert result == expected
    assert expected <= upper_bound(value)
    if isinstance(value, Expr):
        assert value.low <= expected


@given(
    threads=st.sampled_from([32, 64, 96, 128, 256, 512]),
    extents=st.lists(st.sampled_from([1, 2, 3, 4, 5, 8, 16]), min_size=1, max_size=5),
)
def test_digits_of_a_sum(threads: int, extents: list[int]) -> None:
    """Each digit is that of the number itself, whatever carries where."""
    total = prod(extents)
    number = variable("t", min(threads, total)) + variable("i", -(-total // threads)) * threads
    if isinstance(number, Expr):
        number = number.limit(total - 1).with_name("e")
    weight = 1
    for extent in extents:
        digit = number // weight % extent
        code = compile(text(digit).replace("/", "//"), "digit", "eval")
        for e in {*range(min(total, 700)), total - 1}:
            places = {"e": e, "t": e % threads, "i": e // threads}
            result = eval(code, places)  # noqa: S307 - our own arithmetic
            assert result == e // weight % extent <= upper_bound(digit)
        weight *= extent


def test_nothing_that_changes_nothing() -> None:
    x = variable("x", 8)
    assert text(x % 8) == "x"
    assert text(x // 8) == "0"
    assert text((x * 8 + variable("y", 8)) % 64) == "x * 8 + y"
    assert variable("x", 1) == 0


def test_negative_offsets_are_divided_as_python_does() -> None:
    at = variable("p", 7) * 2 + variable("r", 3) - 1
    assert text(at) == "p * 2 + r - 1"
    assert isinstance(at, Expr) and (at.low, at.high) == (-1, 13)
    assert text(at // 4) == "(p * 2 + r - 1 + 4) / 4 - 1"
    assert text(at % 4) == "(p * 2 + r - 1 + 4) % 4"


def test_groups_decode_to_c() -> None:
    group = Group("i1", "spatial", 16, ("n", "p", "q"), (2, 3, 5))
    decoded = {name: text(value) for name, value in group.decode(variable("f", 30)).items()}
    assert decoded == {"n": "f / 15", "p": "(f % 15) / 5", "q": "f % 5"}
