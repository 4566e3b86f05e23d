"""The schedule space of a mapping: variables, their domains, and what must hold."""

from __future__ import annotations

import itertools
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from amos.errors import ScheduleError
from amos.mapping.mapping import Mapping
from amos.mapping.nest import Nest
from amos.mapping.staging import StagedOperand, staged_destination, staged_sources
from amos.schedule.schedule import Schedule, Value

__all__ = ["ScheduleSpace"]

#: Longest order that is enumerated as one variable; more loops keep their order
#: beyond it, since a permutation of more has no practical effect on locality.
_MAX_PERMUTED = 5
#: Fragments that may live in registers at once when the intrinsic does not say.
_DEFAULT_REGISTERS = 16
_ATTEMPTS = 1000


@dataclass(frozen=True)
class ScheduleSpace:
    """Every schedule of one mapping.

    A schedule is feasible when each variable takes a value of its domain and the
    fragments that one step of the reduction needs fit the registers.
    """

    mapping: Mapping

    @cached_property
    def nest(self) -> Nest:
        """The loops that are scheduled."""
        return Nest(self.mapping)

    @cached_property
    def variables(self) -> dict[str, tuple[Value, ...]]:
        """Domain of each variable, in a fixed order."""
        spatial = [loop for loop in self.nest.spatial if loop.extent > 1]
        reduce = [loop for loop in self.nest.reduce if loop.extent > 1]
        domains: dict[str, tuple[Value, ...]] = {}
        for loop in spatial:
            factors = [f for f in _divisors(loop.extent) if f <= self.registers]
            domains[f"tile.{loop.name}"] = tuple(factors)
        if spatial:
            domains["order"] = _permutations([loop.name for loop in spatial])
            domains["parallel"] = tuple(range(1, len(spatial) + 1))
        if reduce:
            domains["reduce"] = _permutations([loop.name for loop in reduce])
            domains["unroll"] = (1, 2, 4)
        for operand in self.gathered:
            domains[f"stage.{operand.name}"] = ("whole", "tile")
        return domains

    @cached_property
    def gathered(self) -> tuple[StagedOperand, ...]:
        """Sources that are copied into their staged form inside the kernel."""
        constants = self.mapping.operator.constants
        return tuple(
            op
            for op in staged_sources(self.nest)
            if not op.in_place and op.load.tensor.name not in constants
        )

    @cached_property
    def registers(self) -> int:
        """Fragments that fit the registers at once."""
        return self.mapping.intrinsic.registers or _DEFAULT_REGISTERS

    @property
    def size(self) -> int:
        """Number of assignments, feasible or not."""
        return prod(len(domain) for domain in self.variables.values())

    def violations(self, schedule: Schedule) -> tuple[str, ...]:
        """What a schedule breaks, in words; empty if it is feasible."""
        values = schedule.as_dict()
        found = [f"unknown variable {name!r}" for name in values if name not in self.variables]
        for name, domain in self.variables.items():
            if name not in values:
                found.append(f"{name} has no value")
            elif values[name] not in domain:
                found.append(f"{name} = {values[name]!r} is not one of {domain}")
        if not found and (need := self._registers_needed(values)) > self.registers:
            found.append(f"{need} fragments live at once, but {self.registers} registers")
        return tuple(found)

    def check(self, schedule: Schedule) -> Schedule:
        """Return the schedule if it is feasible.

        Raises:
            ScheduleError: it is not; the message names what is broken.
        """
        if broken := self.violations(schedule):
            raise ScheduleError(f"schedule of {self.mapping.name}: {'; '.join(broken)}")
        return schedule

    def sample(self, rng: np.random.Generator) -> Schedule:
        """Draw a feasible schedule."""
        for _ in range(_ATTEMPTS):
            values = {name: _pick(domain, rng) for name, domain in self.variables.items()}
            if self._registers_needed(values) <= self.registers:
                return Schedule.of(values)
        return self.smallest()

    def smallest(self) -> Schedule:
        """The schedule without register tiles, which fits whatever else does."""
        return Schedule.of({name: domain[0] for name, domain in self.variables.items()})

    def mutate(self, schedule: Schedule, rng: np.random.Generator) -> Schedule:
        """Change one or two variables; the result is feasible."""
        names = [name for name, domain in self.variables.items() if len(domain) > 1]
        if not names:
            return schedule
        for _ in range(_ATTEMPTS):
            values = schedule.as_dict()
            for _ in range(int(rng.integers(1, 3))):
                name = names[int(rng.integers(len(names)))]
                values[name] = _pick(self.variables[name], rng)
            if self._registers_needed(values) <= self.registers:
                return Schedule.of(values)
        return schedule

    def cross(self, a: Schedule, b: Schedule, rng: np.random.Generator) -> Schedule:
        """Take each variable from one parent; fall back to ``a`` if that does not fit."""
        left, right = a.as_dict(), b.as_dict()
        values = {name: (left if rng.integers(2) else right).get(name, left[name]) for name in left}
        return Schedule.of(values) if self._registers_needed(values) <= self.registers else a

    def _registers_needed(self, values: MappingType[str, Value]) -> int:
        """Accumulators, the widest source's fragments, and one for the other source."""
        tiles = {
            name.removeprefix("tile."): int(value)
            for name, value in values.items()
            if name.startswith("tile.")
        }

        def fragments(operand: StagedOperand) -> int:
            indexed = {name for dim in operand.dims for name in dim.index.names}
            return prod(factor for loop, factor in tiles.items() if loop in indexed)

        accumulators = fragments(self._destination)
        sources = sorted((fragments(op) for op in self._sources), reverse=True)
        # With the fragments of the source that changes least held, the other
        # source needs only the one in use.
        return accumulators + (sources[-1] if sources else 0) + (len(sources) > 1)

    @cached_property
    def _sources(self) -> tuple[StagedOperand, ...]:
        return staged_sources(self.nest)

    @cached_property
    def _destination(self) -> StagedOperand:
        return staged_destination(self.nest)


def _pick(domain: tuple[Value, ...], rng: np.random.Generator) -> Value:
    return domain[int(rng.integers(len(domain)))]


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _permutations(names: list[str]) -> tuple[str, ...]:
    head, tail = names[:_MAX_PERMUTED], names[_MAX_PERMUTED:]
    return tuple(" ".join([*order, *tail]) for order in itertools.permutations(head))
