"""``amos reproduce``."""

from __future__ import annotations

import json

import pytest

from amos.cli import main


@pytest.mark.parametrize(
    ("table", "rows", "keys", "last"),
    [
        ("table6", 32, {"code", "paper", "counts", "agrees", "definition"}, "forms deviate"),
        ("table5", 12, {"layer", "printed", "name", "index", "found"}, "12 of 12 are in our space"),
        ("accelerators", 15, {"unit", "definition", "counts", "types", "agrees"}, "CONV 31: "),
    ],
)
def test_tables(
    table: str, rows: int, keys: set[str], last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", table, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == rows
    assert all(keys <= row.keys() for row in found)
    assert main(["reproduce", table]) == 0
    printed = capsys.readouterr()
    assert last in printed.out.splitlines()[-1]
    assert printed.err == ""


def test_table_5_under_another_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table5", "--rule", "access", "--json"]) == 0
    assert {row["count"] for row in json.loads(capsys.readouterr().out)} == {49}
