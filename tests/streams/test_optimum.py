"""The model's optimum, held against every candidate of tiny spaces and against searches."""

from __future__ import annotations

import json

import numpy as np
import pytest

import amos
from amos.cli.app import main
from amos.explore.method import enumerate_candidates
from amos.explore.methods import search_of
from amos.explore.objective import Problem
from amos.explore.optimal import Optimal
from amos.explore.options import SearchOptions
from amos.explore.ranking import rank_candidates
from amos.perfmodel.bound import Certificate
from amos.streams.optimum import find_optimum
from tests.streams.test_bounds import ROOMS, TINY, small_unit
from tests.support.streams import PYNQ, VTA


def _certificate(problem: Problem, limit_seconds: float = 60.0) -> Certificate:
    spaces = [*problem.spaces.values()]
    return find_optimum(spaces, problem.machine, problem.objective, limit_seconds).certificate


@pytest.mark.parametrize("objective", ["time", "energy", "edp"])
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("rooms", ROOMS[:2])
def test_it_is_the_best_of_all_candidates(
    name: str, rooms: tuple[int, int, int], objective: str
) -> None:
    mappings = [*amos.enumerate_mappings(TINY[name], small_unit(rooms))][:2]
    problem = Problem(mappings, PYNQ, objective=objective)
    values = problem.scores([*enumerate_candidates(problem)])
    optimum = find_optimum([*problem.spaces.values()], PYNQ, objective, 60.0)
    certificate = optimum.certificate
    assert certificate.is_optimal
    assert certificate.value == pytest.approx(values.min(), rel=1e-12)
    assert problem.scores(optimum.candidates)[0] == pytest.approx(values.min(), rel=1e-12)
    spaces = problem.spaces
    assert all(spaces[c.mapping.name].is_feasible(c.schedule) for c in optimum.candidates)


def test_fixed_values_hold() -> None:
    mappings = [*amos.enumerate_mappings(TINY["gemm"], VTA)]
    problem = Problem(mappings, PYNQ, fixes=[("tile.i1.tile", 1), ("buffers.Src1", 1)])
    best = min(problem.scores([*enumerate_candidates(problem)]))
    assert _certificate(problem).value == pytest.approx(best, rel=1e-12)


def test_no_search_is_below_it() -> None:
    op = amos.operators.resolve("resnet18:C10", dtype="s8")
    unit = amos.intrinsics.get("gemmini_matmul_m16n16k16_s8_s32")
    problem = Problem([*amos.enumerate_mappings(op, unit)], amos.machines.get("gemmini"))
    certificate = _certificate(problem)
    assert certificate.is_optimal
    searched = problem.seconds(rank_candidates(problem, 4)).min()
    assert certificate.value * (1 - 1e-12) <= searched <= 1.5 * certificate.value


def test_a_search_that_is_stopped_tells_the_gap() -> None:
    op = amos.operators.resolve("resnet18:C2", dtype="s8")
    problem = Problem([*amos.enumerate_mappings(op, VTA)][:6], PYNQ)
    stopped, whole = _certificate(problem, 0.0), _certificate(problem)
    assert not stopped.is_optimal
    assert stopped.least <= whole.value <= stopped.value
    assert stopped.gap == stopped.value / stopped.least > 1
    assert "of the optimum" in str(stopped)


@pytest.mark.parametrize("objective", ["time", "energy"])
def test_too_many_tilings_leave_a_gap(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mappings = [*amos.enumerate_mappings(TINY["gemm"], VTA)]
    problem = Problem(mappings, PYNQ, objective=objective)
    best = problem.scores([*enumerate_candidates(problem)]).min()
    monkeypatch.setattr("amos.streams.tilings._TILINGS", 1)
    monkeypatch.setattr("amos.explore.optimal._LISTED", 1)
    monkeypatch.setattr("amos.explore.optimal._SCORES", 64)
    search = Optimal(problem, np.random.default_rng(0))
    assert search.certificate is not None
    assert 0 < search.certificate.least <= best <= search.certificate.value < np.inf
    assert problem.scores(search.ask(1)) == [search.certificate.value]


def test_a_time_limit_ends_the_proof() -> None:
    op = amos.operators.resolve("resnet18:C2", dtype="s8")
    problem = Problem([*amos.enumerate_mappings(op, VTA)][:6], PYNQ)
    search = search_of("optimal", SearchOptions(time_limit=1e-6))(problem, np.random.default_rng(0))
    assert search.certificate is not None
    assert 1 < search.certificate.gap < np.inf
    assert search.ask(1)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = "out[i,j] += a[i,k] * b[k,j]"
    command = ["explore", text, VTA.name, "--machine", "vta_pynq", "--extent", "i=8,j=32,k=32"]
    command += ["--dtype", "s8", "--method", "optimal", "--trials", "2"]
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["certificate"]["is_optimal"]
    assert printed["certificate"]["value"] == pytest.approx(printed["predicted_seconds"])
    assert main(command) == 0
    assert "the model's optimum" in capsys.readouterr().out
