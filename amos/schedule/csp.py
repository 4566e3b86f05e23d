"""A constraint satisfaction problem, and bounds under partial assignments.

Every constraint is evaluated over intervals: an undecided variable ranges over all of its values.
An assignment that decides every tunable is feasible exactly when no constraint is broken; a
variable of the role ``other`` that no constraint defines may then still be chosen, and at most one
``SELECT`` may use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import prod

from amos.errors import ScheduleError, UnknownNameError
from amos.plan import Value
from amos.schedule.constraints import Constraint, In, Le, Prod, Select, Variable


@dataclass(frozen=True)
class CSP:
    """Variables and constraints.

    Constraints that define a variable (``PROD``, ``SUM``, ``EQ`` and ``SELECT`` whose target has no
    domain) follow those that define their parts.

    Raises:
        ScheduleError: a constraint names an unknown variable, or one that is
            neither given nor defined before.
    """

    variables: Mapping[str, Variable]
    constraints: tuple[Constraint, ...]

    def __post_init__(self) -> None:
        defined = {name for name, variable in self.variables.items() if variable.domain}
        for constraint in self.constraints:
            if missing := [n for n in constraint.names if n not in self.variables]:
                raise ScheduleError(f"{constraint}: unknown variable {', '.join(missing)}")
            target = constraint.names[0]
            used = constraint.names[0 if isinstance(constraint, Le | In) else 1 :]
            if late := [name for name in used if name not in defined]:
                raise ScheduleError(f"{constraint}: {', '.join(late)} is not defined before it")
            defined.add(target)
        if lost := self.variables.keys() - defined:
            raise ScheduleError(f"no constraint defines {', '.join(sorted(lost))}")

    @cached_property
    def tunables(self) -> tuple[Variable, ...]:
        """Variables that a search decides, in order of declaration."""
        return tuple(v for v in self.variables.values() if v.role == "tunable")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all variables; the position is the number used by bounds."""
        return tuple(self.variables)

    @property
    def size(self) -> int:
        """Number of assignments of the tunables, feasible or not."""
        return prod(len(variable.domain) for variable in self.tunables)

    def plus(self, extra: Iterable[Constraint]) -> CSP:
        """Add constraints to the problem.

        Raises:
            UnknownNameError: a constraint names a variable that there is not.
        """
        added = tuple(extra)
        for constraint in added:
            for name in constraint.names:
                if name not in self.variables:
                    raise UnknownNameError("schedule variable", name, self.variables)
        if not all(isinstance(c, In) and c.variable in self.allowed for c in added):
            return CSP(self.variables, self.constraints + added)
        # Candidates of tunables define nothing, so the checked and numbered program is reused.
        program, narrower = self._program, copy(self)
        object.__setattr__(narrower, "constraints", self.constraints + added)
        allowed = _narrow(dict(self.allowed), added, self.variables)
        narrower.__dict__.update(allowed=allowed, _program=program)
        narrower.__dict__.pop("_undecided", None)
        return narrower

    def by_type(self) -> dict[str, int]:
        """Count the constraints of each type."""
        counts = Counter(constraint.type for constraint in self.constraints)
        return {name: counts.get(name, 0) for name in ("PROD", "SUM", "EQ", "LE", "IN", "SELECT")}

    def by_rule(self) -> dict[str, int]:
        """Count the constraints of each rule, in the order of the rules."""
        return dict(Counter(constraint.rule for constraint in self.constraints))

    def by_role(self) -> dict[str, int]:
        """Count the variables of each role (Heron, Table 4)."""
        counts = Counter(variable.role for variable in self.variables.values())
        return {
            role: counts.get(role, 0) for role in ("architecture", "length", "tunable", "other")
        }

    @cached_property
    def allowed(self) -> Mapping[str, tuple[int, ...]]:
        """Positions of each tunable's domain that its own ``IN`` constraints allow."""
        positions = {v.name: tuple(range(len(v.domain))) for v in self.tunables}
        return _narrow(positions, self.constraints, self.variables)

    @property
    def coupled(self) -> frozenset[str]:
        """Tunables that share a constraint with others; all others are independent."""
        return self._program.coupled

    def bounds(
        self, positions: Mapping[str, Sequence[int]], *, checks_only: bool = False
    ) -> tuple[list[int], list[int]]:
        """Bound each variable from below and from above, in the order of :attr:`names`.

        Args:
            positions: for each tunable the positions that it may still take.
            checks_only: leave out variables that no limit depends on.
        """
        program = self._program
        low, high = list(program.low), list(program.high)
        for number, name, codes in program.tied if checks_only else program.tunables:
            allowed = positions[name]
            if len(allowed) == 1:
                low[number] = high[number] = codes[allowed[0]]
            else:
                values = [codes[p] for p in allowed]
                low[number], high[number] = min(values), max(values)
        definitions = program.needed if checks_only else program.definitions
        _propagate(definitions, positions, low, high)
        return low, high

    def find_violated(self, positions: Mapping[str, Sequence[int]]) -> list[Constraint]:
        """Return the constraints that no completion of a partial assignment can meet.

        Sound, and exact once every tunable has a single position; before that a conflict between
        constraints may go unnoticed.
        """
        low, high = self.bounds(positions)
        limits = self._program.limits
        conflicts: list[Constraint] = [
            c for c, test, a, b in limits if not _holds(test, a, b, low, high)
        ]
        for name, allowed in positions.items():
            if set(allowed).isdisjoint(self.allowed[name]):
                here = {self.variables[name].domain[at] for at in allowed}
                conflicts += [
                    c
                    for c in self.constraints
                    if isinstance(c, In) and c.variable == name and here.isdisjoint(c.values)
                ]
        return conflicts

    def is_possible(self, positions: Mapping[str, Sequence[int]]) -> bool:
        """Return whether :meth:`find_violated` is empty, for positions that are :attr:`allowed`."""
        return _all_hold(self._program.limits, *self.bounds(positions, checks_only=True))

    def values(self, positions: Mapping[str, int]) -> dict[str, int]:
        """Return every variable's value under a whole assignment; words as positions."""
        low, _ = self.bounds({name: (at,) for name, at in positions.items()})
        return dict(zip(self.names, low, strict=False))

    def positions(self, assignment: Mapping[str, Value]) -> dict[str, int]:
        """Return the positions of a whole assignment; missing variables take their defaults.

        Raises:
            ScheduleError: a variable has no value, or one outside its domain.
        """
        places = {}
        for variable in self.tunables:
            value = assignment.get(variable.name, variable.default)
            if value not in variable.domain:
                raise ScheduleError(f"{variable.name} = {value!r} is not one of {variable.domain}")
            places[variable.name] = variable.domain.index(value)
        return places

    def dependent(self, name: str) -> Dependent:
        """Return a tunable's number and values, and what depends on it."""
        return self._program.dependent(name)

    @cached_property
    def _program(self) -> _Program:
        return _Program(self)

    @cached_property
    def _undecided(self) -> tuple[list[int], list[int], bool]:
        """Bounds of all that is :attr:`allowed`, and whether every limit can be met."""
        low, high = self.bounds(self.allowed, checks_only=True)
        return low, high, _all_hold(self._program.limits, low, high)


