"""The times that the authors of AMOS published, beside the model."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from amos.cli.app import app
from amos.reproduce.published import _best_of, _chance, load_published


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    """What the command prints."""
    result = CliRunner().invoke(app, ["reproduce", "fig5", "--gpu", "published", "--json"])
    figures: dict[str, Any] = json.loads(result.stdout)
    return figures


def test_every_published_mapping_is_in_our_space(compared: dict[str, Any]) -> None:
    rows = load_published()
    assert compared["mappings"] == len(rows) == 106
    assert sum(layer["mappings"] for layer in compared["layers"]) == 106


def test_mappings_without_their_loops_of_one_step_are_fewer(compared: dict[str, Any]) -> None:
    """With a kernel of 1x1 and batch 1, only the output's two loops are left to choose from."""
    counts = {x["layer"]: x["computations"] for x in compared["layers"]}
    assert counts["64x56x56 to 64, 1x1, stride 1"] == 3
    assert counts["256x14x14 to 512, 1x1, stride 2"] == 1
    assert counts["128x28x28 to 128, 3x3, stride 1"] == 12


def test_published_order_is_hardly_more_than_chance(compared: dict[str, Any]) -> None:
    """What docs/cuda.md says of these times."""
    ratios = [x["equals_differ"] / x["mappings_differ"] for x in compared["layers"]]
    assert min(ratios) > 0.9
    assert sum(x["chance"] > 0.05 for x in compared["layers"]) >= 4
    assert compared["repeatability"] < 0.65
    assert compared["pairwise"] > 0.5
    assert compared["pooled_pairwise"] > 0.7


def test_fastest_of_some_draws_is_their_mean_over_all_draws() -> None:
    ordered = np.array([1.0, 2.0, 4.0, 8.0, 9.0])
    for count in (1, 2, 4, 5):
        least = [np.log(min(chosen)) for chosen in combinations(ordered, count)]
        assert _best_of(ordered, count) == pytest.approx(np.exp(np.mean(least)))
    assert _best_of(ordered, 70) == 1.0


def test_chance_is_small_where_classes_differ() -> None:
    names = np.array(list("aaabbbccc"))
    noise = np.random.default_rng(0).normal(size=9)
    assert _chance(noise + 10 * (names == "b") + 20 * (names == "c"), names) < 0.02
    assert _chance(noise, names) > 0.1
    assert _chance(noise, np.array(["a"] * 9)) == 1.0


def test_other_options_are_refused() -> None:
    refused = CliRunner().invoke(app, ["reproduce", "fig5", "--gpu", "published", "--fit"])
    assert refused.exit_code == 2
