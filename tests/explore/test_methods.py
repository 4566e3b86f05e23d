"""Search methods against each other, on the model."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos.explore import METHODS, Problem, Trial
from amos.explore.genetic import GeneticSearch
from amos.explore.random_search import RandomSearch
from amos.ir import Operator
from amos.measure import Measurement
from amos.schedule import Candidate, ScheduleSpace

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
XEON = amos.machines.get("xeon_6240")
CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=14, q=14, k=64, c=32, r=3, s=3),
    shapes=dict(image=(1, 14, 14, 32)),
)
MAPPINGS = list(amos.enumerate_mappings(CONV, VNNI, rule="gather"))


def _problem() -> Problem:
    return Problem(MAPPINGS, XEON)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_proposes_feasible_and_new_candidates(name: str) -> None:
    problem = _problem()
    search = METHODS[name]()(problem, np.random.default_rng(0))
    seen = set()
    for _ in range(6):
        batch = search.ask(5)
        assert len(batch) == 5
        for candidate in batch:
            assert ScheduleSpace(candidate.mapping).violations(candidate.schedule) == ()
            assert candidate.key not in seen
            seen.add(candidate.key)
            seconds = problem.predict(candidate).seconds
            problem.tell(Trial(len(problem.trials), candidate, seconds))
    assert problem.measured() == seen


def test_every_mapping_is_in_the_first_population() -> None:
    search = GeneticSearch(_problem(), np.random.default_rng(0))
    found = {individual.candidate.mapping.name for individual in search._population}
    assert found == {mapping.name for mapping in MAPPINGS}


def test_more_mappings_than_the_population_holds() -> None:
    wmma = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    op = amos.operators.resolve("conv3d")
    mappings = list(amos.enumerate_mappings(op, wmma))
    search = GeneticSearch(Problem(mappings, amos.machines.get("a100")), np.random.default_rng(0))
    assert len(mappings) > 64
    assert {x.candidate.mapping.name for x in search._population} == {m.name for m in mappings}


def _best_of(problem: Problem, candidates: list[Candidate]) -> float:
    return float(problem.seconds(candidates).min())


def test_the_genetic_search_is_no_worse_than_chance_at_equal_evaluations() -> None:
    """Equal numbers of different candidates shown to the model; geometric mean of ratios.

    Many schedules are within a percent of the best one, hence the tolerance.
    """
    wmma, layer = (
        amos.intrinsics.get("wmma_m16n16k16_f16_f32"),
        amos.operators.resolve("resnet18:C5"),
    )
    mappings = list(amos.enumerate_mappings(layer, wmma, rule="access"))
    logs = []
    for seed in range(3):
        problem, other = (Problem(mappings, amos.machines.get("a100")) for _ in range(2))
        found = GeneticSearch(problem, np.random.default_rng(seed)).ask(8)
        best, evaluations = _best_of(problem, found), len(problem._predicted)
        drawn = RandomSearch(other, np.random.default_rng(seed)).ask(evaluations)
        assert len(drawn) == evaluations
        logs.append(np.log(best / _best_of(other, drawn)))
    assert np.mean(logs) <= 0.005


def test_the_genetic_search_beats_chance_at_equal_trials() -> None:
    """The model is free next to a measurement, and random search does not ask it."""
    for seed in range(3):
        problem, other = _problem(), _problem()
        found = _best_of(problem, GeneticSearch(problem, np.random.default_rng(seed)).ask(8))
        assert found < _best_of(other, RandomSearch(other, np.random.default_rng(seed)).ask(8))


def _score(problem: Problem, candidate: Candidate) -> float:
    return float(problem.scores([candidate])[0])


def test_the_model_is_corrected_by_measurements() -> None:
    """A mapping that the model flatters loses its advantage to one it does not."""
    problem, rng = _problem(), np.random.default_rng(0)
    first, second = (problem.sample(mapping, rng) for mapping in MAPPINGS[:2])
    assert _score(problem, first) == problem.predict(first).seconds
    for candidate, factor in ((first, 10.0), (second, 1.0)):
        for _ in range(5):
            seconds = problem.predict(candidate).seconds
            measured = Measurement((seconds * factor,))
            problem.tell(Trial(len(problem.trials), candidate, seconds, measured))
    ratios = [_score(problem, c) / problem.predict(c).seconds for c in (first, second)]
    assert ratios[0] > 3 * ratios[1]
    assert 1 < ratios[1] < ratios[0] < 10
    assert problem.best(1)[0].candidate == min(
        (first, second), key=lambda c: problem.predict(c).seconds * (10 if c is first else 1)
    )


def test_a_failure_corrects_nothing() -> None:
    problem = _problem()
    candidate = problem.sample(MAPPINGS[0], np.random.default_rng(0))
    problem.tell(Trial(0, candidate, 1.0, Measurement(failure="crash", message="")))
    assert _score(problem, candidate) == problem.predict(candidate).seconds
    assert problem.best(4) == []
    assert problem.measured() == {candidate.key}