def _narrow(
    allowed: dict[str, tuple[int, ...]],
    constraints: Iterable[Constraint],
    variables: Mapping[str, Variable],
) -> dict[str, tuple[int, ...]]:
    """Drop the positions of tunables that ``IN`` constraints on them exclude."""
    for constraint in constraints:
        if isinstance(constraint, In) and constraint.variable in allowed:
            domain, values = variables[constraint.variable].domain, constraint.values
            positions = allowed[constraint.variable]
            allowed[constraint.variable] = tuple(p for p in positions if domain[p] in values)
    return allowed


class Decisions:
    """Tunables decided one by one, with the resulting bounds.

    Equivalent to :meth:`CSP.is_possible` after every decision, but only dependents of the last one
    are evaluated again.

    Attributes:
        remaining: positions that each tunable may still take.
        possible: whether every limit can be met before anything is decided.
    """

    def __init__(self, csp: CSP) -> None:
        self.remaining: dict[str, tuple[int, ...]] = dict(csp.allowed)
        self._program = csp._program
        self._low, self._high, self.possible = csp._undecided

    def decide(self, name: str, position: int) -> bool:
        """Give a tunable a value if every limit can still be met; otherwise leave it undecided."""
        before = self.remaining[name], self._low, self._high
        self.remaining[name] = (position,)
        number, codes, definitions, limits = self._program.dependent(name)
        self._low, self._high = list(self._low), list(self._high)
        self._low[number] = self._high[number] = codes[position]
        _propagate(definitions, self.remaining, self._low, self._high)
        if _all_hold(limits, self._low, self._high):
            return True
        self.remaining[name], self._low, self._high = before
        return False


#: One value that a ``SELECT`` chooses: whether it is a variable, and its number or the value.
Choice = tuple[bool, int]
#: How a variable is defined: the kind, it, its parts, or its choices and what chooses.
_Definition = tuple[str, int, list[int], list[Choice], str]
#: A constraint that is checked: itself, the test, and its operands.
_Limit = tuple[Constraint, str, int, object]
#: Number and codes of a tunable, and the definitions and limits that depend on it.
Dependent = tuple[int, Sequence[int], list[_Definition], list[_Limit]]


