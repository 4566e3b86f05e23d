"""The schedule space of a mapping on a machine: a constraint satisfaction problem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from amos._display import Shown
from amos.errors import MappingError, ScheduleError, UnknownNameError
from amos.machine import Machine
from amos.mapping.mapping import Mapping
from amos.plan import Candidate
from amos.plan.nest import Nest
from amos.plan.schedule import Schedule
from amos.plan.target import Target, target_of
from amos.plan.variables import Value
from amos.schedule import solver
from amos.schedule.constraints import Constraint, In, Le, Variable
from amos.schedule.csp import CSP
from amos.schedule.draft import Draft, Tiling, TilingContext
from amos.schedule.sampler import decode

_ATTEMPTS = 100


@dataclass(frozen=True)
class ScheduleSpace(Shown):
    """Every schedule of one mapping.

    A schedule is feasible when each variable takes a value of its domain and every constraint
    holds: the working set of one reduction step fits the registers and, on a known machine, the
    memory outside them.

    Attributes:
        machine: of the kernels; ``None`` for no limits but the registers'.
        tiling: ``"hardware"`` or, for comparison, ``"divisors"``.
        fixed_values: values that variables must take, as ``IN`` constraints.
    """

    mapping: Mapping
    machine: Machine | None = None
    tiling: Tiling = "hardware"
    fixed_values: tuple[Constraint, ...] = ()

    @cached_property
    def context(self) -> TilingContext:
        """The context of the rules."""
        return TilingContext(self.mapping, self.machine, self.tiling)

    @cached_property
    def csp(self) -> CSP:
        """The problem, with the fixed values."""
        draft = Draft(self.context)
        for rule in self.target.rules:
            draft.rule = rule.name
            rule.apply(draft)
        return CSP(draft.variables, tuple(draft.constraints)).plus(self.fixed_values)

    @property
    def nest(self) -> Nest:
        """The loops that are scheduled."""
        return self.context.nest

    @cached_property
    def variables(self) -> dict[str, tuple[Value, ...]]:
        """Domain of each variable that a schedule decides, in a fixed order."""
        return {variable.name: variable.domain for variable in self.csp.tunables}

    @cached_property
    def target(self) -> Target:
        """The target of the machine, for this mapping."""
        return target_of(self.machine, self.context)

    @property
    def size(self) -> int:
        """Number of assignments within the fixed values, feasible or not."""
        domains = {name: set(domain) for name, domain in self.variables.items()}
        for constraint in self.fixed_values:
            if isinstance(constraint, In) and constraint.variable in domains:
                domains[constraint.variable] &= set(constraint.values)
        return prod(map(len, domains.values()))

    def fix(self, constraints: Iterable[Constraint]) -> ScheduleSpace:
        """Restrict the space by further constraints."""
        added = (*self.fixed_values, *constraints)
        return ScheduleSpace(self.mapping, self.machine, self.tiling, added)

    def violations(self, schedule: Schedule) -> tuple[str, ...]:
        """Describe the constraints that a schedule breaks; empty if it is feasible."""
        values = schedule.as_dict()
        problems = [f"unknown variable {name!r}" for name in values if name not in self.variables]
        for variable in self.csp.tunables:
            value = values.get(variable.name, variable.default)
            if value is None:
                problems.append(f"{variable.name} has no value")
            elif value not in variable.domain:
                problems.append(f"{variable.name} = {value!r} is not one of {variable.domain}")
        if problems:
            return tuple(problems)
        positions = self.csp.positions(values)
        whole = {name: (at,) for name, at in positions.items()}
        broken = self.csp.find_violated(whole)
        if not broken:
            return ()
        amounts = dict(zip(self.csp.names, self.csp.bounds(whole)[0], strict=False))
        return tuple(_words(constraint, amounts) for constraint in broken)

    def is_feasible(self, schedule: Schedule) -> bool:
        """Return whether :meth:`violations` is empty, without describing them."""
        values = schedule.as_dict()
        if not values.keys() <= self.variables.keys():
            return False
        try:
            positions = self.csp.positions(values)
        except ScheduleError:
            return False
        return not self.csp.find_violated({name: (at,) for name, at in positions.items()})

    def check(self, schedule: Schedule) -> Schedule:
        """Return the schedule, if it is feasible; a ScheduleError names the broken constraints."""
        if broken := self.violations(schedule):
            got, expected = type(schedule), self.target.schedule
            if got is not expected:
                broken = (f"expected a {expected.__name__}, got a {got.__name__}",)
            raise ScheduleError(f"schedule of {self.mapping.name}: {'; '.join(broken)}")
        kind = self.target.schedule
        return schedule if isinstance(schedule, kind) else kind.of(schedule.as_dict())

    def sample(self, rng: np.random.Generator) -> Schedule:
        """Draw a feasible schedule; without one a ScheduleError names the conflict."""
        return self.schedule(self._draw_positions(rng))

    def _draw_positions(self, rng: np.random.Generator) -> dict[str, int]:
        if drawn := solver.sample(self.csp, 1, rng):
            return drawn[0]
        raise ScheduleError(f"{self.mapping.name}: {self._conflict}")

    @property
    def _conflict(self) -> str:
        return solver.conflict(self.csp, solver.explain(self.csp))

    def draw(
        self, count: int, rng: np.random.Generator, extra: Iterable[Constraint] = ()
    ) -> list[Schedule]:
        """Draw up to ``count`` different feasible schedules (RandSAT).

        They also meet ``extra``, though some are named by others of the same kernel that do not.
        """
        csp = self.csp.plus(extra) if extra else self.csp
        drawn = map(self.schedule, solver.sample(csp, count, rng))
        return [*dict.fromkeys(drawn)]

    def smallest(self) -> Schedule:
        """Return the schedule nearest to the first value of every variable."""
        first = dict.fromkeys(self.variables, 0)
        rng = np.random.default_rng(0)
        positions = decode(self.csp, first, rng, list(first)) or solver.solve(self.csp)
        if positions is None:
            raise ScheduleError(f"{self.mapping.name}: {self._conflict}")
        return self.schedule(positions)

    def mutate(self, schedule: Schedule, rng: np.random.Generator) -> Schedule:
        """Change one or two variables; the result is feasible."""
        return self.schedule(self.vary_positions(self.csp.positions(schedule.as_dict()), rng))

    def vary_positions(
        self, positions: MappingType[str, int], rng: np.random.Generator
    ) -> dict[str, int]:
        """Change one or two positions of a feasible assignment; the result is feasible."""
        csp = self.csp
        allowed = {name: options for name, options in csp.allowed.items() if len(options) > 1}
        names = list(allowed)
        for _ in range(_ATTEMPTS if names else 0):
            varied = dict(positions)
            for _ in range(int(rng.integers(1, 3))):
                name = names[int(rng.integers(len(names)))]
                varied[name] = allowed[name][int(rng.integers(len(allowed[name])))]
            if csp.is_possible({n: (at,) for n, at in varied.items()}):
                return varied
        return dict(positions)

    def repair(self, values: MappingType[str, Value], rng: np.random.Generator) -> Schedule:
        """Return the feasible schedule nearest to a wish, ignoring unknown variables."""
        goals = {
            name: domain.index(values[name])
            for name, domain in self.variables.items()
            if values.get(name) in domain
        }
        return self.schedule(self.repair_positions(goals, rng))

    def repair_positions(
        self, goals: MappingType[str, float], rng: np.random.Generator
    ) -> dict[str, int]:
        """Return the feasible positions nearest to a wish; other tunables are drawn."""
        positions = decode(self.csp, goals, rng)
        return positions if positions is not None else self._draw_positions(rng)

    def schedule(self, positions: MappingType[str, int]) -> Schedule:
        """Return the schedule of an assignment.

        Values that are a variable's default are left out, and those that decide nothing. Schedules
        that come to the same kernel are one, where fixed values allow it.
        """
        values: dict[str, Value] = {}
        for variable in self.csp.tunables:
            value = variable.domain[positions[variable.name]]
            # Needed variables come first; a default that is not allowed would leave the space.
            decides = not variable.needs or any(name in values for name in variable.needs)
            if value != variable.default and (decides or not self._allows_default(variable)):
                values[variable.name] = value
        schedule = self.target.schedule.of(values)
        canonical = schedule.canonical(self.nest)
        return canonical if canonical is schedule or self.is_feasible(canonical) else schedule

    def _allows_default(self, variable: Variable) -> bool:
        allowed = self.csp.allowed[variable.name]
        return variable.default in [variable.domain[position] for position in allowed]

    def values(self, schedule: Schedule) -> dict[str, int]:
        """Return every variable under a schedule: Heron's chromosome and features."""
        return self.csp.values(self.csp.positions(schedule.as_dict()))


