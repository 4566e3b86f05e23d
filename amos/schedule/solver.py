"""Queries of the constraint problem by OR-tools CP-SAT (Heron, 5.1).

``sample`` is RandSAT: propagation draws most assignments, CP-SAT finds one where
propagation runs into dead ends. ``solve`` finds one by CP-SAT alone, ``count`` counts small
spaces, ``explain`` names the constraints in conflict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from amos.errors import ScheduleError
from amos.plan import Value
from amos.schedule.constraints import Constraint, In, Le, Prod, Select, Sum
from amos.schedule.csp import CSP
from amos.schedule.sampler import descend, enumerate_assignments

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

#: Most partial assignments that counting visits.
COUNTED = 200_000
#: Effort of a solve in CP-SAT's deterministic time, whose unit is about a second.
_EFFORT = 10.0
_LARGEST = 2**40
#: Saturated values below this multiply within 64 bits, and so do sums of their products.
_SATURATED = 2**28
#: Largest size of a conflict that is searched exhaustively.
_SMALL = 2
#: Repeated draws of known assignments after which a space counts as exhausted.
_REPEATS = 30


def sample(csp: CSP, count: int, rng: np.random.Generator) -> list[dict[str, int]]:
    """Draw up to ``count`` different feasible assignments as positions.

    The same generator state gives the same assignments in every process. Fewer come
    back only if the space has no more; none if it is infeasible.
    """
    assignments: dict[tuple[int, ...], dict[str, int]] = {}
    repeats = 0
    while len(assignments) < count and repeats < _REPEATS:
        drawn = descend(csp, rng)
        if drawn is None:
            drawn = solve(csp, rng=rng)
            if drawn is None:
                return list(assignments.values())
        key = tuple(drawn.values())
        repeats = repeats + 1 if key in assignments else 0
        assignments.setdefault(key, drawn)
    complete = enumerate_assignments(csp, COUNTED) if len(assignments) < count else None
    if complete is not None:
        for number in rng.permutation(len(complete)):
            assignments.setdefault(tuple(complete[number].values()), complete[number])
            if len(assignments) >= count:
                break
    return list(assignments.values())


def count(csp: CSP) -> int | None:
    """Count the feasible assignments; ``None`` if the space is too large to count."""
    assignments = enumerate_assignments(csp, COUNTED)
    return None if assignments is None else len(assignments)


def fix_values(partial: Mapping[str, Value]) -> list[Constraint]:
    """Express a partial assignment as ``IN`` constraints."""
    return [In(name, (value,), "given") for name, value in partial.items()]


def conflict(csp: CSP, core: Iterable[Constraint]) -> str:
    """Describe a set of constraints that cannot hold together."""
    return "infeasible: " + "; ".join(f"{_words(csp, c)} (rule {c.rule})" for c in core)


def _words(csp: CSP, constraint: Constraint) -> str:
    """Describe what a constraint with a constant limit forbids, or any other constraint."""
    if isinstance(constraint, Le) and constraint.reason:
        domain = csp.variables[constraint.rhs].domain
        if len(domain) == 1:
            return constraint.reason.format(left="too many", right=domain[0])
    return str(constraint)


def explain(csp: CSP, extra: Iterable[Constraint] = ()) -> tuple[Constraint, ...]:
    """Find the smallest set of constraints that cannot hold together; empty if all can.

    Only limits (``LE``) and candidates (``IN``) can be in conflict, not definitions. A conflict
    shares a constraint with every set whose absence makes the others feasible. So the smallest set
    that does so with all known ones is either a conflict, and then the smallest, or it is feasible
    and yields one more (Ignatiev et al., Smallest MUS Extraction with Minimal Hitting Set
    Dualization, 2015).

    Raises:
        ScheduleError: the solver gave up.
    """
    whole = csp.plus(extra)
    loose: list[Constraint] = [c for c in whole.constraints if isinstance(c, Le | In)]
    if _drop_fewest(whole, loose, range(len(loose))) is not None:
        return ()
    spared: list[list[int]] = []
    while True:
        chosen = _smallest_hitting_set(spared, len(loose))
        without = _drop_fewest(whole, loose, chosen)
        if without is None:
            return tuple(loose[n] for n in chosen)
        spared.append(without)


def _drop_fewest(csp: CSP, loose: list[Constraint], required: Iterable[int]) -> list[int] | None:
    """Drop the fewest constraints that leave no conflict; ``None`` if ``required`` conflict."""
    hard = [c for c in csp.constraints if not isinstance(c, Le | In)]
    model = _Model(CSP(csp.variables, tuple(hard)))
    switches = [model.problem.new_bool_var(f"c{number}") for number in range(len(loose))]
    for constraint, switch in zip(loose, switches, strict=True):
        model.add(constraint, switch)
    for number in required:
        model.problem.add(switches[number] == 1)
    model.problem.maximize(sum(switches))
    status, solver = _run(model.problem, 0)
    if status == "INFEASIBLE":
        return None
    return [n for n, switch in enumerate(switches) if not solver.value(switch)]


def _smallest_hitting_set(sets: list[list[int]], count: int) -> list[int]:
    """Return the fewest numbers below ``count`` that have one in common with each set."""
    from ortools.sat.python import cp_model

    problem = cp_model.CpModel()
    switches = [problem.new_bool_var(str(number)) for number in range(count)]
    for members in sets:
        problem.add_bool_or([switches[n] for n in members])
    problem.minimize(sum(switches))
    _, solver = _run(problem, 0)
    return [n for n, switch in enumerate(switches) if solver.value(switch)]


def solve(
    csp: CSP, partial: Mapping[str, Value] | None = None, rng: np.random.Generator | None = None
) -> dict[str, int] | None:
    """Find one feasible assignment as positions by CP-SAT; ``None`` if there is none.

    Args:
        partial: values that must be taken.
        rng: makes the answer a random one, by random branching and a random goal.

    Raises:
        ScheduleError: the solver gave up.
    """
    model = _Model(csp.plus(fix_values(partial or {})))
    if rng is not None:
        weights = rng.integers(-9, 10, len(csp.tunables))
        terms = [
            int(w) * model.positions[v.name] for w, v in zip(weights, csp.tunables, strict=True)
        ]
        model.problem.maximize(sum(terms))
    status, solver = _run(model.problem, 0 if rng is None else int(rng.integers(2**31)))
    if status == "INFEASIBLE":
        return None
    return {v.name: int(solver.value(model.positions[v.name])) for v in csp.tunables}


class _Model:
    """The problem as CP-SAT takes it, whose integers have 64 bits.

    Where a value may exceed ``_LARGEST``, as the number of tiles of many loops does, all computed
    values saturate above everything that they are compared with. So each limit is met or violated
    as before: values are never negative, and sums and products of saturated values are saturated.

    Raises:
        ScheduleError: a limit is too large for that.
    """

    def __init__(self, csp: CSP) -> None:
        from ortools.sat.python import cp_model

        self.problem: cp_model.CpModel = cp_model.CpModel()
        self._csp = csp
        self.values: dict[str, Any] = {}
        self.positions: dict[str, Any] = {}
        low, high = csp.bounds({v.name: tuple(range(len(v.domain))) for v in csp.tunables})
        self._ceiling = _ceiling(csp, low, high) if max(high, default=1) > _LARGEST else None
        if self._ceiling is not None:
            low, high = ([min(value, self._ceiling) for value in end] for end in (low, high))
        self._high = dict(zip(csp.names, high, strict=False))
        for number, (name, variable) in enumerate(csp.variables.items()):
            if not variable.domain:
                # Individually relaxed constraints may require any value within the bounds.
                self.values[name] = self.problem.new_int_var(low[number], high[number], name)
                continue
            domain = cp_model.Domain.from_values(list(variable.codes))
            self.values[name] = self.problem.new_int_var_from_domain(domain, name)
            self._position(name, variable.codes)
        for constraint in csp.constraints:
            self.add(constraint)

    def _position(self, name: str, codes: tuple[int, ...]) -> None:
        if codes == tuple(range(len(codes))):
            self.positions[name] = self.values[name]
            return
        at = self.problem.new_int_var(0, len(codes) - 1, f"{name}@")
        self.problem.add_element(at, list(codes), self.values[name])
        self.positions[name] = at

    def add(self, constraint: Constraint, switch: Any = None) -> None:
        """Add a constraint; a limit or a set of candidates may depend on a switch."""
        from ortools.sat.python import cp_model

        value = self.values
        if isinstance(constraint, Prod):
            self._multiply(constraint)
            return
        if isinstance(constraint, Select):
            choices = [
                value[c] if isinstance(c, str) else self._saturate(c) for c in constraint.choices
            ]
            at = self.positions[constraint.index]
            self.problem.add_element(at, choices, value[constraint.target])
            return
        if isinstance(constraint, Sum):
            total = sum(value[name] for name in constraint.parts)
            if self._ceiling is not None:
                self.problem.add_min_equality(value[constraint.target], [total, self._ceiling])
                return
            added = self.problem.add(value[constraint.target] == total)
        elif isinstance(constraint, Le):
            added = self.problem.add(value[constraint.lhs] <= value[constraint.rhs])
        elif isinstance(constraint, In):
            codes = self._csp.variables[constraint.variable].encode(constraint.values)
            domain = cp_model.Domain.from_values(sorted(codes))
            added = self.problem.add_linear_expression_in_domain(value[constraint.variable], domain)
        else:
            added = self.problem.add(value[constraint.lhs] == value[constraint.rhs])
        if switch is not None:
            added.only_enforce_if(switch)

    def _multiply(self, constraint: Prod) -> None:
        """Constrain the target to the product, which saturates after each factor."""
        target, factors = self.values[constraint.target], list(constraint.parts)
        if self._ceiling is None or len(factors) < 2:
            terms = [self.values[name] for name in factors]
            terms += [1] * (2 - len(factors))
            self.problem.add_multiplication_equality(target, terms)
            return
        first, *factors_after = factors
        product, most = self.values[first], self._high[first]
        for number, name in enumerate(factors_after, 1):
            most *= self._high[name]
            exact = self.problem.new_int_var(0, most, "")
            self.problem.add_multiplication_equality(exact, [product, self.values[name]])
            most = self._saturate(most)
            is_last = number == len(factors_after)
            product = target if is_last else self.problem.new_int_var(0, most, "")
            self.problem.add_min_equality(product, [exact, self._ceiling])

    def _saturate(self, value: int) -> int:
        return value if self._ceiling is None else min(value, self._ceiling)


def _ceiling(csp: CSP, low: list[int], high: list[int]) -> int:
    """Return one more than the largest value compared; ScheduleError if too large, or negative."""
    number = {name: n for n, name in enumerate(csp.names)}
    compared = {c.rhs for c in csp.constraints if isinstance(c, Le)}
    compared |= {name for name, variable in csp.variables.items() if variable.domain}
    # A variable defined twice is compared with itself.
    defined = Counter(c.names[0] for c in csp.constraints if not isinstance(c, Le | In))
    compared |= {name for name, count in defined.items() if count > 1}
    most = {name: high[number[name]] for name in sorted(compared)}
    for c in csp.constraints:
        if isinstance(c, In) and (codes := csp.variables[c.variable].encode(c.values)):
            most[c.variable] = max(most.get(c.variable, 0), *codes)
    name = max(most, key=lambda name: most[name])
    if most[name] >= _SATURATED or min(low) < 0:
        least = min(csp.names, key=lambda name: low[number[name]])
        name, value = (least, low[number[least]]) if min(low) < 0 else (name, most[name])
        raise ScheduleError(
            f"schedule variable {name!r}: expected 0 to {_SATURATED - 1:,}, as others reach "
            f"{max(high):,}, got {value:,}; smaller extents have schedules"
        )
    return most[name] + 1


def _run(problem: cp_model.CpModel, seed: int) -> tuple[str, cp_model.CpSolver]:
    """Solve on one core; ScheduleError if neither a solution nor a proof is in reach."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = _EFFORT
    status = solver.solve(problem)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return "FEASIBLE", solver
    if status == cp_model.INFEASIBLE:
        return "INFEASIBLE", solver
    raise ScheduleError(f"the constraint solver gave up: {solver.status_name(status)}")
