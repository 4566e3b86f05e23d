"""GTA's sub-tasks: which mappings are retained, and that a search keeps to them."""

from __future__ import annotations

import math

import numpy as np
import pytest

import amos
from amos.errors import ExploreError
from amos.explore.genetic import GeneticSearch
from amos.explore.guided import Guided
from amos.explore.objective import Problem
from amos.explore.options import SearchOptions
from amos.explore.retention import probabilities, select_retained
from amos.records import Measurement, Trial
from tests.support.models import VNNI


def test_probabilities_are_the_papers() -> None:
    seconds = {"a": 1.0, "b": 2.0, "c": 4.0}
    even = probabilities(seconds, {"a": 1, "b": 1, "c": 1})
    assert even == pytest.approx({"a": 4 / 7, "b": 2 / 7, "c": 1 / 7})
    # Those that were measured least are worth a tenth more, before all are scaled to 1.
    rare = probabilities(seconds, {"a": 5, "b": 5})
    total = 1 + 0.5 + 0.25 * 1.1
    assert rare == pytest.approx({"a": 1 / total, "b": 0.5 / total, "c": 0.275 / total})
    assert sum(rare.values()) == pytest.approx(1)
    assert probabilities({"a": math.inf, "b": math.inf}, {}) == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize(("share", "names"), [(0.01, "ab"), (0.34, "ab"), (0.7, "abc"), (1, "abc")])
def test_the_largest_are_retained(share: float, names: str) -> None:
    assert select_retained({"c": 4.0, "a": 1.0, "b": 2.0}, {}, share) == set(names)


@pytest.mark.parametrize("share", [0, -1, 1.5, math.nan, "all", True])
def test_a_share_that_is_none_is_refused(share: object) -> None:
    with pytest.raises(ExploreError, match="retain: expected a share above 0 and at most 1, got"):
        SearchOptions(retain=share)  # type: ignore[arg-type]


def _problem() -> Problem:
    op = amos.Operator.parse(
        "out[p,q,k] += image[p+r,q+s,c] * weight[k,c,r,s]",
        extents=dict(p=8, q=8, k=32, c=16, r=3, s=3),
    )
    mappings = list(amos.enumerate_mappings(op, VNNI, commute=True))[:8]
    return Problem(mappings, amos.machines.get("xeon_6240"))


def _tell(problem: Problem, rng: np.random.Generator, seconds: dict[str, float]) -> None:
    """A measurement of each mapping, of a millisecond unless said otherwise."""
    for n, mapping in enumerate(problem.mappings):
        candidate = problem.sample(mapping, rng)
        measured = Measurement((seconds.get(mapping.name, 1e-3),))
        problem.tell(Trial(n, candidate, float(problem.seconds([candidate])[0]), measured))


def _ask_for_names(guide: Guided) -> set[str]:
    return {candidate.mapping.name for candidate in guide.ask(200)}


def test_a_search_keeps_to_them_but_for_chance() -> None:
    """The two best mappings by measurement are searched on; what is drawn by chance is any."""
    problem, rng = _problem(), np.random.default_rng(0)
    fast, next_, share = problem.mappings[-1].name, problem.mappings[3].name, 0.1
    _tell(problem, rng, {fast: 1e-6, next_: 2e-6})
    assert _ask_for_names(Guided(problem, rng, GeneticSearch, epsilon=0.0, retain=share)) == {
        fast,
        next_,
    }
    assert len(_ask_for_names(Guided(problem, rng, GeneticSearch, epsilon=1.0, retain=share))) > 2


@pytest.mark.parametrize(("epsilon", "expected"), [(0.1, 2), (0.5, 10)])
def test_chance_has_its_share_of_batches_of_one(
    epsilon: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of twenty trials as many as of one batch of twenty."""
    assert _one_by_one("_random", epsilon, monkeypatch).count(True) == expected


def test_variants_follow_a_batch_of_what_the_model_prefers(monkeypatch: pytest.MonkeyPatch) -> None:
    """None among the first eight trials, and half of the others, in batches of one as well."""
    variants = _one_by_one("_vary_best", 0.0, monkeypatch)
    assert variants[:8].count(True) == 0 and variants[8:].count(True) == 6


def _one_by_one(source: str, epsilon: float, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Which of twenty trials, asked for one by one, came from a source."""
    problem, rng = _problem(), np.random.default_rng(0)
    drawn = [problem.sample(mapping, rng) for mapping in problem.mappings for _ in range(3)]
    monkeypatch.setattr(Guided, source, lambda _: iter(drawn))
    guide = Guided(problem, rng, GeneticSearch, epsilon=epsilon)
    for number in range(20):
        (candidate,) = guide.ask(1)
        predicted = float(problem.seconds([candidate])[0])
        problem.tell(Trial(number, candidate, predicted, Measurement((predicted,))))
    return [trial.candidate in drawn for trial in problem.trials]


def test_mappings_of_several_instructions_are_ranked_together() -> None:
    """Three of 16: two of the faster instruction, and of the other one only its best."""
    first, second, rng = _problem(), _problem(), np.random.default_rng(0)
    names = [mapping.name for mapping in first.mappings]
    _tell(first, rng, {names[2]: 1e-6, names[5]: 2e-6})
    _tell(second, rng, {names[3]: 3e-6, names[4]: 4e-6})
    guides = [
        Guided(problem, rng, GeneticSearch, epsilon=0.0, retain=3 / 16)
        for problem in (first, second)
    ]
    both = [{names[2], names[5]}, {names[3], names[4]}]
    assert [_ask_for_names(guide) for guide in guides] == both
    for guide in guides:
        guide.rivals = guides
    assert [_ask_for_names(guide) for guide in guides] == [{names[2], names[5]}, {names[3]}]
