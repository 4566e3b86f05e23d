"""Genetic search over mapping and schedule together (AMOS, section 5.3), with DEAP.

Every mapping is in the first population. Parents win tournaments; offspring take
variables from both, change one or two, and now and then move to another mapping.
What does not fit is repaired by the solver. Among the survivors no combination of
mapping and register tile may fill the population, which keeps it diverse.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
from deap import base, tools

from amos.explore.method import Search, niche
from amos.explore.objective import Problem
from amos.plan import Candidate

__all__ = ["GeneticSearch", "Individual"]

_POPULATION = 32
_TOURNAMENT = 3
#: Probability that an offspring changes its mapping, and that it has two parents.
_REMAP, _MATE = 0.1, 0.6
#: Share of offspring drawn by chance.
_EPSILON = 0.05
#: Candidates of one mapping and register tile that may survive together.
_NICHE = 3


class _Fitness(base.Fitness):  # type: ignore[misc]
    """Seconds, to be minimized."""

    weights = (-1.0,)


class Individual:
    """A candidate with its fitness, as DEAP's selection expects it."""

    def __init__(self, candidate: Candidate, seconds: float) -> None:
        self.candidate, self.fitness = candidate, _Fitness()
        self.fitness.values = (seconds,)


class GeneticSearch(Search):
    """The search method ``ga``."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        super().__init__(problem, rng)
        self.toolbox = base.Toolbox()
        self.toolbox.register("mate", self.mate)
        self.toolbox.register("mutate", self.mutate)
        self.toolbox.register("select", tools.selBest)
        self._first = self.seeds(max(_POPULATION, len(problem.mappings)))

    def propose(self, count: int) -> Iterator[Candidate]:
        """The first population, then offspring of the survivors."""
        yield from self._first
        survivors = self.survivors()
        while True:
            if not survivors or self.rng.random() < _EPSILON:
                yield self.random()
            else:
                yield self._offspring(survivors)

    def survivors(self) -> list[Individual]:
        """The best told so far, without crowding."""
        told = [Individual(c, s) for c, s in self.results if math.isfinite(s)]
        crowd: Counter[object] = Counter()
        kept: list[Individual] = []
        for individual in self.toolbox.select(told, len(told)):
            own = niche(individual.candidate)
            crowd[own] += 1
            if crowd[own] <= _NICHE:
                kept.append(individual)
            if len(kept) == _POPULATION:
                break
        return kept

    def _offspring(self, survivors: list[Individual]) -> Candidate:
        first = self._winner(survivors).candidate
        if self.rng.random() < _MATE:
            first = self.toolbox.mate(first, self._winner(survivors).candidate)
        mutant: Candidate = self.toolbox.mutate(first)
        return mutant

    def _winner(self, survivors: list[Individual]) -> Individual:
        # DEAP's own tournament draws from Python's global generator.
        entered = self.rng.integers(len(survivors), size=_TOURNAMENT)
        winner: Individual = tools.selBest([survivors[n] for n in entered], 1)[0]
        return winner

    def mate(self, a: Candidate, b: Candidate) -> Candidate:
        """Each variable from one of the parents, on the mapping of the first, repaired."""
        space = self.problem.space(a.mapping)
        left, right = a.schedule.as_dict(), b.schedule.as_dict()
        mixed = {
            name: (left if name not in right or self.rng.integers(2) else right).get(name)
            for name in space.variables
        }
        wanted = {name: value for name, value in mixed.items() if value is not None}
        defaults = {v.name: v.default for v in space.csp.tunables if v.default is not None}
        return Candidate(a.mapping, space.repair(defaults | wanted, self.rng))

    def mutate(self, candidate: Candidate) -> Candidate:
        """Change one or two variables, or the mapping and what that makes necessary."""
        mappings = self.problem.mappings
        if len(mappings) > 1 and self.rng.random() < _REMAP:
            mapping = mappings[int(self.rng.integers(len(mappings)))]
            space = self.problem.space(mapping)
            return Candidate(mapping, space.repair(candidate.schedule.as_dict(), self.rng))
        space = self.problem.space(candidate.mapping)
        return Candidate(candidate.mapping, space.mutate(candidate.schedule, self.rng))
