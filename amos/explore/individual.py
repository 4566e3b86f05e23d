"""Candidates as DEAP breeds them: lists of positions, with a fitness."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Iterable
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from deap import base, tools

from amos.errors import ExploreError
from amos.explore.method import niche
from amos.plan import Candidate, Value
from amos.schedule import ScheduleSpace


class Seconds(base.Fitness):  # type: ignore[misc]
    """The score of a candidate, to be minimized."""

    weights = (-1.0,)


class Individual(list[float | None]):
    """The position of each schedule variable's value in its domain, on one mapping.

    Operators change positions in place, and need not keep to domains or constraints:
    :meth:`repair` takes the feasible candidate that is nearest. ``None`` leaves a variable
    to the solver, which draws it.

    Attributes:
        fitness: the score, once the candidate has one.
    """

    def __init__(
        self,
        space: ScheduleSpace,
        positions: Iterable[float | None],
        fitness: base.Fitness | None = None,
    ) -> None:
        super().__init__(positions)
        self.fitness = Seconds() if fitness is None else fitness
        self._space = space
        self._candidate: Candidate | None = None
        #: The positions of the candidate above, and those that the solver found feasible.
        self._settled: tuple[float | None, ...] | None = None
        self._feasible: tuple[float | None, ...] | None = None

    @classmethod
    def of(
        cls, space: ScheduleSpace, candidate: Candidate, fitness: base.Fitness | None = None
    ) -> Individual:
        """Create the individual of a feasible candidate."""
        positions = space.csp.positions(candidate.schedule.as_dict())
        individual = cls(space, positions.values(), fitness)
        individual._candidate = candidate
        individual._settled = individual._feasible = tuple(individual)
        return individual

    @property
    def space(self) -> ScheduleSpace:
        """The schedules of its mapping; ``space.variables`` has the domains."""
        return self._space

    @property
    def seconds(self) -> float:
        """The first of its fitness values."""
        return float(self.fitness.values[0])

    @property
    def candidate(self) -> Candidate:
        """The candidate at the positions, all of which must be in their domains."""
        positions = tuple(self)
        if self._candidate is None or positions != self._settled:
            places = {name: int(at) for name, at in self._places.items()}
            self._candidate = Candidate(self._space.mapping, self._space.schedule(places))
            self._settled = positions
        return self._candidate

    @property
    def values(self) -> dict[str, Value]:
        """Values by variable, as its schedule is written: most defaults are left out."""
        return self.candidate.schedule.as_dict()

    @cached_property
    def niche(self) -> Hashable:
        """Key shared by candidates of similar performance; of finished individuals only."""
        return niche(self.candidate)

    def clone(self) -> Individual:
        """Return a copy on the same space."""
        copy = Individual(self._space, self, self.fitness.__deepcopy__({}))
        copy._candidate, copy._settled = self._candidate, self._settled
        copy._feasible = self._feasible
        return copy

    def __deepcopy__(self, memo: object) -> Individual:
        return self.clone()

    def __reduce__(self) -> Any:
        return Individual, (self._space, list(self), self.fitness)

    def move(self, space: ScheduleSpace) -> None:
        """Move to another mapping; keep the values that it has as well, draw the others."""
        values = self.values
        self._space, self._feasible, self._candidate = space, None, None
        self[:] = positions_of(space, values)

    def vary(self, rng: np.random.Generator) -> None:
        """Change one or two positions of a feasible individual, which stays feasible."""
        self._settle(self._space.vary_positions(self._places, rng))

    def repair(self, rng: np.random.Generator) -> None:
        """Snap an individual, a number or ``None`` a variable, to feasible positions."""
        if self._feasible is not None and tuple(self) == self._feasible:
            self[:] = self._feasible  # 1.0 is 1 as well, but no position
            return
        names = list(self._space.variables)
        if len(self) != len(names) or not all(x is None or isinstance(x, Real) for x in self):
            raise ExploreError(
                f"toolbox: an individual of mapping {self._space.mapping.name}: expected "
                f"{len(names)} positions, one a variable, got {list(self)}"
            )
        positions = {name: at for name, at in zip(names, self, strict=True) if at is not None}
        self._settle(self._space.repair_positions(positions, rng))

    @property
    def _places(self) -> dict[str, int]:
        return dict(zip(self._space.variables, self, strict=True))  # type: ignore[arg-type]

    def _settle(self, positions: dict[str, int]) -> None:
        self[:] = [positions[name] for name in self._space.variables]
        self._feasible = tuple(self)


def positions_of(space: ScheduleSpace, values: dict[str, Value]) -> list[float | None]:
    """Return the positions of values in the domains of a space, ``None`` where absent."""
    return [
        domain.index(values[name]) if values.get(name) in domain else None
        for name, domain in space.variables.items()
    ]


class Survivors(tools.HallOfFame):  # type: ignore[misc]
    """The best ``most`` individuals so far, at most ``alike`` of one :attr:`Individual.niche`."""

    def __init__(self, most: int, alike: int) -> None:
        super().__init__(most)
        self._alike = alike

    def update(self, population: Iterable[Individual]) -> None:
        """Let newcomers replace worse individuals; ties go to the present ones."""
        for individual in population:
            if not math.isfinite(individual.seconds):
                continue
            if len(self) == self.maxsize and not individual.fitness > self[-1].fitness:
                continue
            rivals = [n for n, x in enumerate(self) if x.niche == individual.niche]
            if len(rivals) == self._alike:
                if not individual.fitness > self[rivals[-1]].fitness:
                    continue
                self.remove(rivals[-1])
            elif len(self) == self.maxsize:
                self.remove(-1)
            self.insert(individual)

    def insert(self, item: Individual) -> None:
        """Insert a copy after those that are as good."""
        place = bisect_left(self.keys, item.fitness)
        copy = item.clone()
        self.items.insert(len(self) - place, copy)
        self.keys.insert(place, copy.fitness)
