"""``amos map`` and ``amos explore`` on chains."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from amos.cli.app import app
from amos.errors import AmosError
from tests.ir.test_chain import ATTENTION

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")

OPTIONS = ["--extent", "b=2,q=40,k=64,d=16", "--machine", "xeon_6240"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.long
def test_explore() -> None:
    output = run("explore", ATTENTION, *OPTIONS, "--trials", "2")
    assert "winner     tiles" in output and "avx512_fmadd_m16_f32_f32" in output
    fixed = run("explore", ATTENTION, *OPTIONS, "--trials", "1", "--fix", "tile.q=8")
    assert "q:8" in fixed
    values = json.loads(run("explore", ATTENTION, *OPTIONS, "--trials", "2", "--json"))
    assert values["statements"][1] == "p = softmax(scores * s, axis=k)"
    assert {"scores", "out"} == values["products"].keys()


def test_constants() -> None:
    chain = ["t[i,j] += x[i,k] * w[k,j]; o = t * 2", "--extent", "i=8,j=16,k=16", *OPTIONS[2:]]
    assert "winner" in run("explore", *chain, "--trials", "1", "--constant", "w")
    refused = CliRunner().invoke(app, ["explore", *chain, "--constant", "o"])
    assert isinstance(refused.exception, AmosError)
    assert "constants: expected inputs of products (x, w), got 'o'" in str(refused.exception)


def test_a_chain_of_one_statement() -> None:
    chain = ["p[i,k] = softmax(x[i,k], axis=k);", "--extent", "i=8,k=64", *OPTIONS[2:]]
    assert "winner     tiles" in run("explore", *chain, "--trials", "1")
    assert "vectors, no instruction" in run("map", *chain)


def test_map() -> None:
    output = run("map", ATTENTION, *OPTIONS)
    assert "vectors, no instruction" in output and "avx512_fmadd_m16_f32_f32" in output
    rows = json.loads(run("map", ATTENTION, *OPTIONS, "--json"))["rows"]
    assert [bool(row["instructions"]) for row in rows] == [True, False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", ATTENTION], "predict takes one statement; explore predicts chains"),
        (["explore", ATTENTION, "--epilogue", "relu(acc)"], "which has no with_epilogue"),
        (["explore", ATTENTION, "--fix", "unroll=4"], "unknown variable of a chain 'unroll=4'"),
        (["explore", ATTENTION, "--fix", "tile.k=3"], "tile.k = 3: expected a divisor of 64"),
        (["map", "t[b] = u[b]; u[b] = t[b]"], "no extent given"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    extents = ["--extent", "b=2,q=40,k=64,d=16"] if ATTENTION in arguments else []
    with pytest.raises(AmosError, match=message):
        CliRunner().invoke(app, [*arguments, *extents], catch_exceptions=False)
