"""Search methods: the contract of each, and against each other on the model."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos.errors import ExploreError, UnknownNameError
from amos.explore import METHODS, Problem
from amos.explore.cga import Cga
from amos.explore.exhaustive import LARGEST
from amos.explore.genetic import GeneticSearch
from amos.explore.guided import Guided
from amos.explore.method import Search, enumerate_candidates, niche
from amos.explore.methods import method
from amos.explore.random_search import RandomSearch
from amos.ir import Operator
from amos.plan import Candidate
from amos.records import Measurement, Trial
from amos.schedule import In
from amos.testing.methods import MethodContract

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
WMMA = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
XEON = amos.machines.get("xeon_6240")
A100 = amos.machines.get("a100")
CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=14, q=14, k=64, c=32, r=3, s=3),
    shapes=dict(image=(1, 14, 14, 32)),
)
MAPPINGS = list(amos.enumerate_mappings(CONV, VNNI, rule="gather"))
LARGE = amos.operators.resolve("gemm", extents=dict(m=1024, n=1024, k=1024))
GEMM = list(amos.enumerate_mappings(LARGE, WMMA))
C2D = list(
    amos.enumerate_mappings(
        Operator.parse(
            "out[n,k,p,q] += pad(image[n,c,p+r-1,q+s-1]) * weight[k,c,r,s]",
            extents=dict(n=32, k=256, p=14, q=14, c=256, r=3, s=3),
            shapes=dict(image=(32, 256, 14, 14)),
        ),
        WMMA,
        rule="access",
    )
)
LAYER = list(amos.enumerate_mappings(amos.operators.resolve("resnet18:C5"), WMMA, rule="access"))


class TestGenetic(MethodContract):
    method = "ga"


class TestCga(MethodContract):
    method = "cga"


class TestCga1(MethodContract):
    method = "cga1"


class TestAnnealing(MethodContract):
    method = "sa"


class TestRandom(MethodContract):
    method = "random"


class TestStochasticRanking(MethodContract):
    method = "ga_sr"


class TestPlain(MethodContract):
    method = "ga_plain"


class TestSatDecoder(MethodContract):
    method = "ga_sat"


class TestMultiObjective(MethodContract):
    method = "ga_mo"


class TestExhaustive(MethodContract):
    method = "exhaustive"
    operator = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=6, j=32, k=8))


class TestOptimal(MethodContract):
    method = "optimal"
    operator = TestExhaustive.operator


def test_every_method_has_a_contract() -> None:
    joined = {kind.method for kind in MethodContract.__subclasses__() if hasattr(kind, "method")}
    assert set(METHODS) <= joined


def test_a_method_that_there_is_not() -> None:
    with pytest.raises(UnknownNameError, match="unknown search method 'cgaa': did you mean"):
        method("cgaa")


def test_exhausting_a_large_space_is_refused() -> None:
    problem = Problem(LAYER, A100)
    assert problem.size > LARGEST
    with pytest.raises(ExploreError, match="'exhaustive': [0-9,]+ assignments, at most 5,000,000"):
        method("exhaustive")(problem, np.random.default_rng(0))


def test_a_small_space_is_proven_as_a_whole() -> None:
    operator = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=3, j=32, k=8))
    problem = Problem([*amos.enumerate_mappings(operator, VNNI)], XEON)
    search = method("optimal")(problem, np.random.default_rng(0))
    best = problem.seconds([*enumerate_candidates(problem)]).min()
    assert search.certificate is not None
    assert search.certificate.is_optimal
    assert problem.seconds(search.ask(1)).tolist() == [best] == [search.certificate.value]


def test_no_candidate_is_below_the_floor_of_its_mapping() -> None:
    """Of CPUs, where a search in a large space is bounded by it."""
    rng = np.random.default_rng(0)
    for mappings in (MAPPINGS, [*amos.enumerate_mappings(LARGE, VNNI)]):
        problem = Problem(mappings, XEON)
        for mapping in mappings:
            space = problem.space(mapping)
            floor = space.target.floor_seconds(space.context, XEON)
            drawn = [Candidate(mapping, schedule) for schedule in space.draw(40, rng)]
            assert 0 < floor <= problem.seconds(drawn).min() * (1 + 1e-12)


def test_what_nothing_is_proven_of() -> None:
    with pytest.raises(ExploreError, match="no floor is known of schedules on machine 'a100'"):
        method("optimal")(Problem(LAYER, A100), np.random.default_rng(0))


def test_every_mapping_is_in_the_first_population() -> None:
    search = GeneticSearch(Problem(MAPPINGS, XEON), np.random.default_rng(0))
    names = {candidate.mapping.name for candidate in search.ask(max(32, len(MAPPINGS)))}
    assert names == {mapping.name for mapping in MAPPINGS}


def test_more_mappings_than_the_population_holds() -> None:
    mappings = list(amos.enumerate_mappings(amos.operators.resolve("conv3d"), WMMA))
    search = GeneticSearch(Problem(mappings, A100), np.random.default_rng(0))
    assert len(mappings) > 64
    names = {candidate.mapping.name for candidate in search.ask(len(mappings))}
    assert names == {mapping.name for mapping in mappings}


def _best(kind: type[Search], seed: int, evaluations: int) -> float:
    problem = Problem(C2D, A100)
    search = kind(problem, np.random.default_rng(seed))
    best = float("inf")
    while len(search.results) < evaluations:
        batch = search.ask(8)
        scores = problem.seconds(batch).tolist()
        search.tell(list(zip(batch, scores, strict=True)))
        best = min(best, *scores)
    return best


@pytest.mark.parametrize(("name", "evaluations", "ratio"), [("ga", 160, 0.95), ("cga", 112, 0.8)])
@pytest.mark.slow
def test_evolution_beats_chance_at_equal_evaluations(
    name: str, evaluations: int, ratio: float
) -> None:
    """Median over a few seeds."""
    kinds = method(name), RandomSearch
    runs = [[_best(kind, seed, evaluations) for kind in kinds] for seed in range(5)]
    assert np.median([mine / chance for mine, chance in runs]) < ratio


def test_a_batch_is_not_filled_with_one_register_tile() -> None:
    """Of candidates that hardly differ one is measured, however well they are predicted."""
    problem = Problem(GEMM, A100)
    search = method("cga")(problem, np.random.default_rng(3))
    for _ in range(6):
        batch = search.ask(8)
        search.tell(list(zip(batch, problem.seconds(batch).tolist(), strict=True)))
    last = [niche(candidate) for candidate, _ in search.results[-8:]]
    assert len(set(last)) >= 6


def test_searching_on_the_model_beats_chance_at_equal_trials() -> None:
    for seed in range(3):
        problem = Problem(MAPPINGS, XEON)
        guided, drawn = (
            Guided(problem, np.random.default_rng(seed), kind).ask(8)
            for kind in (GeneticSearch, RandomSearch)
        )
        assert problem.seconds(guided).min() < problem.seconds(drawn).min()


def test_children_of_the_constraint_based_search_take_after_their_parents() -> None:
    """All key variables but one have a value of a parent's, and the child is feasible."""
    problem = Problem(MAPPINGS[:1], XEON)
    search = Cga(problem, np.random.default_rng(0))
    batch = search.ask(40)
    search.tell(list(zip(batch, problem.seconds(batch).tolist(), strict=True)))
    keys = search.keys()
    assert len(keys) > 3
    space = problem.space(MAPPINGS[0])
    for n in range(20):
        a, b = batch[n], batch[n + 20]
        child = search._draw_child([a, b, a, b])
        assert space.violations(child.schedule) == ()
        values, first, second = (space.values(c.schedule) for c in (child, a, b))
        strange = [k for k in keys if values[k] not in (first[k], second[k])]
        assert len(strange) <= 1


