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
from amos.explore.retention import probabilities, retained
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


@pytest.mark.parametrize(("share", "kept"), [(0.01, "a"), (0.34, "ab"), (0.7, "abc"), (1, "abc")])
def test_the_largest_are_retained(share: float, kept: str) -> None:
    assert retained({"c": 4.0, "a": 1.0, "b": 2.0}, {}, share) == set(kept)


@pytest.mark.parametrize("share", [0, -1, 1.5, math.nan, "all", True])
def test_a_share_that_is_none_is_refused(share: object) -> None:
    with pytest.raises(ExploreError, match="retain: expected a share above 0 and at most 1, got"):
        SearchOptions(retain=share)  # type: ignore[arg-type]


def test_a_search_keeps_to_them_but_for_chance() -> None:
    """The best mapping by measurement is searched on; what is drawn by chance is any."""
    op = amos.Operator.parse(
        "out[p,q,k] += image[p+r,q+s,c] * weight[k,c,r,s]",
        extents=dict(p=8, q=8, k=32, c=16, r=3, s=3),
    )
    mappings = list(amos.enumerate_mappings(op, VNNI, commute=True))[:8]
    problem = Problem(mappings, amos.machines.get("xeon_6240"))
    rng = np.random.default_rng(0)
    fast = problem.mappings[-1].name
    for n, mapping in enumerate(problem.mappings):
        candidate = problem.sample(mapping, rng)
        seconds = 1e-6 if mapping.name == fast else 1e-3
        problem.tell(Trial(n, candidate, float(problem.seconds([candidate])[0]),
                           Measurement((seconds,))))  # fmt: skip
    narrow = Guided(problem, rng, GeneticSearch, epsilon=0.0, retain=1 / len(mappings))
    asked = narrow.ask(8)
    assert asked and {candidate.mapping.name for candidate in asked} == {fast}
    chance = Guided(problem, rng, GeneticSearch, epsilon=1.0, retain=1 / len(mappings))
    assert len({candidate.mapping.name for candidate in chance.ask(8)}) > 1
