"""What is too long, too deep or too large is refused at the door, and at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import amos
from amos.cli import main
from amos.errors import quote
from amos.intrinsics import from_toml
from amos.intrinsics.arithmetic import ShapeFamily
from amos.intrinsics.expression import evaluate
from amos.intrinsics.memory import FragmentLayout
from amos.records.exchange import select_prunable

_DIGITS = "9" * 5000
_MATRIX = "out[i,j] += a[i,k] * b[k,j]"


def _parse(text: str = _MATRIX, **extents: Any) -> amos.Operator:
    return amos.Operator.parse(text, extents or dict(i=4, j=4, k=4))


def _epilogue(text: str) -> amos.Operator:
    return _parse().with_epilogue(text)


def _description(**extents: int) -> amos.intrinsics.Intrinsic:
    return amos.intrinsics.Intrinsic.define(
        "big",
        "Dst[i1,i2] += Src1[i1,r1] * Src2[r1,i2]",
        extents,
        dict(Src1="s8", Src2="s8", Dst="s32"),
        ["reg.Src1[] = memory.Src1[addr_a]", "reg.Src2[] = memory.Src2[addr_b]"],
        family="big",
        source="none",
    )


def _shapes() -> object:
    sizes = tuple(range(1, 3001))
    return ShapeFamily(sizes, sizes, sizes)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: _parse(i=10**20, j=1, k=1), "below 2\\*\\*63, got 100000000000000000000"),
        (lambda: _parse(i=10**5000, j=1, k=1), "got int of 16,610 bits"),
        (lambda: _parse(i=-(10**5000), j=1, k=1), "positive integer, got int of"),
        (lambda: _parse(i=10**9, j=10**9, k=10**9), "at most 2\\*\\*56 elements"),
        (lambda: _parse(i=10**7, j=10**7, k=10**7), "fewer than 2\\*\\*63 points"),
        (lambda: amos.operators.conv2d(c=10**5000), "got int of"),
        (lambda: _parse("o[" + "i + " * 4000 + "i] += a[i]", i=2), "at most 10000 characters"),
        (
            lambda: _parse("o[i] += a[" + "+".join(f"x{n}" for n in range(40)) + "]", i=2),
            "at most 32 iterations",
        ),
        (
            lambda: _parse("o[i] += a[i*" + "*".join(["9" * 18] * 300) + "]", i=2),
            "does not fit 64 bits",
        ),
        (lambda: _epilogue(f"acc + t[{'i+' * 6000}i]"), "at most 10000 characters"),
        (lambda: _epilogue(f"acc + t[{'9' * 4000}]"), "integer of 4000 digits is too large"),
        (lambda: _epilogue(f"acc + {_DIGITS}"), "integer of 5000 digits is too large"),
        (lambda: evaluate("+".join(["m"] * 2000), dict(m=1)), "at most 64 levels"),
        (lambda: evaluate(f"m == {'9' * 400}", dict(m=1)), "does not fit 64 bits"),
        (lambda: evaluate("m // n", dict(m=np.arange(2), n=np.arange(2))), "division by zero"),
        (_shapes, "27000000000"),
        (lambda: FragmentLayout(10**5, 10**5, ()), "100000 times 100000"),
        (lambda: _description(i1=2000, i2=2000, r1=1), "fragments of at most 1048576 elements"),
        (lambda: from_toml("a = " + "[" * 3000), "too many levels|expected TOML"),
        (lambda: from_toml(f"registers = {_DIGITS}"), "expected TOML"),
        (lambda: from_toml("a = 1\n" * 100_000), "at most 200000 characters"),
        (lambda: amos.intrinsics.get("x" * 10**6), "1,000,002 characters"),
        (lambda: amos.intrinsics.load("/dev/zero"), "at most 200000 characters"),
    ],
)
def test_too_much_is_refused(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(amos.AmosError, match=message) as caught:
        refused()
    assert len(max(str(caught.value).splitlines(), key=len)) < 11_000


@pytest.mark.parametrize(
    "line",
    [
        f"map gemm wmma_m16n16k16_f16_f32 --limit {10**23}",
        f"map gemm wmma_m16n16k16_f16_f32 --extent m={_DIGITS}",
        f"operators gemm --extent m={10**20}",
        f"predict gemm wmma_m16n16k16_f16_f32 --seed={10**400}",
    ],
)
def test_huge_numbers_of_the_command_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert 1 <= len(capsys.readouterr().err.splitlines()) <= 3


def test_records_older_than_the_calendar_are_none() -> None:
    assert select_prunable([], older_days=1e12) == []
    with pytest.raises(amos.AmosError, match="number of days, got nan"):
        select_prunable([], older_days=float("nan"))


_ODD: tuple[Any, ...] = (
    True, -1, 10**5000, 1.5, float("nan"), "x" * 100_000, [], [[]], {"a": 1}, b"x", object(),
)  # fmt: skip
_OPERATOR = amos.Operator.parse(_MATRIX, dict(i=4, j=4, k=4))
_UNIT = "wmma_m16n16k16_f16_f32"


@pytest.mark.parametrize(
    "call",
    [
        amos.Operator.parse,
        lambda odd: amos.Operator.parse("o[i] += a[i]", odd),
        lambda odd: amos.Operator.parse("o[i] += a[i]", dict(i=odd)),
        lambda odd: amos.Operator.parse("o[i] += a[i]", dict(i=2), dict(a=odd)),
        lambda odd: amos.Operator.parse("o[i] += a[i]", dict(i=2), shapes=dict(a=odd)),
        lambda odd: _OPERATOR.with_epilogue(odd),
        lambda odd: amos.operators.conv2d(padding=odd),
        lambda odd: amos.operators.conv2d(layout=odd),
        lambda odd: amos.operators.conv2d(dtype=odd),
        amos.operators.resolve,
        amos.intrinsics.get,
        amos.intrinsics.load,
        amos.machines.get,
        lambda odd: amos.enumerate_mappings(_OPERATOR, amos.intrinsics.get(_UNIT), rule=odd),
        lambda odd: amos.enumerate_mappings(_OPERATOR, odd),
        lambda odd: amos.enumerate_mappings(_OPERATOR, amos.intrinsics.get(_UNIT)).find(odd),
        lambda odd: amos.check_matching(_OPERATOR, amos.intrinsics.get(_UNIT), odd),
        lambda odd: amos.explore(_OPERATOR, _UNIT, machine="a100", trials=1, method=odd),
    ],
)
def test_odd_arguments_are_refused(call: Callable[[Any], object]) -> None:
    for odd in _ODD:
        with pytest.raises(amos.AmosError) as caught:
            call(odd)
            pytest.fail(f"{quote(odd)} is accepted")
        assert len(str(caught.value)) < 8000


def test_what_a_message_shows_is_short() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert quote(nested) == "list nested too deep"
    assert quote("abc") == "'abc'"
    assert len(quote(list(range(10**5)))) < 120


def test_twenty_loops_in_one_index() -> None:
    """They change places with one another, so that counting them looks at a few cases."""
    names = [f"l{n}" for n in range(20)]
    text = (
        f"out[{','.join(names[:10])},k] += a[{'+'.join(names)},c] * b[k,c,{','.join(names[10:])}]"
    )
    op = amos.Operator.parse(text, dict.fromkeys([*names, "k", "c"], 2))
    unit = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    space = amos.enumerate_mappings(op, unit, "paper")
    # Some of ten loops with k and c, or c with some of the other ten: a window takes one side.
    assert space.count == 2**10 - 1
    assert space.find(space[space.count // 2].name) == space[space.count // 2]


def test_too_many_kinds_of_windows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amos.mapping.spaces._LOOKED_AT", 1000)
    p, k, r = ([f"{kind}{n}" for n in range(10)] for kind in "pkr")
    a, b = (",".join(f"{x}+{y}" for x, y in zip(indices, r, strict=True)) for indices in (p, k))
    text = f"out[{','.join(p)},{','.join(k)}] += a[{a}] * b[{b}]"
    op = amos.Operator.parse(text, dict.fromkeys([*p, *k, *r], 2))
    unit = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    with pytest.raises(amos.AmosError, match="rules 'access' and 'gather' take any number"):
        len(amos.enumerate_mappings(op, unit, "paper"))
    assert amos.enumerate_mappings(op, unit, "access").count > 0
