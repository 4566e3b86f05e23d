"""The genetic search: a DEAP toolbox, operators of a user's own, and its logbook."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from deap import base, tools

import amos
from amos.errors import AmosError, ExploreError, UnknownNameError
from amos.explore import Exploration, Problem
from amos.explore.genetic import GeneticSearch
from amos.explore.individual import Individual, Seconds, Survivors
from amos.explore.toolbox import build_toolbox
from amos.operators import resolve

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
LAYER = resolve("resnet18:C5")
PROBLEM = Problem(
    list(amos.enumerate_mappings(LAYER, amos.intrinsics.get(VNNI))), amos.machines.get("xeon_4110")
)


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation and a half for each batch of trials."""
    monkeypatch.setattr(GeneticSearch, "inner", 96)


def _explore(method: str = "ga", **options: Any) -> Exploration:
    return amos.explore(
        LAYER,
        VNNI,
        machine="xeon_4110",
        trials=10,
        method=method,
        progress=False,
        search=amos.SearchOptions(**options),
    )


def _drawn(count: int, mapping: int = 0) -> list[Individual]:
    toolbox = build_toolbox(PROBLEM, np.random.default_rng(0), {})
    return [toolbox.individual(PROBLEM.mappings[mapping]) for _ in range(count)]


def _change_one(individual: Individual, rng: np.random.Generator) -> tuple[Individual]:
    domains = list(individual.space.variables.values())
    chosen = int(rng.integers(len(domains)))
    individual[chosen] = int(rng.integers(len(domains[chosen])))
    return (individual,)


def test_an_individual_is_its_candidate() -> None:
    for individual in _drawn(8):
        names = list(individual.space.variables)
        positions = individual.space.csp.positions(individual.values)
        assert list(individual) == [positions[name] for name in names]
        again = Individual(individual.space, individual)
        assert again.candidate == individual.candidate


def test_repair_takes_what_is_nearest_and_leaves_what_fits() -> None:
    rng = np.random.default_rng(0)
    for individual in _drawn(8):
        before = list(individual)
        state = rng.bit_generator.state
        individual.repair(rng)
        assert list(individual) == before
        assert rng.bit_generator.state == state
        individual[0] = 1e9
        individual[1] = None
        individual.repair(rng)
        assert individual.space.is_feasible(individual.candidate.schedule)
        assert all(type(at) is int for at in individual)


def test_a_move_keeps_the_values_that_both_mappings_have() -> None:
    (individual,) = _drawn(1)
    values, space = individual.values, PROBLEM.space(PROBLEM.mappings[1])
    individual.move(space)
    for at, (name, domain) in zip(individual, space.variables.items(), strict=True):
        if at is not None:
            assert domain[int(at)] == values[name]
    individual.repair(np.random.default_rng(0))
    assert individual.candidate.mapping == PROBLEM.mappings[1]
    assert space.is_feasible(individual.candidate.schedule)


def test_survivors_are_the_best_with_few_of_each_niche() -> None:
    """As if all were sorted at once: among equals the one that was told first."""
    rng = np.random.default_rng(0)
    samples = [x for n in range(len(PROBLEM.mappings)) for x in _drawn(40, n)]
    rng.shuffle(samples)
    for individual in samples:
        individual.fitness = Seconds((float(rng.integers(1, 20)),))
    samples[0].fitness = Seconds((float("inf"),))
    survivors = Survivors(12, 2)
    for start in range(0, len(samples), 7):
        survivors.update(samples[start : start + 7])
    expected: list[Individual] = []
    for individual in sorted(samples[1:], key=lambda x: x.seconds):
        if sum(x.niche == individual.niche for x in expected) < 2:
            expected.append(individual)
    assert [x.candidate.key for x in survivors] == [x.candidate.key for x in expected[:12]]


def test_children_are_feasible_whatever_the_parents() -> None:
    toolbox = build_toolbox(PROBLEM, np.random.default_rng(1), {"mate": tools.cxTwoPoint})
    pool = [x for n in range(len(PROBLEM.mappings)) for x in _drawn(4, n)]
    plain = build_toolbox(PROBLEM, np.random.default_rng(1), {})
    for registered in (toolbox, plain):
        for first, second in pairwise(pool):
            child = registered.mate(registered.clone(first), registered.clone(second))[0]
            assert child.candidate.mapping == first.candidate.mapping
            (child,) = registered.mutate(child)
            assert child.space.is_feasible(child.candidate.schedule)


