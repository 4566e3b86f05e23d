"""Figures of GPUs by the model: AMOS's Figures 8b and 9, Hidet's Figure 19."""

from __future__ import annotations

import json

import pytest

from amos.cli import main


def test_fixed_mappings_lose(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fig9", "--layer", "C11", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (row,) = result["rows"]
    assert result["by"] == "model"
    assert {*row["fixed"]} == {"fixM1", "fixM2"} == {*result["drop"]}
    assert all(seconds >= row["seconds"] > 0 for seconds in row["fixed"].values())
    # The whole space has both, so neither is faster. One with channels alone loses much.
    assert 0 <= result["drop"]["fixM1"] < result["drop"]["fixM2"]
    assert 0.2 < result["drop"]["fixM2"] < 1


def test_few_schedules_serve_a_prime_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "hidet-fig19", "--size", "2039", "--size", "2048", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["size"] for row in rows] == [2039, 2048]
    for row in rows:
        assert 100 <= row["listed"] <= 200
        assert row["seconds"] <= 1.05 * row["large_space"]
    assert rows[0]["seconds"] <= 1.05 * rows[1]["seconds"]


def test_depthwise_layers_leave_dot_products_idle(capsys: pytest.CaptureFixture[str]) -> None:
    """Their windows of nine fill three calls to three quarters, and reuse little."""
    assert main(["reproduce", "fig8b", "--layer", "DEP2", "--layer", "C2D2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    depthwise, pointwise = result["rows"]
    assert result["by"] == "model"
    assert depthwise["layer"] == "DEP2"
    assert 0 < depthwise["peak_fraction"] < 0.5 * pointwise["peak_fraction"] < 0.5


@pytest.mark.parametrize(("figure", "words"), [("fig8b", "Figure 8b"), ("fig9", "Table 5")])
def test_a_layer_that_there_is_not(
    capsys: pytest.CaptureFixture[str], figure: str, words: str
) -> None:
    assert main(["reproduce", figure, "--layer", "C12"]) == 2
    assert f"unknown layer of {words} 'C12'" in capsys.readouterr().err
