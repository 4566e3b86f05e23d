"""Genetic algorithms with other ways to handle constraints (Heron, section 7.4).

``ga_sr`` (GA-1) and ``ga_mo`` (GA-3) breed concrete values without looking at the
constraints. A child that breaks one is never handed out, but it costs a score, as
it would cost a failed measurement: it is counted in ``wasted``. ``ga_sat`` (GA-2)
decodes every child into a feasible one with the help of a solver. ``ga_plain`` is
what the paper compares all of them with: infeasible children are thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from deap import base, tools

from amos.explore.method import Search, defaults
from amos.explore.objective import Problem
from amos.plan import Candidate, Value

_POPULATION = 32
_MATE = 0.6
#: Probability of comparing by score although a candidate is infeasible (Runarsson, Yao).
_BY_SCORE = 0.45


class _Both(base.Fitness):  # type: ignore[misc]
    """Seconds and broken constraints, both to be minimized."""

    weights = (-1.0, -1.0)


class _Member:
    """A candidate, feasible or not, with its score and what it breaks."""

    def __init__(self, candidate: Candidate, seconds: float, broken: int) -> None:
        self.candidate, self.seconds, self.broken = candidate, seconds, broken
        self.fitness = _Both()
        # The score of what never ran is unknown; a number keeps DEAP's distances finite.
        self.fitness.values = (seconds if math.isfinite(seconds) else 1e9, broken)


class _Breeding(Search):
    """Crossover and mutation of values that ignore every constraint but the domains."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        super().__init__(problem, rng)
        self._population: list[_Member] = []
        self._failed: list[_Member] = []

    def propose(self, count: int) -> Iterator[Candidate]:
        """The first population by chance, then children of the survivors."""
        yield from self.seeds(_POPULATION - len(self.results))
        if not self._population:
            return
        # A generation that is infeasible to the last child must end all the same.
        for _ in range(20 * count):
            child = self._child()
            broken = len(self.problem.space(child.mapping).violations(child.schedule))
            if broken:
                self.wasted += 1
                self._failed.append(_Member(child, math.inf, broken))
            else:
                yield child

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        """Let the fittest of the population and the newcomers survive."""
        super().tell(results)
        born = [_Member(c, s, 0) for c, s in results]
        self._population = self.survive([*self._population, *born, *self._failed])
        self._failed = []

    def survive(self, members: list[_Member]) -> list[_Member]:
        """The next population."""
        raise NotImplementedError

    def rescore(self, scores: object) -> None:
        """Members keep the score they were told; the next ones get the new scores."""

    def _child(self) -> Candidate:
        one, two = (
            self._population[int(n)].candidate
            for n in self.rng.integers(len(self._population), size=2)
        )
        values: dict[str, Value] = self._assignment(one)
        if self.rng.random() < _MATE:
            other = self._assignment(two)
            values |= {n: other[n] for n in values if n in other and self.rng.integers(2)}
        mapping = self.any_mapping() if self.moves() else one.mapping
        space = self.problem.space(mapping)
        domains = space.variables
        kept = {
            name: values[name] if values.get(name) in domain else self._pick(domain)
            for name, domain in domains.items()
        }
        for name in [n for n in domains if self.rng.random() < 1.5 / max(len(domains), 1)]:
            kept[name] = self._pick(domains[name])
        positions = {name: domains[name].index(value) for name, value in kept.items()}
        return Candidate(mapping, space.schedule(positions))

    def _assignment(self, candidate: Candidate) -> dict[str, Value]:
        return defaults(self.problem.space(candidate.mapping)) | candidate.schedule.as_dict()

    def _pick(self, domain: Sequence[Value]) -> Value:
        return domain[int(self.rng.integers(len(domain)))]


class StochasticRanking(_Breeding):
    """The search method ``ga_sr``."""

    def survive(self, members: list[_Member]) -> list[_Member]:
        """A bubble sort that compares by score or by what is broken, by chance."""
        ranked = list(members)
        for _ in range(len(ranked)):
            swapped = False
            for n in range(len(ranked) - 1):
                a, b = ranked[n], ranked[n + 1]
                feasible = a.broken == b.broken == 0
                if feasible or self.rng.random() < _BY_SCORE:
                    worse = a.seconds > b.seconds
                else:
                    worse = a.broken > b.broken
                if worse:
                    ranked[n], ranked[n + 1], swapped = b, a, True
            if not swapped:
                break
        return ranked[:_POPULATION]


class Plain(_Breeding):
    """The search method ``ga_plain``: a child that breaks a constraint dies.

    The rival of Heron's Figures 2 and 12: a genetic algorithm that knows nothing of
    constraints but for its first population, which the solver draws.
    """

    def survive(self, members: list[_Member]) -> list[_Member]:
        """The best of those that ran."""
        alive = [member for member in members if not member.broken]
        return sorted(alive, key=lambda member: member.seconds)[:_POPULATION]


class MultiObjective(_Breeding):
    """The search method ``ga_mo``: broken constraints are a second objective (NSGA-II)."""

    def survive(self, members: list[_Member]) -> list[_Member]:
        """The first fronts."""
        kept: list[_Member] = tools.selNSGA2(members, min(_POPULATION, len(members)))
        return kept


class SatDecoder(_Breeding):
    """The search method ``ga_sat``: each child is the feasible one nearest to a wish."""

    def survive(self, members: list[_Member]) -> list[_Member]:
        """The best."""
        return sorted(members, key=lambda member: member.seconds)[:_POPULATION]

    def _child(self) -> Candidate:
        wish = super()._child()
        space = self.problem.space(wish.mapping)
        return Candidate(wish.mapping, space.repair(self._assignment(wish), self.rng))
