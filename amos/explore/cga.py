"""The constraint-based genetic algorithm (Heron, section 5.1, Algorithms 2 and 3).

Offspring are not mixed from values: two parents make a new constraint problem, in
which each key variable takes the value of one of them, but for one that is set
free, and the solver draws the child from it. So a child is always feasible. The
mapping is a variable like the others; under another mapping the variables that it
shares with the parents are constrained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from amos.explore.cost_model import MAPPING, CostModel
from amos.explore.method import Search, niche
from amos.explore.objective import Problem
from amos.plan import Candidate, Value
from amos.schedule import CSP, In

#: Random candidates scored before the cost model is used: at least so many,
#: and one of each mapping, as the model cannot rank a mapping it has not seen.
_FIRST, _MOST_FIRST = 16, 64
_POPULATION, _GENERATIONS, _OFFSPRING = 32, 4, 32
#: Number of the best measured candidates in the first generation.
_ELITE = 16
#: Most of them with one mapping, where there are several, and with one mapping and register tile.
_NICHE, _CROWD = 4, 2
#: Number of those in a batch, before other candidates.
_SHARED = 1
#: Key variables: the k most important ones.
KEY_COUNT = 6
#: Share of a batch that is drawn at random from the population.
_EPSILON = 0.1


class Cga(Search):
    """The search method ``cga``."""

    inner: ClassVar[int] = 320

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        super().__init__(problem, rng)
        self.model = CostModel(problem, int(rng.integers(2**31)))
        self._values: dict[object, dict[str, int]] = {}
        self._first = min(max(_FIRST, len(problem.mappings)), _MOST_FIRST, problem.size)
        self._start = self.draw_seeds(self._first)

    def propose(self, count: int) -> Iterator[Candidate]:
        """Run steps 1 to 3 of Algorithm 2: breed a population and yield its unseen candidates."""
        yield from self._start
        if not self.model.ready:
            return
        population = self._evolve()
        fresh = [entry for entry in self._rate(population) if entry[1].key not in self._seen]
        fresh = _spread(sorted(fresh, key=lambda entry: entry[0]))
        while fresh:
            at = self._choose_mapping(fresh) if self.rng.random() < _EPSILON else 0
            yield fresh.pop(at)[1]

    def _choose_mapping(self, ranked: list[tuple[float, Candidate]]) -> int:
        """Draw a mapping; return the position of its best candidate."""
        firsts: dict[str, int] = {}
        for number, (_, candidate) in enumerate(ranked):
            firsts.setdefault(candidate.mapping.name, number)
        if len(firsts) == 1:
            return int(self.rng.integers(len(ranked)))
        return list(firsts.values())[int(self.rng.integers(len(firsts)))]

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        """Update the cost model (Algorithm 2, step 4)."""
        super().tell(results)
        if len(self.results) >= self._first:
            self.model.fit(self.results)

    def keys(self) -> list[str]:
        """Return the key variables: those of the most important features (Algorithm 3, step 1)."""
        return self.model.ranked[:KEY_COUNT]

    def _evolve(self) -> list[Candidate]:
        drawn = [self.random() for _ in range(_POPULATION - _ELITE)]
        population = [
            candidate for candidate, _ in self.select_diverse(_ELITE, self._limits)
        ] + drawn
        for _ in range(_GENERATIONS):
            parents = self._select_parents(population)
            children = [self._draw_child(parents) for _ in range(_OFFSPRING)]
            population = list({c.key: c for c in [*population, *children]}.values())
        return population

    def _limits(self, candidate: Candidate) -> dict[Hashable, int]:
        """Limit candidates per register tile, and per mapping where there are several."""
        several = len(self.problem.mappings) > 1
        of_mapping: dict[Hashable, int] = {candidate.mapping.name: _NICHE} if several else {}
        return of_mapping | {niche(candidate): _CROWD}

    def _rate(self, population: list[Candidate]) -> list[tuple[float, Candidate]]:
        return list(zip(self.model.predict(population).tolist(), population, strict=True))

    def _select_parents(self, population: list[Candidate]) -> list[Candidate]:
        """Draw parents with chances proportional to predicted performance (1 / seconds)."""
        performance = 1.0 / self.model.predict(population)
        chances = performance / performance.sum()
        picked = self.rng.choice(len(population), size=_POPULATION, p=chances)
        return [population[n] for n in picked]

    def _draw_child(self, parents: list[Candidate]) -> Candidate:
        """Draw a child with RandSAT from the problem of Algorithm 3, steps 2 and 3."""
        pair = [parents[n] for n in self.rng.integers(len(parents), size=2)]
        keys = list(dict.fromkeys([MAPPING, *self.keys()]))
        having = {name: [c for c in pair if name in self._chromosome(c)] for name in keys}
        names = [name for name in keys if having[name]]
        del names[int(self.rng.integers(len(names)))]
        mapping = (
            pair[int(self.rng.integers(2))].mapping
            if MAPPING in names
            else self.problem.draw_mapping(self.rng)
        )
        space = self.problem.space(mapping)
        constraints = []
        for name in names:
            if name in space.csp.variables and name != MAPPING:
                positions = {self._chromosome(c)[name] for c in having[name]}
                constraints.append(In(name, _decode(space.csp, name, positions), "crossover"))
        # On another mapping than the parents' their constraints may be in conflict.
        drawn = space.draw(1, self.rng, constraints) or space.draw(1, self.rng)
        return Candidate(mapping, drawn[0])

    def _chromosome(self, candidate: Candidate) -> dict[str, int]:
        """Return the values of all variables, tunable and derived, and of the mapping."""
        if candidate.key not in self._values:
            values = self.problem.space(candidate.mapping).values(candidate.schedule)
            self._values[candidate.key] = values | {MAPPING: 0}
        return self._values[candidate.key]


def _spread(ranked: list[tuple[float, Candidate]]) -> list[tuple[float, Candidate]]:
    """Put the best of each mapping and register tile first, then the second best, and so on.

    Near-identical candidates teach the model little.
    """
    crowd: Counter[object] = Counter()
    turns = []
    for entry in ranked:
        crowd[niche(entry[1])] += 1
        turns.append(crowd[niche(entry[1])])
    # Sorting is stable: in each turn the best comes first.
    return [ranked[n] for n in sorted(range(len(ranked)), key=lambda n: turns[n] > _SHARED)]


def _decode(csp: CSP, name: str, codes: set[int]) -> tuple[Value, ...]:
    """Return the values of a variable by their codes; words are coded by their positions."""
    variable = csp.variables[name]
    if not variable.domain:
        return tuple(sorted(codes))
    return tuple(
        v for v, code in zip(variable.domain, variable.codes, strict=True) if code in codes
    )
