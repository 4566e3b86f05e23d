"""``amos map``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amos.cli import main

WMMA = "wmma_m16n16k16_f16_f32"
CONV = ["map", "conv2d", WMMA]
GEMM = ["map", "out[i,j] += a[i,k] * b[k,j]", WMMA]
SIZES = ["--extent", "i=64", "--extent", "j=32", "--extent", "k=48"]


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


@pytest.mark.parametrize(("rule", "count"), [("paper", 35), ("access", 49)])
def test_conv2d_on_a_matrix_unit(rule: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    report = _json([*CONV, "--rule", rule], capsys)
    assert report["operator"] == "conv2d"
    assert report["intrinsic"] == WMMA
    assert report["rule"] == rule
    assert report["count"] == count == len(report["mappings"])
    assert len({row["name"] for row in report["mappings"]}) == count


def test_a_row_says_what_a_mapping_is(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = _json([*GEMM, *SIZES], capsys)["mappings"]
    assert row["groups"] == {"i1": ["i"], "i2": ["j"], "r1": ["k"]}
    assert row["calls"] == 4 * 2 * 3
    assert row["utilization"] == 1.0
    assert "i mod 16" in row["expression"]


def test_limit_lists_fewer_and_counts_all(capsys: pytest.CaptureFixture[str]) -> None:
    report = _json([*CONV, "--limit", "2"], capsys)
    assert (report["count"], len(report["mappings"])) == (49, 2)
    assert main([*CONV, "--limit", "2"]) == 0
    text = capsys.readouterr().out
    assert "49 mappings under rule 'access'" in text
    assert "47 more; --limit 49 lists all of them." in text
    assert main([*CONV, "--limit", "0"]) == 0
    assert "49 mappings" in capsys.readouterr().out


def test_table_shows_operator_intrinsic_and_mappings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GEMM, *SIZES]) == 0
    text = capsys.readouterr().out
    assert "out[i, j] += a[i, k] * b[k, j]" in text
    assert "reg.Src1[i1, r1] = shared.Src1" in text
    assert "1 mapping under rule 'access'" in text
    assert "100.0%" in text


@pytest.mark.parametrize(
    "matrix",
    [
        "100;010;001",
        "100/010/001",
        "1 0 0; 0 1 0; 0 0 1",
        "[[1, 0, 0], [0, 1, 0], [0, 0, 1]]",
        "[[1 0 0]\n [0 1 0]\n [0 0 1]]",
        "i-j-k",
    ],
)
def test_explain_a_valid_matching(matrix: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = _json([*GEMM, *SIZES, "--explain", matrix], capsys)
    assert report["valid"] is True
    assert report["reasons"] == []
    assert report["matrix"] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_explain_an_invalid_matching(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*GEMM, *SIZES, "--explain", "010;100;001"]
    report = _json(arguments, capsys)
    assert report["valid"] is False
    assert report["reasons"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "not valid under rule 'access'" in text
    assert all(f"  - {reason}" in text for reason in report["reasons"])


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ("100;010", "expected 3 rows (i1, i2, r1) of 3 columns (i, j, k), got 2 of 3"),
        ("1000;0100;0010", "got 3 of 4"),
        ("10;010;001", "got 3 of 2 and 3"),
        ("1x0;010;001", "expected 3 rows (i1, i2, r1) of 3 zeros and ones (i, j, k)"),
        ("abc", "or a name of 3 groups joined by '-'"),
        ("i-j", "expected 3 groups joined by '-', for i1, i2, r1; got 2"),
        ("i-x-k", "has no iteration 'x'; it has i, j, k"),
        ("j-i-k~10", "only the given order of the sources"),
        ("100,010,001", "got 1 of 9"),
        ("", "expected 3 rows"),
    ],
)
def test_explain_refuses_what_is_no_matrix(
    matrix: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*GEMM, *SIZES, "--explain", matrix]) == 2
    assert message in capsys.readouterr().err


def test_a_dtype_that_the_intrinsic_does_not_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CONV, "--dtype", "u8s8"]) == 2
    printed = capsys.readouterr()
    assert "uint8" in printed.err
    assert len(printed.err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("matching", "rule", "note"),
    [
        ("n-_-c", "paper", "not wrong, but part of the unit is idle without need"),
        ("q-k-cs", "paper", "but under 'access': right if fragments may be gathered"),
        ("nk-_-c", "gather", "`n` and `k` both go to `i1`"),
        ("npq-k-crs", "paper", "image is Src1, weight is Src2, out is Dst"),
    ],
)
def test_explain_says_what_kind_of_refusal_it_is(
    matching: str, rule: str, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CONV, "--rule", rule, "--explain", matching]) == 0
    assert note in capsys.readouterr().out


def test_explain_keeps_wrong_and_idle_apart(capsys: pytest.CaptureFixture[str]) -> None:
    report = _json([*CONV, "--explain", "q-_-cs"], capsys)
    assert report["wrong"] + report["idle"] == report["reasons"]
    assert len(report["idle"]) == 1
    assert (
        _json([*CONV, "--rule", "paper", "--explain", "q-k-cs"], capsys)["accepted_by"] == "access"
    )


def test_an_empty_space_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["map", "o[i,j] += a[i,k] * b[j]", WMMA, *SIZES]
    reason = "rule 'gather' has 1 mapping (--rule gather); rule 'access' refuses the first, i-j-k: "
    reason += "`k` goes to `r1`"
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "0 mappings under rule 'access'" in text
    assert reason in text
    report = _json(arguments, capsys)
    assert (report["count"], report["mappings"]) == (0, [])
    assert report["reason"].startswith(reason)
