"""Heron's Table 5 and Figure 12, in small."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from amos.cli import main
from amos.reproduce import heron_fig12, heron_table5
from amos.reproduce.heron_time import PAPER_MINUTES, mean_ratios


def test_table_5() -> None:
    rows = heron_table5()
    assert [(row.code, row.paper) for row in rows] == [
        ("GEMM", (173, 372)),
        ("BMM", (236, 529)),
        ("C1D", (236, 547)),
        ("C2D", (304, 702)),
        ("C3D", (363, 861)),
    ]
    # As in the paper, the operator with the most loops needs the most constraints.
    most = [row.constraints[1] for row in rows]
    assert max(most) == most[4]
    for row in rows:
        assert sum(row.by_type.values()) == row.constraints[1]
        assert sum(row.by_role.values()) in range(row.variables[0], row.variables[1] + 1)


def test_figure_12_in_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--evaluations", "40", "--seeds", "2", "--method", "ga", "--method", "ga_sr"]
    picture = tmp_path / "curves.svg"
    assert main(["reproduce", "heron-fig12", *arguments, "--picture", str(picture), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["runs"]) == 2 * 2 * 2
    for run in report["runs"]:
        assert {"best", "valid_share", "evaluations_to_95pct", "method", "seed"} <= run.keys()
        assert len(run["best"]) == 40
        assert run["best"] == sorted(run["best"], reverse=True)
        goal = report["best_known"][run["operator"]] / 0.95
        reached = run["evaluations_to_95pct"]
        if reached is None:
            assert run["best"][-1] > goal
        else:
            assert run["best"][reached - 1] <= goal
        assert 0 < run["valid_share"] <= 1
        assert run["method"] != "ga" or run["valid_share"] == 1
    for operator in ("gemm", "c2d"):
        assert (tmp_path / f"curves-{operator}.svg").read_text().startswith("<svg")


def test_figure_12_is_reproducible() -> None:
    a, b = (heron_fig12(evaluations=30, seeds=1, methods=["cga"]) for _ in range(2))
    assert a == b
    assert math.isfinite(a.best_known["gemm"])
    assert a.median("gemm", "cga") <= 30
    assert a.reached_count("c2d", "cga") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--evaluations", "0"], "evaluations: expected a whole number from 1 on, got 0"),
        (["--seeds", "0"], "seeds: expected a whole number from 1 on, got 0"),
        (["--method", "cgaa"], "unknown search method 'cgaa'"),
        (["--machine", "a10"], "unknown machine 'a10'"),
    ],
)
def test_bad_input(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "heron-fig12", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.long
def test_table_10_in_small(capsys: pytest.CaptureFixture[str]) -> None:
    """Each method measures what it is told to, and the means are those of the rows."""
    arguments = ["--trials", "3", "--operator", "BMM", "--json"]
    assert main(["reproduce", "heron-table10", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    (row,) = report["rows"]
    assert row["paper_minutes"] == {"AutoTVM": 90, "AMOS": 97, "Heron": 90}
    for ours in row["ours"].values():
        assert (ours["trials"], ours["failed"]) == (3, 0)
        parts = ours["search"] + ours["learning"] + ours["measurement"]
        assert ours["seconds"] == pytest.approx(parts)
        # Compiling is what takes long.
        assert ours["measurement"] > 0.5 * parts
        assert ours["best"] > 0
    seconds = {name: ours["seconds"] for name, ours in row["ours"].items()}
    expected = {name: seconds["Heron"] / seconds[name] for name in ("AutoTVM", "AMOS")}
    assert report["heron_over"]["ours"] == pytest.approx(expected)


def test_means_of_table_10_are_the_papers() -> None:
    """87 % of AutoTVM's time and 82 % of AMOS's, which are geometric means."""
    ratios = mean_ratios([*PAPER_MINUTES.values()])
    assert {name: round(ratio, 2) for name, ratio in ratios.items()} == {
        "AutoTVM": 0.87,
        "AMOS": 0.82,
    }


@pytest.mark.long
def test_figure_14_in_small(capsys: pytest.CaptureFixture[str]) -> None:
    """Two batches: the second one is chosen by what the first has taught."""
    arguments = ["--trials", "17", "--operator", "BMM", "--json"]
    assert main(["reproduce", "heron-fig14", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["case"] for row in report["rows"]] == [1, 2, 3]
    for row in report["rows"]:
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert all(share > 0 for share in row["shares"].values())


@pytest.mark.parametrize("figure", ["heron-table10", "heron-fig14"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trials", "0"], "trials: expected a whole number from 1 on, got 0"),
        (["--seed", "-1"], "seed: expected a number from 0 on, below 2**63, got -1"),
        (["--operator", "C2D"], "unknown operator of Heron's Table 10 'C2D'"),
    ],
)
def test_bad_input_of_search_times(
    figure: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", figure, *arguments]) == 2
    assert words in capsys.readouterr().err
