"""Genetic search over mapping and schedule together (AMOS, section 5.3), with DEAP.

Every mapping is in the first population. Between two batches of measurements the
population evolves on the model, corrected by what was measured; then the most
promising candidates are proposed, together with variants of the best measured
ones, where the model can no longer tell candidates apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from deap import base, tools

from amos.explore.objective import Problem
from amos.schedule import Candidate, Schedule

__all__ = ["GeneticSearch"]

_POPULATION = 64
_GENERATIONS = 12
_ELITE = 16
#: Share of a batch that varies the best measured candidates.
_LOCAL = 0.5
#: Share of a batch that is drawn at random, so that no mapping is given up.
_EPSILON = 0.1
#: Probability that an offspring changes its mapping, and that it has two parents.
_REMAP, _MATE = 0.15, 0.4
_ATTEMPTS = 50
#: How many of the best measured candidates are varied.
_VARIED = 4


class _Fitness(base.Fitness):  # type: ignore[misc]
    """Seconds, to be minimized."""

    weights = (-1.0,)


class _Individual:
    """A candidate with its fitness, as DEAP's selection expects it."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate, self.fitness = candidate, _Fitness()


class GeneticSearch:
    """The search method ``ga``."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._problem, self._rng = problem, rng
        self._toolbox = base.Toolbox()
        self._toolbox.register("mate", self._mate)
        self._toolbox.register("mutate", self._mutate)
        self._toolbox.register("select", tools.selBest)
        self._population = [_Individual(candidate) for candidate in self._first()]

    def ask(self, count: int) -> list[Candidate]:
        """Evolve on the model, then propose up to ``count`` new candidates."""
        self._evolve()
        local = int(count * _LOCAL) if self._problem.best(1) else 0
        chosen: list[Candidate] = []
        taken = self._problem.measured()
        self._take(chosen, taken, self._neighbours(), local)
        self._take(chosen, taken, self._random(), len(chosen) + round(count * _EPSILON))
        self._take(chosen, taken, self._promising(), count)
        self._take(chosen, taken, self._random(), count)
        return chosen

    def _take(
        self,
        chosen: list[Candidate],
        taken: set[tuple[str, Schedule]],
        source: Iterable[Candidate],
        until: int,
    ) -> None:
        for candidate in source:
            if len(chosen) >= until:
                return
            if candidate.key not in taken:
                taken.add(candidate.key)
                chosen.append(candidate)

    def _first(self) -> Iterator[Candidate]:
        """Every mapping, some with several schedules if there are few mappings."""
        mappings = self._problem.mappings
        for number in range(max(_POPULATION, len(mappings))):
            yield self._problem.sample(mappings[number % len(mappings)], self._rng)

    def _evolve(self) -> None:
        # The correction may have changed since the fitness was computed.
        self._rate(self._population)
        for _ in range(_GENERATIONS):
            parents = self._toolbox.select(self._population, _ELITE)
            offspring = [self._offspring(parents) for _ in range(_POPULATION - _ELITE)]
            self._rate(offspring)
            self._population = _distinct([*parents, *offspring])

    def _rate(self, individuals: list[_Individual]) -> None:
        scores = self._problem.scores([individual.candidate for individual in individuals])
        for individual, score in zip(individuals, scores.tolist(), strict=True):
            individual.fitness.values = (score,)

    def _offspring(self, parents: list[_Individual]) -> _Individual:
        first = parents[int(self._rng.integers(len(parents)))].candidate
        if self._rng.random() < _MATE:
            second = parents[int(self._rng.integers(len(parents)))].candidate
            first = self._toolbox.mate(first, second)
        return _Individual(self._toolbox.mutate(first))

    def _mate(self, a: Candidate, b: Candidate) -> Candidate:
        if a.mapping.name != b.mapping.name:
            return a
        schedule = self._problem.space(a.mapping).cross(a.schedule, b.schedule, self._rng)
        return Candidate(a.mapping, schedule)

    def _mutate(self, candidate: Candidate) -> Candidate:
        mappings = self._problem.mappings
        if len(mappings) > 1 and self._rng.random() < _REMAP:
            mapping = mappings[int(self._rng.integers(len(mappings)))]
            fresh = self._problem.space(mapping).sample(self._rng)
            schedule = self._problem.space(mapping).cross(fresh, candidate.schedule, self._rng)
            if not self._problem.space(mapping).violations(schedule):
                return Candidate(mapping, schedule)
            return Candidate(mapping, fresh)
        space = self._problem.space(candidate.mapping)
        return Candidate(candidate.mapping, space.mutate(candidate.schedule, self._rng))

    def _promising(self) -> Iterator[Candidate]:
        """The population, best score first, one for each register tile and mapping first."""
        ranked = sorted(self._population, key=lambda x: float(x.fitness.values[0]))
        seen: set[object] = set()
        later = []
        for individual in ranked:
            values = individual.candidate.schedule.values
            tiles = tuple(v for v in values if v[0].startswith("tile."))
            signature = (individual.candidate.mapping.name, tiles)
            if signature in seen:
                later.append(individual.candidate)
                continue
            seen.add(signature)
            yield individual.candidate
        yield from later

    def _neighbours(self) -> Iterator[Candidate]:
        """Variants of the best measured candidates, the best one most often."""
        best = self._problem.best(_VARIED)
        for attempt in range(_ATTEMPTS if best else 0):
            trial = best[(attempt // 2) % len(best)] if attempt % 2 else best[0]
            space = self._problem.space(trial.mapping)
            yield Candidate(trial.mapping, space.mutate(trial.schedule, self._rng))

    def _random(self) -> Iterator[Candidate]:
        for _ in range(_ATTEMPTS * 4):
            mapping = self._problem.mappings[int(self._rng.integers(len(self._problem.mappings)))]
            yield self._problem.sample(mapping, self._rng)


def _distinct(individuals: list[_Individual]) -> list[_Individual]:
    """Without repeated candidates, in the same order."""
    return list({x.candidate.key: x for x in reversed(individuals)}.values())[::-1]
