"""Genetic search over mapping and schedule together (AMOS, section 5.3).

Every mapping is in the first population. Parents win tournaments; offspring take
variables from both, change one or two, and now and then move to another mapping.
What does not fit is repaired by the solver. Among the survivors no combination of
mapping and register tile may fill the population, which keeps it diverse.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from amos.explore.method import Search, defaults, niche
from amos.explore.objective import Problem
from amos.plan import Candidate

_POPULATION = 32
_TOURNAMENT = 3
#: Probability that an offspring has two parents, and share of offspring drawn by chance.
_MATE, _EPSILON = 0.6, 0.05
#: Candidates of one mapping and register tile that may survive together.
_NICHE = 3


class GeneticSearch(Search):
    """The search method ``ga``."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        super().__init__(problem, rng)
        self._first = self.seeds(max(_POPULATION, len(problem.mappings)))

    def propose(self, count: int) -> Iterator[Candidate]:
        """The first population, then offspring of the survivors."""
        yield from self._first
        survivors = self.uncrowded(_POPULATION, lambda candidate: {niche(candidate): _NICHE})
        while True:
            if not survivors or self.rng.random() < _EPSILON:
                yield self.random()
            else:
                yield self._offspring(survivors)

    def _offspring(self, survivors: list[tuple[Candidate, float]]) -> Candidate:
        child = self._winner(survivors)
        if self.rng.random() < _MATE:
            child = self._mated(child, self._winner(survivors))
        return self.mutant(child)

    def _winner(self, survivors: list[tuple[Candidate, float]]) -> Candidate:
        """The best of a few by chance."""
        entered = self.rng.integers(len(survivors), size=_TOURNAMENT)
        winner: tuple[Candidate, float] = min(
            (survivors[n] for n in entered), key=lambda entry: entry[1]
        )
        return winner[0]

    def _mated(self, a: Candidate, b: Candidate) -> Candidate:
        """Each variable from one of the parents, on the mapping of the first, repaired."""
        space = self.problem.space(a.mapping)
        left, right = a.schedule.as_dict(), b.schedule.as_dict()
        mixed = {
            name: (left if name not in right or self.rng.integers(2) else right).get(name)
            for name in space.variables
        }
        wanted = {name: value for name, value in mixed.items() if value is not None}
        return Candidate(a.mapping, space.repair(defaults(space) | wanted, self.rng))
