"""The interface of a search method: ask for candidates, tell what they took.

A method sees scores only through :meth:`Search.tell`. Whether a score is a
measurement or a prediction is none of its business: compared with one another,
methods get the same number of scores; in an exploration one searches on the model,
and what it finds is measured (:mod:`amos.explore.guided`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import ClassVar, Protocol

import numpy as np

from amos.explore.objective import Problem
from amos.plan import Candidate, Schedule

__all__ = ["Key", "Method", "Proposer", "Search", "everything", "niche"]

Key = tuple[str, Schedule]
#: Candidates that a method may repeat before chance fills the batch.
_REPEATS = 400
#: Spaces up to this size are listed when chance finds nothing new.
_LISTED = 20_000


class Proposer(Protocol):
    """Whatever can say what to measure next."""

    def ask(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` new candidates; fewer, or none, if the space is used up."""
        ...


class Method(Protocol):
    """What every search method can do.

    A method draws random numbers from the given generator alone, proposes only
    feasible candidates, and never proposes a candidate twice.
    """

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        """Prepare to search ``problem``."""
        ...

    def ask(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` new candidates; fewer, or none, if the space is used up."""
        ...

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        """Take note of scores in seconds; infinite for a candidate that failed."""
        ...


class Search:
    """What methods have in common; each one says in :meth:`propose` what to try next.

    Attributes:
        problem: the joint space of mappings and schedules.
        rng: the only source of chance.
        results: candidates with their scores, in the order they were told.
        wasted: proposals so far that were infeasible, and so never handed out.
        inner: scores of the model that one batch of measurements is worth.
    """

    inner: ClassVar[int] = 512

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self.problem, self.rng = problem, rng
        self.results: list[tuple[Candidate, float]] = []
        self.wasted = 0
        self._seen: set[Key] = set()
        self._rest: Iterator[Candidate] | None = None

    def propose(self, count: int) -> Iterable[Candidate]:
        """Candidates in the order they should be tried; repeats are left out later."""
        raise NotImplementedError

    def ask(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` new candidates; fewer, or none, if the space is used up."""
        fresh = self._new(self.propose(count), count)
        if len(fresh) < count:
            fresh += self._new(self._chance(), count - len(fresh))
        if len(fresh) < count and self.problem.size <= _LISTED:
            if self._rest is None:
                self._rest = everything(self.problem)
            fresh += self._new(self._rest, count - len(fresh), repeats=_LISTED)
        return fresh

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        """Take note of scores in seconds; infinite for a candidate that failed."""
        self.results.extend(results)
        self._seen.update(candidate.key for candidate, _ in results)

    def rescore(self, scores: Callable[[Sequence[Candidate]], np.ndarray]) -> None:
        """Score everything that was told anew, after the model was corrected."""
        candidates = [candidate for candidate, _ in self.results]
        if candidates:
            self.results = list(zip(candidates, scores(candidates).tolist(), strict=True))

    def random(self) -> Candidate:
        """A mapping, then a feasible schedule of it, both by chance."""
        mappings = self.problem.mappings
        return self.problem.sample(mappings[int(self.rng.integers(len(mappings)))], self.rng)

    def seeds(self, count: int) -> Iterator[Candidate]:
        """Every mapping in turn, in random order, each with a schedule by chance."""
        mappings = self.problem.mappings
        turns = self.rng.permutation(len(mappings))
        for number in range(count):
            yield self.problem.sample(mappings[turns[number % len(turns)]], self.rng)

    def leaders(self, count: int) -> list[tuple[Candidate, float]]:
        """The best candidates told so far, best first; failures are left out."""
        done = [entry for entry in self.results if math.isfinite(entry[1])]
        return sorted(done, key=lambda entry: entry[1])[:count]

    def _chance(self) -> Iterator[Candidate]:
        while True:
            yield self.random()

    def _new(
        self, source: Iterable[Candidate], count: int, repeats: int = _REPEATS
    ) -> list[Candidate]:
        fresh: list[Candidate] = []
        idle = 0
        if count < 1:
            return fresh
        for candidate in source:
            if candidate.key in self._seen:
                idle += 1
                if idle > repeats:
                    break
                continue
            idle = 0
            self._seen.add(candidate.key)
            fresh.append(candidate)
            if len(fresh) == count:
                break
        return fresh


def everything(problem: Problem, most: int | None = None) -> Iterator[Candidate]:
    """Every feasible candidate, one mapping after the other.

    Args:
        problem: what is searched.
        most: partial assignments of one mapping to look at; beyond it the mapping
            is left out. Unbounded by default.
    """
    from amos.schedule.sampler import every

    for mapping in problem.mappings:
        space = problem.space(mapping)
        for positions in every(space.csp, most or 10**9) or ():
            yield Candidate(mapping, space.schedule(positions))


def niche(candidate: Candidate) -> Hashable:
    """Mapping and register tile: what candidates of like performance have in common."""
    return candidate.mapping.name, frozenset(candidate.schedule.tile.items())
