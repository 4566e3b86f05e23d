"""``amos reproduce``."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from amos.cli import main

NETWORKS = Path(__file__).parents[2] / "benchmarks" / "results" / "networks_zen4.json"


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
    report = json.loads(capsys.readouterr().out)
    assert len(report) == rows
    assert all(keys <= row.keys() for row in report)
    assert main(["reproduce", table]) == 0
    printed = capsys.readouterr()
    assert last in printed.out.splitlines()[-1]
    assert printed.err == ""


def test_table_5_under_another_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table5", "--rule", "access", "--json"]) == 0
    assert {row["count"] for row in json.loads(capsys.readouterr().out)} == {49}


@pytest.mark.parametrize(
    ("command", "columns", "rows"),
    [
        ("table6", {"code", "paper", "counts.access", "agrees"}, 32),
        ("table5", {"layer", "name", "found"}, 12),
        ("accelerators", {"unit", "counts.paper"}, 15),
        ("heron-table5", {"code", "variables", "by_type.LE"}, 5),
        ("gta-fig10 --seeds 1", {"retain", "mean"}, 4),
        pytest.param("gta-fig8 --seeds 1", {"network", "scheduler"}, None, marks=pytest.mark.slow),
        (
            "heron-fig12 --seeds 1 --evaluations 8 --method random",
            {"method", "seed", "evaluation", "best_seconds"},
            2 * 8,
        ),
        pytest.param(
            "fig5", {"set", "layer", "pairwise", "recall.40"}, None, marks=pytest.mark.slow
        ),
        (f"fig7 {NETWORKS}", {"network", "seconds", "times.openvino"}, None),
        ("vta --layer C11 --trials 1", {"layer", "cycles"}, 1),
    ],
)
@pytest.mark.long
def test_rows_as_csv(
    command: str,
    columns: set[str],
    rows: int | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Beside what is printed anyway."""
    path = tmp_path / "rows.csv"
    assert main(["reproduce", *command.split(), "--csv", str(path)]) == 0
    assert capsys.readouterr().out
    frame = pd.read_csv(path)
    assert columns <= set(frame)
    assert len(frame) == rows if rows else len(frame) > 1


def test_a_csv_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "missing" / "rows.csv"
    assert main(["reproduce", "table5", "--csv", str(path)]) == 2
    assert "--csv" in capsys.readouterr().err
