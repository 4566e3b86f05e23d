"""Genetic search over mapping and schedule together (AMOS, section 5.3), with DEAP.

Every mapping is in the first population. Parents win tournaments; offspring take
variables from both, change one or two, and sometimes move to another mapping, preferably one
with a low floor by the model.
The solver repairs children that do not fit. Among the survivors no combination of
mapping and register tile may fill the population, which keeps it diverse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from deap import tools

from amos.explore.individual import Individual, Survivors
from amos.explore.method import Key, Search
from amos.explore.objective import Problem
from amos.explore.toolbox import build_toolbox
from amos.plan import Candidate

_POPULATION = 32
#: Probability that an offspring has two parents, and share of random offspring.
_MATE, _EPSILON = 0.6, 0.05
#: Candidates of one mapping and register tile that may survive together.
_NICHE = 3


class GeneticSearch(Search):
    """The search method ``ga``.

    Attributes:
        toolbox: ``individual``, ``mate``, ``mutate`` and ``select``.
        survivors: the hall of fame, from which parents are selected.
    """

    has_operators: ClassVar[bool] = True

    def __init__(
        self,
        problem: Problem,
        rng: np.random.Generator,
        operators: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        super().__init__(problem, rng)
        self.toolbox = build_toolbox(problem, rng, operators)
        self.survivors = Survivors(_POPULATION, _NICHE)
        self.statistics = tools.Statistics(lambda individual: individual.seconds)
        for name, function in (("min", min), ("median", median), ("max", max)):
            self.statistics.register(name, function)
        self.logbook: Any = tools.Logbook()
        self._scored: list[Individual] = []
        self._bred: dict[Key, Individual] = {}
        self._has_started = False

    def propose(self, count: int) -> Iterator[Candidate]:
        """Yield the first population, then offspring of the survivors."""
        if not self._has_started:
            self._has_started = True
            for mapping in self.cycle_mappings(max(_POPULATION, len(self.problem.mappings))):
                yield self._register(self.toolbox.individual(mapping))
        while True:
            if not len(self.survivors) or self.rng.random() < _EPSILON:
                mapping = self.problem.draw_promising_mapping(self.rng)
                yield self._register(self.toolbox.individual(mapping))
            else:
                yield self._register(self._breed())

    def random(self) -> Candidate:
        """Draw a mapping, then a feasible schedule of it."""
        return self._register(self.toolbox.individual(self.problem.draw_mapping(self.rng)))

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        """Let the fittest survive, and record the generation."""
        super().tell(results)
        individuals = [self._individual(candidate, seconds) for candidate, seconds in results]
        self._bred.clear()
        self._scored += individuals
        self.survivors.update(individuals)
        book: Any = self.logbook
        book.record(
            generation=len(book),
            trials=len(self.problem.trials),
            evaluations=len(individuals),
            mappings=len({individual.space.mapping.name for individual in self.survivors}),
            **(self.statistics.compile(self.survivors) if len(self.survivors) else {}),
        )

    def rescore(self, scores: Callable[[Sequence[Candidate]], np.ndarray]) -> None:
        """Score everything told so far again, and choose the survivors again."""
        super().rescore(scores)
        for individual, (_, seconds) in zip(self._scored, self.results, strict=True):
            individual.fitness.values = (seconds,)
        self.survivors.clear()
        self.survivors.update(self._scored)

    def _breed(self) -> Individual:
        child: Individual = self._select_parent()
        if self.rng.random() < _MATE:
            child = self.toolbox.mate(child, self._select_parent())[0]
        child = self.toolbox.mutate(child)[0]
        del child.fitness.values
        return child

    def _select_parent(self) -> Individual:
        parent: Individual = self.toolbox.clone(self.toolbox.select(list(self.survivors), 1)[0])
        return parent

    def _register(self, individual: Individual) -> Candidate:
        """Return an individual's candidate; remember the individual until its score is known."""
        candidate = individual.candidate
        self._bred[candidate.key] = individual
        return candidate

    def _individual(self, candidate: Candidate, seconds: float) -> Individual:
        individual = self._bred.get(candidate.key)
        if individual is None:
            individual = Individual.of(self.problem.space(candidate.mapping), candidate)
        individual.fitness.values = (seconds,)
        return individual