@pytest.mark.parametrize(
    "toolbox",
    [
        {"mutate": _change_one},
        {"mutate": partial(tools.mutGaussian, mu=0, sigma=2, indpb=0.2)},
        {"mutate": partial(tools.mutUniformInt, low=0, up=9, indpb=0.2)},
        {"mate": tools.cxTwoPoint, "select": tools.selBest},
        {"mate": partial(tools.cxBlend, alpha=0.5), "select": tools.selRandom},
    ],
    ids=["own", "gaussian", "uniform", "two points", "blend"],
)
def test_operators_may_be_exchanged(toolbox: dict[str, Any]) -> None:
    """Also those that draw from Python's generator, which is left as it was."""
    state = random.getstate()
    first = _explore(toolbox=toolbox)
    assert random.getstate() == state
    random.random()
    second = _explore(toolbox=toolbox)
    assert [x.candidate.key for x in first.trials] == [x.candidate.key for x in second.trials]
    pd.testing.assert_frame_equal(first.logbook, second.logbook)
    for trial in first.trials:
        assert PROBLEM.space(trial.mapping).is_feasible(trial.schedule)


def test_an_exchanged_operator_is_called() -> None:
    calls = []

    def select(individuals: list[Individual], k: int) -> list[Individual]:
        calls.append((len(individuals), k))
        return individuals[:k]

    toolbox = base.Toolbox()
    toolbox.register("select", select)
    _explore(toolbox=toolbox)
    assert calls
    assert all(0 < size <= 32 and k == 1 for size, k in calls)


@pytest.mark.parametrize(
    ("toolbox", "error", "message"),
    [
        ({"mates": _change_one}, UnknownNameError, "did you mean 'mate'"),
        ({"mate": 3}, ExploreError, "toolbox: mate: expected a function, got 3"),
        (3, ExploreError, "toolbox: expected operators by name, got 3"),
        ({"mate": lambda a, b: None}, ExploreError, "mate: expected a tuple of individuals"),
        ({"mutate": lambda x: x}, ExploreError, "mutate: expected a tuple of individuals"),
        ({"select": lambda x, k: []}, ExploreError, "select: expected a tuple of individuals"),
        ({"mutate": lambda x: (x.append(0) or x,)}, ExploreError, "expected 14 positions"),
    ],
)
def test_what_is_no_operator(toolbox: Any, error: type[AmosError], message: str) -> None:
    with pytest.raises(error, match=message):
        _explore(toolbox=toolbox)


def test_methods_without_operators_refuse_them() -> None:
    with pytest.raises(ExploreError, match="expected the method 'ga', which has operators"):
        _explore("sa", toolbox={"mutate": _change_one})


def test_records_tell_runs_with_other_operators_apart() -> None:
    plain = amos.SearchOptions()
    own = amos.SearchOptions(toolbox={"select": partial(tools.selTournament, tournsize=4)})
    assert "toolbox" not in plain.to_record()
    assert own.to_record()["toolbox"] == {
        "select": "deap.tools.selection.selTournament(tournsize=4)"
    }
    assert hash(own) == hash(plain) != hash(amos.SearchOptions(commute=True))


def test_the_logbook_has_a_row_a_generation() -> None:
    book = _explore().logbook
    assert list(book["generation"]) == list(range(len(book)))
    # Fewer scores before a smaller batch.
    assert list(book["evaluations"]) == [64, 32, 24]
    assert list(book["trials"].unique()) == [0, 8]
    assert (book["min"] <= book["median"]).all()
    assert (book["median"] <= book["max"]).all()
    # The model is not corrected on a described machine, so the best stays.
    assert book["min"].is_monotonic_decreasing
    assert (book["mappings"] >= 1).all()
    assert set(book["intrinsic"]) == {VNNI}


def test_a_contest_has_a_logbook_of_each_instruction() -> None:
    quantized = resolve("resnet18:C5", dtype="u8s8")
    result = amos.explore(quantized, machine="xeon_6240", trials=16, progress=False)
    taking = {each.intrinsic.name for each in result.intrinsics if each.trials}
    assert set(result.logbook["intrinsic"]) == taking


def test_other_methods_leave_the_logbook_empty() -> None:
    book = _explore("random").logbook
    assert len(book) == 0
    assert list(book)[:2] == ["intrinsic", "generation"]


def test_scores_that_change_choose_other_survivors() -> None:
    """After the model is corrected, the survivors are those of the new scores."""
    search = GeneticSearch(PROBLEM, np.random.default_rng(0))
    batch = search.ask(64)
    search.tell([(candidate, float(n + 1)) for n, candidate in enumerate(batch)])
    assert search.survivors[0].candidate == batch[0]
    search.rescore(lambda candidates: np.arange(len(candidates), 0, -1.0))
    assert search.survivors[0].candidate == batch[-1]
    assert search.survivors[0].seconds == 1


def test_a_generation_that_failed_altogether() -> None:
    search = GeneticSearch(PROBLEM, np.random.default_rng(0))
    search.tell([(candidate, float("inf")) for candidate in search.ask(8)])
    assert len(search.survivors) == 0
    assert search.logbook[0]["evaluations"] == 8
    assert len(search.ask(8)) == 8
