"""Figure 7 from the rows of the benchmark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from amos.cli import main
from amos.errors import RecordError
from amos.reproduce.fig7 import default_results, fig7, means

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "networks_zen5.json"


def _row(network: str, contender: str, seconds: float, **fields: Any) -> dict[str, Any]:
    same = dict(dtype="f32", batch=1, correct=True)
    return dict(network=network, contender=contender, median_seconds=seconds) | same | fields


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows = [
        _row("mlp", "amos", 1.0),
        _row("mlp", "pytorch", 8.0),
        _row("resnet18", "openvino", 4.0, correct=False),
        _row("resnet18", "pytorch", 4.0),
        _row("resnet18", "amos", 2.0),
        _row("resnet18", "amos", 3.0, batch=16),
        _row("bert", "amos", 1.0, correct=False),
        _row("bert", "pytorch", 1.0),
    ]
    path = tmp_path / "networks.json"
    path.write_text(json.dumps({"rows": rows}))
    return path


def test_right_rows_of_amos_and_their_means(results: Path) -> None:
    rows = fig7(results)
    assert [(row.network, row.batch, row.times) for row in rows] == [
        ("resnet18", 1, {"pytorch": 2.0}),
        ("mlp", 1, {"pytorch": 8.0}),
        ("resnet18", 16, {}),
    ]
    averages = {(row.network, row.batch): row.times for row in means(rows)}
    assert averages[("of the figure", 1)] == {"pytorch": 2.0}
    assert averages[("of all", 1)] == {"pytorch": pytest.approx(4.0)}


def test_the_command_reads_what_the_repository_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fig7", str(RESULTS)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"resnet18 +f32 +1 +[\d.]+", printed)
    assert "0.91 (BERT, batch 16) to 10.42 times" in " ".join(printed.split())
    assert main(["reproduce", "fig7", str(RESULTS), "--json"]) == 0
    assert {row["network"] for row in json.loads(capsys.readouterr().out)} >= {"bert", "of all"}


def test_the_default_does_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = default_results()
    monkeypatch.chdir(tmp_path)
    assert default_results() == usual
    assert usual.is_absolute()
    assert main(["reproduce", "fig7"]) == 0
    assert f"by {usual.name}" in capsys.readouterr().out


def test_the_last_run_comes_before_the_published_one(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="expected a FILE"):
        default_results(tmp_path)
    for name in ("networks_zen4.json", "networks.json"):
        (tmp_path / name).touch()
        assert default_results(tmp_path).name == name


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"rows": [{}]}', '{"rows": []}'])
def test_bad_results_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "networks.json"
    if text:
        path.write_text(text)
    with pytest.raises(RecordError, match="expected"):
        fig7(path)