def test_what_is_fixed_stays_fixed() -> None:
    problem = Problem(MAPPINGS, XEON, fixes=[("parallel", 2), ("unroll", 4)])
    for name in ("ga", "cga", "sa", "random"):
        search = method(name)(problem, np.random.default_rng(0))
        for _ in range(4):
            batch = search.ask(10)
            assert {c.schedule.as_dict().get("parallel") for c in batch} == {2}
            assert {c.schedule.as_dict().get("unroll") for c in batch} == {4}
            search.tell(list(zip(batch, problem.seconds(batch).tolist(), strict=True)))
    with pytest.raises(UnknownNameError, match="unknown schedule variable 'paralel'"):
        Problem(MAPPINGS, XEON, fixes=[("paralel", 2)])


def test_candidates_of_the_constraint_are_drawn() -> None:
    space = Problem(MAPPINGS, XEON).space(MAPPINGS[0])
    drawn = space.draw(5, np.random.default_rng(0), [In("unroll", (2,), "here")])
    assert {schedule.as_dict().get("unroll") for schedule in drawn} == {2}


def _score(problem: Problem, candidate: Candidate) -> float:
    return float(problem.scores([candidate])[0])


def test_the_model_is_corrected_by_measurements() -> None:
    """A mapping that the model flatters loses its advantage to one it does not."""
    problem, rng = Problem(MAPPINGS, XEON), np.random.default_rng(0)
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
    problem = Problem(MAPPINGS, XEON)
    candidate = problem.sample(MAPPINGS[0], np.random.default_rng(0))
    problem.tell(Trial(0, candidate, 1.0, Measurement(failure="crash", message="")))
    assert _score(problem, candidate) == problem.predict(candidate).seconds
    assert problem.best(4) == []
    assert problem.trial_keys() == {candidate.key}