def spaces_of(
    mappings: Sequence[Mapping],
    machine: Machine | None,
    fixes: Iterable[tuple[str, Value]] = (),
    tiling: Tiling = "hardware",
) -> dict[str, ScheduleSpace]:
    """Return the space of each mapping by name, under fixed values.

    Mappings that lack a fixed variable or have no schedule with the values are left out; on a
    machine with streams so are those whose schedules all overflow the buffers.

    Raises:
        UnknownNameError: no mapping has the variable.
        ScheduleError: no mapping remains; the message names the smallest set of constraints in
            conflict in the first mapping.
    """
    spaces = {m.name: ScheduleSpace(m, machine, tiling) for m in mappings}
    fixed = list(fixes)
    if not fixed:
        return _keep_feasible(spaces) if target_of(machine).checks_spaces else spaces
    named = {name for space in spaces.values() for name in space.variables}
    spelled = _spellings(named, target_of(machine).schedule)
    constraints = []
    for key, value in fixed:
        if key not in spelled:
            raise UnknownNameError("schedule variable", key, named)
        constraints.append(In(spelled[key], (value,), "given"))
    names = {constraint.variable for constraint in constraints}
    having = {key: x for key, x in spaces.items() if names <= x.variables.keys()}
    if not having:
        raise ScheduleError(f"no mapping has all of the variables {', '.join(sorted(names))}")
    fixed_spaces = {key: space.fix(constraints) for key, space in having.items()}
    feasible = {key: space for key, space in fixed_spaces.items() if _is_possible(space.csp)}
    if not feasible:
        first = next(iter(fixed_spaces))
        for constraint in constraints:
            domain = having[first].variables[constraint.variable]
            if not set(constraint.values) <= set(domain):
                raise ScheduleError(
                    f"mapping {first}: {constraint.variable} = {constraint.values[0]!r} is not "
                    f"one of {', '.join(map(str, domain))}"
                )
        core = solver.explain(having[first].csp, constraints)
        raise ScheduleError(f"mapping {first}: {solver.conflict(having[first].csp, core)}")
    return feasible