class _Program:
    """The constraints over numbered variables: definitions in order, then checks."""

    def __init__(self, csp: CSP) -> None:
        self.number = number = {name: n for n, name in enumerate(csp.names)}
        codes = {name: variable.codes for name, variable in csp.variables.items()}
        self.low = [min(codes[name], default=0) for name in csp.names]
        self.high = [max(codes[name], default=0) for name in csp.names]
        self.tunables = [(number[v.name], v.name, codes[v.name]) for v in csp.tunables]
        self.definitions: list[_Definition] = []
        #: Checks that the allowed positions of the tunables do not already decide.
        self.limits: list[_Limit] = []
        defined = {name for name, variable in csp.variables.items() if variable.domain}
        for constraint in csp.constraints:
            self._add(constraint, number, csp.variables, defined)
        # Variables that the limits depend on, from the last definition back to the first.
        needed = {n for _, test, a, b in self.limits for n in ((a, b) if test != "IN" else (a,))}
        self.needed = []
        for definition in reversed(self.definitions):
            _, target, parts, choices, index = definition
            if target in needed:
                self.needed.append(definition)
                needed.update(parts, (c for named, c in choices if named))
                needed.update([number[index]] if index else [])
        self.needed.reverse()
        self.tied = [entry for entry in self.tunables if entry[0] in needed]
        self.coupled = frozenset(name for _, name, _ in self.tied)
        self._dependent: dict[str, Dependent] = {}

    def dependent(self, name: str) -> Dependent:
        """Return what depends on a tunable, memoized."""
        if name not in self._dependent:
            codes = next(codes for _, tunable, codes in self.tunables if tunable == name)
            reached = {self.number[name]}
            definitions = []
            for definition in self.needed:
                _, target, parts, choices, index = definition
                sources = {*parts, *(c for named, c in choices if named)}
                if index == name or not reached.isdisjoint(sources):
                    reached.add(target)
                    definitions.append(definition)
            limits = [
                limit
                for limit in self.limits
                if limit[2] in reached or (limit[1] != "IN" and limit[3] in reached)
            ]
            self._dependent[name] = self.number[name], codes, definitions, limits
        return self._dependent[name]

    def _add(
        self,
        constraint: Constraint,
        number: dict[str, int],
        variables: Mapping[str, Variable],
        defined: set[str],
    ) -> None:
        target = number[constraint.names[0]]
        if isinstance(constraint, Le):
            self.limits.append((constraint, "LE", target, number[constraint.rhs]))
            return
        if isinstance(constraint, In):
            if variables[constraint.variable].role == "tunable":
                return
            allowed = variables[constraint.variable].encode(constraint.values)
            self.limits.append((constraint, "IN", target, allowed))
            return
        if constraint.names[0] in defined:
            # A second definition of a variable: compute it separately, then compare.
            self.low.append(0)
            self.high.append(0)
            self.limits.append((constraint, "EQ", target, len(self.low) - 1))
            target = len(self.low) - 1
        defined.add(constraint.names[0])
        if isinstance(constraint, Select):
            choices = [
                (True, number[c]) if isinstance(c, str) else (False, c) for c in constraint.choices
            ]
            self.definitions.append(("SELECT", target, [], choices, constraint.index))
            return
        # An equality is a sum of one term.
        kind = "PROD" if isinstance(constraint, Prod) else "SUM"
        parts = [number[name] for name in constraint.names[1:]]
        self.definitions.append((kind, target, parts, [], ""))


def _propagate(
    definitions: Iterable[_Definition],
    positions: Mapping[str, Sequence[int]],
    low: list[int],
    high: list[int],
) -> None:
    """Bound the defined variables by the bounds of their parts."""
    for kind, target, parts, choices, index in definitions:
        if kind == "PROD":
            least = most = 1
            for factor in parts:
                least *= low[factor]
                most *= high[factor]
        elif kind == "SUM":
            least, most = sum([low[p] for p in parts]), sum([high[p] for p in parts])
        else:
            at = positions.get(index) or range(len(choices))
            least = min([low[c] if named else c for named, c in [choices[p] for p in at]])
            most = max([high[c] if named else c for named, c in [choices[p] for p in at]])
        low[target], high[target] = least, most


def _all_hold(limits: Iterable[_Limit], low: list[int], high: list[int]) -> bool:
    return all(_holds(test, a, b, low, high) for _, test, a, b in limits)


def _holds(test: str, a: int, b: object, low: list[int], high: list[int]) -> bool:
    if test == "IN":
        assert isinstance(b, frozenset)
        if low[a] == high[a]:
            return low[a] in b
        return any(low[a] <= value <= high[a] for value in b)
    assert isinstance(b, int)
    if test == "LE":
        return low[a] <= high[b]
    return low[a] <= high[b] and low[b] <= high[a]
