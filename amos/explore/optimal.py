"""Find the model's optimum with a certificate, or a good candidate with a proven gap.

A target with floors of its schedules finds the optimum itself. On other targets a small space is
enumerated; a large one is left to the genetic search for the remaining time, and floors bound the
distance of its best candidate from the optimum.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from amos.errors import ExploreError
from amos.explore.genetic import GeneticSearch
from amos.explore.method import Search, enumerate_candidates
from amos.explore.objective import TIME_AND_MEMORY, Problem
from amos.perfmodel.bound import Certificate, Optimum
from amos.plan import Candidate
from amos.plan.target import target_of

#: Seconds of a proof by default.
_LIMIT_SECONDS = 55.0
#: Most assignments of a space that is enumerated.
_LISTED = 20_000
#: Scores of the genetic search, how many at a time, and candidates that are proposed.
_SCORES, _ROUND, _RETURNED = 4096, 64, 16


class Optimal(Search):
    """The search method ``optimal``: the model's best candidates, then random ones.

    Args:
        limit_seconds: after which the best candidate so far is proposed, with its gap.

    Raises:
        ExploreError: nothing is proven of schedules on the machine, or of two objectives.
    """

    inner: ClassVar[int] = 64
    proves: ClassVar[bool] = True

    def __init__(
        self, problem: Problem, rng: np.random.Generator, limit_seconds: float = _LIMIT_SECONDS
    ) -> None:
        super().__init__(problem, rng)
        if problem.objective == TIME_AND_MEMORY:
            raise ExploreError("method 'optimal': expected one objective, got 'time,memory'")
        machine, spaces = problem.machine, [*problem.spaces.values()]
        end = time.monotonic() + limit_seconds
        optimum = target_of(machine).find_optimum(spaces, machine, problem.objective, limit_seconds)
        if optimum is None:
            optimum = _search_above_floors(problem, rng, problem.floors.tolist(), end)
        elif not (optimum.candidates and optimum.certificate.is_optimal):
            optimum = _continue_search(problem, rng, optimum, end)
        self.certificate = optimum.certificate
        self._ranked = optimum.candidates

    def propose(self, count: int) -> Iterator[Candidate]:
        """Yield the best ones in order."""
        yield from self._ranked


def _continue_search(
    problem: Problem, rng: np.random.Generator, optimum: Optimum, end: float
) -> Optimum:
    """Search for a better candidate than one that is not proven, until an end."""
    certificate = optimum.certificate
    if optimum.candidates and time.monotonic() >= end:
        return optimum
    searched = _search_above_floors(problem, rng, [certificate.least], end)
    scored = certificate.scored + searched.certificate.scored
    value = min(certificate.value, searched.certificate.value)
    best = searched if value < certificate.value else optimum
    return Optimum(best.candidates, replace(certificate, value=value, scored=scored))


def _search_above_floors(
    problem: Problem, rng: np.random.Generator, floors: Sequence[float], end: float
) -> Optimum:
    """Search candidates whose distance from the optimum is bounded by floors.

    Raises:
        ExploreError: no floor is known, or no candidate fits.
    """
    listed = problem.size <= _LISTED
    if not (listed or min(floors)):
        raise ExploreError(
            f"method 'optimal': no floor is known of schedules on machine {problem.machine.name!r}"
        )
    candidates = [*enumerate_candidates(problem)] if listed else _breed(problem, rng, end)
    scores = problem.scores(candidates)
    order = np.argsort(scores, kind="stable")[:_RETURNED]
    if not len(order) or not np.isfinite(scores[order[0]]):
        raise ExploreError("method 'optimal': no schedule fits the machine")
    value = float(scores[order[0]])
    certificate = Certificate(
        value=value,
        least=value if listed else min(value, *floors),
        scored=len(candidates),
        mappings=len(problem.spaces),
        pruned_mappings=0 if listed else sum(floor >= value for floor in floors),
    )
    return Optimum(tuple(candidates[n] for n in order), certificate)


def _breed(problem: Problem, rng: np.random.Generator, end: float) -> list[Candidate]:
    """Return all candidates of a long genetic search of at least one round."""
    search = GeneticSearch(problem, rng)
    while batch := search.ask(_ROUND):
        search.tell(list(zip(batch, problem.scores(batch).tolist(), strict=True)))
        if len(search.results) >= _SCORES or time.monotonic() >= end:
            break
    return [candidate for candidate, _ in search.results]
