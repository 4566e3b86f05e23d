"""Search methods that Heron compares with its own (section 7.4).

``ga_sr`` (GA-1) and ``ga_mo`` (GA-3) breed concrete values without looking at the
constraints. A child that breaks one is never handed out, but it costs a score, as
it would cost a failed measurement: it is counted in ``wasted``. ``ga_sat`` (GA-2)
decodes every child into a feasible one with the help of a solver. ``ga_plain`` is
the paper's baseline for all of them: infeasible children are discarded. ``cga1``
(CGA-1) is ``cga`` with random key variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from deap import base, tools

from amos.explore.cga import KEY_COUNT, Cga
from amos.explore.individual import Individual
from amos.explore.method import Search, goes_elsewhere
from amos.explore.objective import Problem
from amos.plan import Candidate, Value

_POPULATION = 32
_MATE = 0.6
#: Probability of comparing by score although a candidate is infeasible (Runarsson, Yao).
_BY_SCORE = 0.45
#: Seconds of candidates that never ran and have no score; a number keeps DEAP's distances finite.
_NEVER_RAN = 1e9


class _Both(base.Fitness):  # type: ignore[misc]
    """Seconds and broken constraints, both to be minimized."""

    weights = (-1.0, -1.0)


class Cga1(Cga):
    """The search method ``cga1``: random key variables."""

    def keys(self) -> list[str]:
        """Draw as many variables as ``cga`` takes."""
        names = sorted(self.model.tunables)
        return [names[n] for n in self.rng.permutation(len(names))[:KEY_COUNT]]


class Breeding(Search):
    """Crossover and mutation of values that ignore every constraint but the domains.

    Attributes:
        wasted: infeasible proposals so far, which were never returned.
    """

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        super().__init__(problem, rng)
        self.wasted = 0
        self._population: list[Individual] = []
        self._failed: list[Individual] = []

    def propose(self, count: int) -> Iterator[Candidate]:
        """Yield a random first population, then children of the survivors."""
        yield from self.draw_seeds(_POPULATION - len(self.results))
        if not self._population:
            return
        # A generation without any feasible child must end, too.
        for _ in range(20 * count):
            child = self._breed()
            if broken := len(child.space.violations(child.candidate.schedule)):
                self.wasted += 1
                child.fitness.values = (_NEVER_RAN, broken)
                self._failed.append(child)
            else:
                yield child.candidate

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        """Let the fittest of the population and the newcomers survive."""
        super().tell(results)
        individuals = [Individual.of(self.problem.space(c.mapping), c, _Both()) for c, _ in results]
        for individual, (_, seconds) in zip(individuals, results, strict=True):
            individual.fitness.values = (min(seconds, _NEVER_RAN), 0)
        self._population = self.survive([*self._population, *individuals, *self._failed])
        self._failed = []

    def survive(self, members: list[Individual]) -> list[Individual]:
        """Return the next population."""
        raise NotImplementedError

    def rescore(self, scores: object) -> None:
        """Leave the scores of members; only new ones get the new scores."""

    def _breed(self) -> Individual:
        first, second = (
            self._population[int(n)] for n in self.rng.integers(len(self._population), size=2)
        )
        values = _assignment(first)
        if self.rng.random() < _MATE:
            second_values = _assignment(second)
            values |= {
                n: second_values[n] for n in values if n in second_values and self.rng.integers(2)
            }
        elsewhere = goes_elsewhere(self.problem, self.rng)
        mapping = self.problem.draw_mapping(self.rng) if elsewhere else None
        space = first.space if mapping is None else self.problem.space(mapping)
        domains = space.variables
        genes = {
            name: values[name] if values.get(name) in domain else self._pick(domain)
            for name, domain in domains.items()
        }
        for name in [n for n in domains if self.rng.random() < 1.5 / max(len(domains), 1)]:
            genes[name] = self._pick(domains[name])
        return Individual(space, (domains[n].index(x) for n, x in genes.items()), _Both())

    def _pick(self, domain: Sequence[Value]) -> Value:
        return domain[int(self.rng.integers(len(domain)))]


class StochasticRanking(Breeding):
    """The search method ``ga_sr``."""

    def survive(self, members: list[Individual]) -> list[Individual]:
        """Sort in bubbles by score or by broken constraints, chosen at random."""
        ranked = list(members)
        for _ in range(len(ranked)):
            swapped = False
            for n in range(len(ranked) - 1):
                a, b = ranked[n], ranked[n + 1]
                feasible = _broken_count(a) == _broken_count(b) == 0
                if feasible or self.rng.random() < _BY_SCORE:
                    worse = a.seconds > b.seconds
                else:
                    worse = _broken_count(a) > _broken_count(b)
                if worse:
                    ranked[n], ranked[n + 1], swapped = b, a, True
            if not swapped:
                break
        return ranked[:_POPULATION]


class Plain(Breeding):
    """The search method ``ga_plain``: a child that breaks a constraint dies.

    The rival of Heron's Figures 2 and 12: a genetic algorithm that knows nothing of
    constraints but for its first population, which the solver draws.
    """

    def survive(self, members: list[Individual]) -> list[Individual]:
        """Return the best of those that ran."""
        alive = [member for member in members if not _broken_count(member)]
        return sorted(alive, key=lambda member: member.seconds)[:_POPULATION]


class MultiObjective(Breeding):
    """The search method ``ga_mo``: broken constraints are a second objective (NSGA-II)."""

    def survive(self, members: list[Individual]) -> list[Individual]:
        """Return the first fronts."""
        survivors: list[Individual] = tools.selNSGA2(members, min(_POPULATION, len(members)))
        return survivors


class SatDecoder(Breeding):
    """The search method ``ga_sat``: each child is the feasible one nearest to bred values."""

    def survive(self, members: list[Individual]) -> list[Individual]:
        """Return the best."""
        return sorted(members, key=lambda member: member.seconds)[:_POPULATION]

    def _breed(self) -> Individual:
        child = super()._breed()
        child.repair(self.rng)
        return child


def _broken_count(member: Individual) -> float:
    return float(member.fitness.values[1])


def _assignment(member: Individual) -> dict[str, Value]:
    tunables = member.space.csp.tunables
    return {v.name: v.default for v in tunables if v.default is not None} | member.values
