"""The paper's tables against ours."""

from __future__ import annotations

import pytest

from amos import intrinsics, operators
from amos.ir import Affine
from amos.mapping import enumerate_mappings
from amos.reproduce import PRINTED, accelerators, table5, table6
from amos.reproduce.accelerators import types
from amos.reproduce.table5 import read_printed

WMMA = intrinsics.get("wmma_m16n16k16_f16_f32")


def test_table_6_agrees_wherever_the_form_does() -> None:
    rows = table6()
    assert list(dict.fromkeys(row.code for row in rows)) == [
        operators.builder(name).code for name in operators.TABLE_6
    ]
    assert [row.definition for row in rows if not row.agrees and not row.deviates] == []
    assert len({(row.code, row.definition) for row in rows}) == len(rows)
    for row in rows:
        counts = row.counts
        assert counts["paper"] <= counts["access"] <= counts["gather"]
        assert bool(row.reason) == (counts["gather"] == 0)
    deviating = {(row.code, row.counts["paper"]) for row in rows if row.deviates}
    assert {("C2D", 11), ("T2D", 35), ("T2D", 0), ("DEP", 11), ("CAP", 585)} <= deviating


def test_table_5_is_in_our_space_by_name() -> None:
    rows = table5()
    assert [row.layer for row in rows] == [f"C{i}" for i in range(12)]
    assert all(row.is_in_space and row.count == 35 for row in rows)
    assert len({row.name for row in rows}) == 8  # "8 different types", section 7.3
    assert [rows[i].name for i in (0, 5, 6, 9)] == ["nq-k-crs", "pq-k-c", "n-k-cs", "npq-k-crs"]
    for row in rows:
        op = operators.layer(f"resnet18:{row.layer}", layout="NCHW", n=16)
        assert enumerate_mappings(op, WMMA, "paper")[row.index].name == row.name


def test_table_5_tells_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRINTED, "C0", ("(n * 56 + q) mod 16", "k mod 16", "c mod 16"))
    monkeypatch.setitem(PRINTED, "C1", ("q mod 16", "k mod 16", "(c * 3 + s) mod 16"))
    monkeypatch.setitem(PRINTED, "C2", ("p mod 8", "k mod 16", "c mod 16"))
    first, second, third = table5()[:3]
    assert first.reason == "i1 is (n*112 + q) mod 16, not (n*56 + q) mod 16"
    assert (second.name, second.index) == ("", -1)
    assert "share dimension 3 of `image`" in second.reason
    assert third.reason == "i1 is (p) mod 16, not (p) mod 8"


def test_printed_mappings_are_read() -> None:
    expected = Affine((("c", 9), ("r", 3), ("s", 1))), 16
    assert read_printed("(c * 9 + r * 3 + s) mod 16") == expected


def test_which_definitions_give_the_papers_accelerators() -> None:
    rows = accelerators()
    agreeing = {(row.unit, row.agrees[0]) for row in rows if row.agrees}
    assert agreeing == {("AXPY", "paper"), ("GEMV", "paper"), ("CONV", "paper types")}
    # No definition with all loops of a 3-D convolution gives the paper's 7.
    full = str(operators.conv3d().compute)
    gemv = [row for row in rows if row.unit == "GEMV" and row.operator == full]
    assert [row.counts["paper"] for row in gemv] == [180, 15]
    for row in rows:
        if row.registered and row.operator == full:
            unit = intrinsics.get(row.registered)
            space = enumerate_mappings(operators.conv3d(), unit, "paper")
            assert str(unit.compute) == row.intrinsic
            assert (space.count, types(space)) == (row.counts["paper"], row.types["paper"])