def _spellings(names: Iterable[str], kind: type[Schedule]) -> dict[str, str]:
    """Map spellings to variables: the name, its key in earlier records, dots as underscores."""
    names = [*names]
    dotted = {kind.record_key(name): name for name in names} | {name: name for name in names}
    return {key.replace(".", "_"): name for key, name in dotted.items()} | dotted


def _keep_feasible(spaces: dict[str, ScheduleSpace]) -> dict[str, ScheduleSpace]:
    """Keep the spaces that have a schedule; raise ScheduleError if there is none."""
    feasible = {key: space for key, space in spaces.items() if _is_possible(space.csp)}
    if spaces and not feasible:
        name, space = next(iter(spaces.items()))
        raise ScheduleError(
            f"none of {len(spaces)} mappings has a schedule; {name}: {space._conflict}"
        )
    return feasible


def _is_possible(csp: CSP) -> bool:
    allowed = csp.allowed
    settled = all(allowed.values()) and csp.is_possible(allowed)
    return settled and bool(solver.sample(csp, 1, np.random.default_rng(0)))


def candidate_of(kernel: Any, schedule: Schedule | None = None) -> Candidate:
    """Return the candidate of a mapping, a trial of an exploration, or a candidate.

    Raises:
        MappingError: it is nothing of the kind.
    """
    if isinstance(kernel, Mapping):
        return Candidate(kernel, schedule or ScheduleSpace(kernel).smallest())
    candidate = getattr(kernel, "candidate", kernel)
    if not isinstance(candidate, Candidate):
        raise MappingError(
            f"expected a mapping, a candidate or a trial, got {type(kernel).__name__}"
        )
    return candidate


def _words(constraint: Constraint, values: dict[str, int]) -> str:
    if isinstance(constraint, Le):
        if constraint.reason:
            return constraint.reason.format(
                left=values[constraint.lhs], right=values[constraint.rhs]
            )
        return f"{constraint}, but {values[constraint.lhs]} > {values[constraint.rhs]}"
    if isinstance(constraint, In):
        return f"{constraint}, but it is {values[constraint.variable]}"
    return str(constraint)
