"""The interface of search methods: ask for candidates, tell their seconds.

A method sees scores only through :meth:`Search.tell`, and does not know whether a score is
measured or predicted. Comparisons give every method the same number of scores; an
exploration runs one on the model and measures its finds (:mod:`amos.explore.guided`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from amos.explore.objective import Problem
from amos.mapping import Mapping as LoopMapping
from amos.perfmodel.bound import Certificate
from amos.plan import Candidate, Schedule
from amos.schedule.sampler import enumerate_assignments

Key = tuple[str, Schedule]
#: Repeats that a method may propose before random candidates fill the batch.
_REPEATS = 400
#: Probability that a child goes to another mapping.
_REMAP = 0.1
#: Spaces up to this size are listed when chance finds nothing new.
_LISTED = 20_000


class Search:
    """A method, which proposes candidates in :meth:`propose`.

    It draws random numbers from the given generator alone, proposes only feasible
    candidates, and never proposes a candidate twice.

    Attributes:
        problem: the joint space of mappings and schedules.
        results: candidates with their scores, in the order they were told.
        inner: scores of the model that one batch of measurements is worth.
        logbook: results of each generation; empty for a method without generations.
        certificate: what the method has proven of its best candidate by the model.
    """

    inner: ClassVar[int] = 512
    #: Whether it breeds with operators that may be exchanged.
    has_operators: ClassVar[bool] = False
    #: Whether it proves a certificate, within seconds that may be set.
    proves: ClassVar[bool] = False

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self.problem, self.rng = problem, rng
        self.results: list[tuple[Candidate, float]] = []
        self.logbook: list[dict[str, Any]] = []
        self.certificate: Certificate | None = None
        self._seen: set[Key] = set()
        self._untried: Iterator[Candidate] | None = None

    @property
    def size(self) -> int:
        """Number of assignments that it searches, feasible or not."""
        return self.problem.size

    def propose(self, count: int) -> Iterable[Candidate]:
        """Return candidates in the order to be tried; repeats are dropped later.

        By default none, so that the batch is drawn at random.
        """
        return ()

    def ask(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` new candidates; fewer, or none, if the space is used up."""
        fresh = self._new(self.propose(count), count)
        fresh += self._new(iter(self.random, None), count - len(fresh))
        if len(fresh) < count and self.problem.size <= _LISTED:
            self._untried = self._untried or enumerate_candidates(self.problem)
            fresh += self._new(self._untried, count - len(fresh), repeats=_LISTED)
        return fresh

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        """Take note of scores in seconds; infinite for a candidate that failed."""
        self.results.extend(results)
        self._seen.update(candidate.key for candidate, _ in results)

    def rescore(self, scores: Callable[[Sequence[Candidate]], np.ndarray]) -> None:
        """Score everything told so far again, after the model was corrected."""
        candidates = [candidate for candidate, _ in self.results]
        if candidates:
            self.results = list(zip(candidates, scores(candidates).tolist(), strict=True))

    def random(self) -> Candidate:
        """Draw a mapping, then a feasible schedule of it."""
        return self.problem.sample(self.problem.draw_mapping(self.rng), self.rng)

    def mutate(self, candidate: Candidate) -> Candidate:
        """Change one or two variables, or the mapping and variables that depend on it."""
        if goes_elsewhere(self.problem, self.rng):
            mapping = self.problem.draw_mapping(self.rng)
            space = self.problem.space(mapping)
            return Candidate(mapping, space.repair(candidate.schedule.as_dict(), self.rng))
        space = self.problem.space(candidate.mapping)
        return Candidate(candidate.mapping, space.mutate(candidate.schedule, self.rng))

    def draw_seeds(self, count: int) -> Iterator[Candidate]:
        """Yield every mapping in turn, in random order, each with a random schedule."""
        for mapping in self.cycle_mappings(count):
            yield self.problem.sample(mapping, self.rng)

    def cycle_mappings(self, count: int) -> Iterator[LoopMapping]:
        """Yield every mapping in turn, in random order."""
        mappings = self.problem.mappings
        order = self.rng.permutation(len(mappings))
        for number in range(count):
            yield mappings[order[number % len(order)]]

    def leaders(self, count: int) -> list[tuple[Candidate, float]]:
        """Return the best candidates told so far, best first, without failures."""
        done = [entry for entry in self.results if math.isfinite(entry[1])]
        return sorted(done, key=lambda entry: entry[1])[:count]

    def select_diverse(
        self, count: int, limits: Callable[[Candidate], Mapping[Hashable, int]]
    ) -> list[tuple[Candidate, float]]:
        """Return the best candidates so far, few with anything in common as ``limits`` says."""
        crowd: Counter[Hashable] = Counter()
        selected: list[tuple[Candidate, float]] = []
        for candidate, score in self.leaders(len(self.results)):
            most = limits(candidate)
            if all(crowd[shared] < number for shared, number in most.items()):
                crowd.update(most.keys())
                selected.append((candidate, score))
            if len(selected) == count:
                break
        return selected

    def _new(
        self, source: Iterable[Candidate], count: int, repeats: int = _REPEATS
    ) -> list[Candidate]:
        fresh: list[Candidate] = []
        idle, candidates = 0, iter(source)
        while len(fresh) < count and idle <= repeats:
            if (candidate := next(candidates, None)) is None:
                break
            idle += 1
            if candidate.key not in self._seen:
                idle = 0
                self._seen.add(candidate.key)
                fresh.append(candidate)
        return fresh


def goes_elsewhere(problem: Problem, rng: np.random.Generator) -> bool:
    """Decide at random whether a child moves to another mapping, if there are several."""
    return len(problem.mappings) > 1 and rng.random() < _REMAP


def enumerate_candidates(problem: Problem) -> Iterator[Candidate]:
    """Yield every feasible candidate, mapping by mapping."""
    for mapping in problem.mappings:
        space = problem.space(mapping)
        for positions in enumerate_assignments(space.csp, 10**9) or ():
            yield Candidate(mapping, space.schedule(positions))


def niche(candidate: Candidate) -> Hashable:
    """Return mapping and register tile, which candidates of similar performance share."""
    return candidate.mapping.name, frozenset(candidate.schedule.tile.items())
