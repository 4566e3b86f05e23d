"""Which loops of a chain run on which work-groups and work-items (Lift, section 4).

Each loop has a variable ``map.LOOP``. Rules 1 to 8 of the paper are constraints of the solver of
schedules; one more keeps reductions sequential, which Lift does by its ``reduce`` pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from amos.chains.group_limits import GROUP_RULES, GroupLimits, limit_groups
from amos.chains.loop_nest import Loop, LoopNest, LoopPath
from amos.errors import ScheduleError, UnknownNameError
from amos.plan import Value
from amos.schedule import CSP, In, Le, Select, Sum, Variable, solver
from amos.schedule.batched import descend_many
from amos.schedule.constraints import Constraint, Prod

#: Sequential, and fused with the loop around it (Lift, Table 2: 0 and 1).
SEQUENTIAL, FUSED = "sequential", "fused"
#: Whether perfectly nested sequential loops are fused (Lift, section 5.5).
FUSIONS = ("always", "never", "random")
#: Levels of parallelism (10, 20 and 30 plus the dimension).
LEVELS = ("local", "group", "global")
#: What leaves a work-group; few loops can.
_WIDE = "group or global"
#: Assignments of a batch at most.
_BATCH = 1024
#: Constraints by what they keep, with the numbers of the paper.
RULES = (
    "1 private memory",
    "2 local memory",
    "3 duplicate",
    "4 local dimensions",
    "5 group dimensions",
    "6 hierarchy",
    "7 exhaustive",
    "8 sequential fusion",
    "fused loops",
    "reduction",
)


@dataclass(frozen=True)
class ParallelSpace:
    """All ways to run the loops of a nest on work-groups and work-items.

    Attributes:
        nest: the loops.
        dimensions: of the device that are used, 1 to 3.
        limits: what work-groups may have; by default the rules of the paper alone hold.
        fusion: whether sequential loops that are perfectly nested are fused: ``always``, which is
            rule 8, ``never``, or as it is drawn, ``random``.

    Raises:
        ScheduleError: there are no such dimensions, or no such fusion.
    """

    nest: LoopNest
    dimensions: int = 3
    limits: GroupLimits | None = None
    fusion: str = "always"

    def __post_init__(self) -> None:
        if self.fusion not in FUSIONS:
            expected = ", ".join(FUSIONS)
            raise ScheduleError(f"fusion: expected one of {expected}, got {self.fusion!r}")
        if self.dimensions not in (1, 2, 3):
            raise ScheduleError(f"dimensions: expected 1, 2 or 3, got {self.dimensions!r}")

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """What a loop may be."""
        dims = range(self.dimensions)
        return (SEQUENTIAL, FUSED, *(f"{level} {d}" for level in LEVELS for d in dims))

    @property
    def size(self) -> int:
        """Number of assignments, valid or not."""
        return int(len(self.choices) ** len(self.nest.loops))

    @cached_property
    def csp(self) -> CSP:
        """Variables and constraints."""
        return _Rules(self).csp()

    @property
    def count(self) -> int | None:
        """Number of valid assignments, or ``None`` if there are too many to count."""
        return solver.count(self.csp)

    def draw(
        self,
        count: int,
        rng: np.random.Generator,
        fixed: Mapping[str, str] | None = None,
        patience: int = 8,
    ) -> list[dict[str, str]]:
        """Draw up to ``count`` different valid assignments with values of some loops.

        What a kernel uses is drawn first, so that few draws of single loops contradict each other.

        Args:
            fixed: values of loops that all have.
            patience: batches in a row that may bring nothing new.

        Raises:
            UnknownNameError: there is no such loop.
            ScheduleError: a loop has a value that there is not.
        """
        csp = self.csp.plus(solver.fix_values(self._name_variables(fixed or {})))
        drawn: dict[tuple[int, ...], None] = {}
        order = [variable.name for variable in self.csp.tunables]
        loops = [f"map.{loop.name}" for loop in self.nest.loops]
        idle = 0
        while len(drawn) < count and idle < patience:
            before = len(drawn)
            batch = descend_many(csp, min(_BATCH, 64 + count), rng, order)
            drawn |= dict.fromkeys(tuple(each[name] for name in loops) for each in batch)
            idle = 0 if len(drawn) > before else idle + 1
        names = [loop.name for loop in self.nest.loops]
        return [
            {name: self.choices[at] for name, at in zip(names, key, strict=True)}
            for key in list(drawn)[:count]
        ]

    def violations(self, assignment: Mapping[str, str]) -> tuple[str, ...]:
        """Explain what an assignment of all loops breaks, by rule; empty if it is valid.

        Rules over several loops are judged where each loop is what it may be by itself.

        Raises:
            UnknownNameError: there is no such loop.
            ScheduleError: a loop has no value, or one that there is not.
        """
        loops = [loop.name for loop in self.nest.loops]
        for name in assignment:
            if name not in loops:
                raise UnknownNameError("loop", name, loops)
        used = {*assignment.values()}
        uses: dict[str, Value] = {f"uses.{c}": int(c in used) for c in self.choices[2:]}
        positions = self.csp.positions(self._name_variables(assignment) | uses)
        broken = self.csp.find_violated({name: (at,) for name, at in positions.items()})
        single = [constraint for constraint in broken if isinstance(constraint, In)]
        return tuple(_word(constraint) for constraint in single or broken)

    def explain(self, assignment: Mapping[str, str]) -> tuple[str, ...]:
        """Return the fewest constraints that rule out values of some loops; empty if possible.

        Raises:
            UnknownNameError: there is no such loop.
            ScheduleError: a loop has a value that there is not.
        """
        core = solver.explain(self.csp, solver.fix_values(self._name_variables(assignment)))
        return tuple(_word(c) for c in core if c.rule != "given")

    def impossible(self, assignment: Mapping[str, str]) -> tuple[str, ...]:
        """Explain by rule what no assignment with values of some loops satisfies.

        It finds single constraints that nothing can meet, at once; conflicts of several are left
        to :meth:`explain`.

        Raises:
            UnknownNameError: there is no such loop.
            ScheduleError: a loop has a value that there is not.
        """
        csp = self.csp.plus(solver.fix_values(self._name_variables(assignment)))
        empty = {name for name, positions in csp.allowed.items() if not positions}
        broken: list[Constraint] = [
            c for c in csp.constraints if isinstance(c, In) and c.variable in empty
        ]
        broken = broken or csp.find_violated(csp.allowed)
        return tuple(_word(c) for c in broken if c.rule != "given")

    def by_rule(self) -> dict[str, int]:
        """Count constraints by rule; definitions of variables are left out."""
        limits = [c.rule for c in self.csp.constraints if isinstance(c, Le | In)]
        rules = RULES if self.limits is None else (*RULES, *GROUP_RULES)
        return {rule: limits.count(rule) for rule in rules}

    def _name_variables(self, assignment: Mapping[str, str]) -> dict[str, Value]:
        for name, value in assignment.items():
            if value not in self.choices:
                choices = ", ".join(self.choices)
                raise ScheduleError(f"map.{name} = {value!r} is not one of {choices}")
        return {f"map.{name}": value for name, value in assignment.items()}


def _word(constraint: Constraint) -> str:
    text = getattr(constraint, "reason", "") or str(constraint)
    return f"rule {constraint.rule}: {text}"


class _Rules:
    """Writes the constraints of a nest."""

    def __init__(self, space: ParallelSpace) -> None:
        self.space, self.nest = space, space.nest
        self.parents: dict[str, Loop] = {}
        for loop in self.nest.loops:
            self.parents |= {x.name: loop for x in loop.body if isinstance(x, Loop)}
        self.fusable = {
            inner.name for loop in self.nest.loops if (inner := loop.perfectly_nested) is not None
        }
        self.allowed = {loop.name: set(space.choices) for loop in self.nest.loops}
        self.variables = {
            name: Variable(name, "architecture", (value,))
            for name, value in (("zero", 0), ("one", 1))
        }
        for choice in space.choices[2:]:
            self.variables[f"uses.{choice}"] = Variable(f"uses.{choice}", "tunable", (0, 1))
        for loop in self.nest.loops:
            name = f"map.{loop.name}"
            self.variables[name] = Variable(name, "tunable", space.choices)
        self.constraints: list[Constraint] = []
        #: One path of each innermost loop, and of accesses in no loop.
        self.paths = {path.loops[-1:]: path for path in self.nest.paths}.values()
        #: What is counted. Levels follow from their dimensions, but tell the solver early that too
        #: few loops are left for these.
        self.kinds = (*space.choices[2:], *LEVELS, _WIDE)
        #: The variable that says how often a kernel has a choice or a level.
        self.uses = {choice: f"uses.{choice}" for choice in space.choices[2:]}
        #: The variable that counts a choice or a level down to a loop.
        self.totals: dict[tuple[str, str], str] = {}
        #: The variable that says whether a loop runs sequentially, alone or fused.
        self.sequential: dict[str, str] = {}

    def csp(self) -> CSP:
        """Return the constraint problem."""
        self._restrict_loops()
        self._pair_levels()
        for loop in self.nest.loops:
            self._count_levels(loop)
            self._keep_hierarchy(loop)
            if self.space.fusion == "always":
                self._fuse_sequential(loop)
        for path in self.paths:
            self._limit_path(path)
        if self.space.limits is not None:
            for added in limit_groups(self.nest, self.space.choices, self.space.limits):
                if isinstance(added, Variable):
                    self.variables[added.name] = added
                else:
                    self.constraints.append(added)
        return CSP(self.variables, tuple(self.constraints))

    def _restrict_loops(self) -> None:
        """Add rules 1 and 2, and the candidates of single loops, fused ones included."""
        memory = {x.buffer: x.memory for x in self.nest.allocations}
        between: dict[tuple[str, str], str] = {}
        for path in self.nest.paths:
            for buffer, depth in path.depths.items():
                for loop in path.loops[depth:]:
                    between.setdefault((loop.name, memory[buffer]), buffer)
        for loop in self.nest.loops:
            if loop.is_reduce:
                self._restrict(loop, ("",), "reduction", "its trips make one value")
            elif (loop.name, "private") in between:
                buffer = between[loop.name, "private"]
                reason = f"it stands between {buffer!r} in private memory and its access"
                self._restrict(loop, ("",), "1 private memory", reason)
            if not loop.is_reduce and (loop.name, "local") in between:
                buffer = between[loop.name, "local"]
                reason = f"it stands between {buffer!r} in local memory and its access"
                self._restrict(loop, ("", "local"), "2 local memory", reason)
            if loop.name not in self.fusable or self.space.fusion == "never":
                fusable = loop.name in self.fusable
                reason = "loops are never fused" if fusable else "no loop surrounds it perfectly"
                self._restrict(loop, ("", *LEVELS), "fused loops", reason, FUSED)

    def _restrict(
        self, loop: Loop, levels: tuple[str, ...], rule: str, reason: str, without: str = ""
    ) -> None:
        values = tuple(
            choice
            for choice in self.space.choices
            if (_level(choice) or "") in levels and choice != without
        )
        self.allowed[loop.name] &= {*values}
        words = f"{loop.name} must be {_alternatives(values)}: {reason}"
        self.constraints.append(In(f"map.{loop.name}", values, rule, words))

    def _is(self, loop: Loop, choice: str) -> str:
        """Return a variable that is 1 if a loop is of that kind; zero where it never can be."""
        if not any(_is_kind(x, choice) for x in self.allowed[loop.name]):
            return "zero"
        name = f"{loop.name} is {choice}"
        if name not in self.variables:
            self._declare(name)
            flags = tuple(int(_is_kind(x, choice)) for x in self.space.choices)
            self.constraints.append(Select(name, f"map.{loop.name}", flags, "definition"))
        return name

    def _declare(self, name: str) -> None:
        self.variables[name] = Variable(name, "other")

    def _sum(self, name: str, *parts: str) -> str:
        """Sum variables, without a new one for a single term."""
        terms = [term for term in parts if term != "zero"]
        if len(terms) < 2:
            return terms[0] if terms else "zero"
        self._declare(name)
        self.constraints.append(Sum(name, tuple(terms), "definition"))
        return name

    def _limit(self, lhs: str, rhs: str, rule: str, reason: str) -> None:
        if lhs not in (rhs, "zero"):
            self.constraints.append(Le(lhs, rhs, rule, reason))

    def _count_levels(self, loop: Loop) -> None:
        """Count, for a loop and those around it, each level and dimension."""
        for choice in self.kinds:
            above = self._uses(self.parents.get(loop.name), choice)
            total = self._sum(f"{choice} to {loop.name}", above, self._is(loop, choice))
            self.totals[loop.name, choice] = total

    def _uses(self, loop: Loop | None, choice: str) -> str:
        return "zero" if loop is None else self.totals[loop.name, choice]

    def _pair_levels(self) -> None:
        """Add rules 4 and 5: work-items and work-groups are used in the same dimensions."""
        for d in range(self.space.dimensions):
            local, group = f"uses.local {d}", f"uses.group {d}"
            self._limit(local, group, "4 local dimensions", f"local {d} is used without group {d}")
            self._limit(group, local, "5 group dimensions", f"group {d} is used without local {d}")
        for kind in (*LEVELS, _WIDE):
            uses = [f"uses.{x}" for x in self.space.choices if _is_kind(x, kind)]
            self.uses[kind] = self._sum(f"uses.{kind}", *uses)

    def _limit_path(self, path: LoopPath) -> None:
        """Add rules 3 and 7 on the loops around an access: each path uses a level once."""
        for kind in self.kinds:
            own, uses = self._uses(path.loops[-1] if path.loops else None, kind), self.uses[kind]
            self._limit(own, uses, "3 duplicate", f"{path} has {kind} more than once")
            self._limit(uses, own, "7 exhaustive", f"{path} lacks {kind}, which others have")

    def _keep_hierarchy(self, loop: Loop) -> None:
        """Add rule 6: a local loop stands in the group of its dimension, never around it."""
        for d in range(self.space.dimensions):
            groups = self._uses(self.parents.get(loop.name), f"group {d}")
            reason = f"{loop.name} is local {d} without a loop around it that is group {d}"
            self._limit(self._is(loop, f"local {d}"), groups, "6 hierarchy", reason)
            above = self._uses(self.parents.get(loop.name), f"local {d}")
            own = self._is(loop, f"group {d}")
            if "zero" in (above, own):
                continue
            total = self._sum(f"local {d} around group {d} at {loop.name}", above, own)
            reason = f"{loop.name} is group {d} inside of local {d}"
            self._limit(total, "one", "6 hierarchy", reason)

    def _fuse_sequential(self, loop: Loop) -> None:
        """Add rule 8: sequential loops that are perfectly nested are fused."""
        name = f"{loop.name} runs sequentially"
        own = self._is(loop, SEQUENTIAL)
        if loop.name not in self.fusable:
            self.sequential[loop.name] = own
            return
        outer = self.parents[loop.name]
        fused = f"{loop.name} is fused with a sequential loop"
        self._declare(fused)
        parts = (self._is(loop, FUSED), self.sequential[outer.name])
        self.constraints.append(Prod(fused, parts, "definition"))
        both = self._sum(f"{outer.name} and {loop.name} are sequential", own, parts[1])
        reason = f"{loop.name} is sequential in {outer.name}, which is too; fuse them"
        self._limit(both, "one", "8 sequential fusion", reason)
        self.sequential[loop.name] = self._sum(name, own, fused)


def _level(choice: str) -> str | None:
    """Return the level of a parallel choice."""
    level, _, dimension = choice.partition(" ")
    return level if dimension else None


def _is_kind(choice: str, kind: str) -> bool:
    """Return whether a choice is of that kind, or of that level."""
    level = _level(choice)
    return kind in (choice, level) or (kind == _WIDE and level in ("group", "global"))


def _alternatives(values: tuple[str, ...]) -> str:
    kinds = dict.fromkeys(_level(value) or value for value in values)
    return " or ".join(kinds)
