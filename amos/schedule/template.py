"""The schedule template: what is done to the loops, before any value is chosen.

Heron, section 4, step 1: schedule rules look at a mapping on a machine and add
primitives; step 2, constraint rules, looks at the primitives alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

from amos.machine import Machine
from amos.machine.gpu_costs import OTHER_REGISTERS, THREAD_REGISTERS
from amos.mapping.mapping import Mapping
from amos.plan import Value
from amos.plan.fragment_tiles import Tile, tiles
from amos.plan.gpu_registers import fragment_registers
from amos.plan.nest import Loop, Nest
from amos.plan.staging import StagedOperand
from amos.plan.strided import destination_form, source_forms
from amos.schedule.constraints import Constraint, Role, Variable
from amos.schedule.csp import CSP

__all__ = [
    "ConstraintRule",
    "Draft",
    "Primitive",
    "ScheduleRule",
    "TilingContext",
    "Tiling",
]

#: ``hardware``: tiles need not divide extents; ``divisors``: they must.
Tiling = Literal["hardware", "divisors"]

#: Fragments of a register tile at most where the intrinsic does not say how many there is room
#: for: an assumption that keeps tiles small, and no property of the hardware.
_DEFAULT_REGISTERS = 16


@dataclass(frozen=True)
class Primitive:
    """One step of the template.

    Attributes:
        kind: ``"tensorize"``, ``"split"``, ``"reorder"``, ``"fuse"``, ``"parallel"``,
            ``"unroll"``, ``"cache_write"``, ``"cache_read"``, ``"compute_at"``,
            ``"vectorize"``, ``"bind"``, ``"storage_align"``, ``"pipeline"`` or
            ``"rfactor"``.
        subject: the loop, operand or intrinsic iteration it is applied to.
        rule: the schedule rule that added it.
        scope: memory of a cache: ``"registers"`` or the name of a level.
        parts: loops or iterations that take part.
        values: candidates of its parameter.
    """

    kind: str
    subject: str
    rule: str
    scope: str = ""
    parts: tuple[str, ...] = ()
    values: tuple[Value, ...] = ()


@dataclass(frozen=True)
class TilingContext:
    """What rules look at: a mapping, the machine if it is known, the kind of tiles."""

    mapping: Mapping
    machine: Machine | None = None
    tiling: Tiling = "hardware"

    @cached_property
    def nest(self) -> Nest:
        """The loops that are scheduled."""
        return Nest(self.mapping)

    @cached_property
    def spatial(self) -> tuple[Loop, ...]:
        """Spatial loops with more than one step."""
        return tuple(loop for loop in self.nest.spatial if loop.extent > 1)

    @cached_property
    def reduce(self) -> tuple[Loop, ...]:
        """Reduction loops with more than one step."""
        return tuple(loop for loop in self.nest.reduce if loop.extent > 1)

    @cached_property
    def sources(self) -> tuple[StagedOperand, ...]:
        """Staged sources, in the intrinsic's order."""
        return source_forms(self.nest)

    @cached_property
    def destination(self) -> StagedOperand:
        """The staged destination."""
        return destination_form(self.nest)

    @cached_property
    def gathered(self) -> tuple[StagedOperand, ...]:
        """Sources that are copied into their staged form inside the kernel."""
        constants = self.mapping.operator.constants
        return tuple(
            op for op in self.sources if not op.in_place and op.load.tensor.name not in constants
        )

    @cached_property
    def registers(self) -> int:
        """Fragments that fit the registers at once."""
        known = self.mapping.intrinsic.registers
        if not self.warps:
            return known or _DEFAULT_REGISTERS
        each = fragment_registers(self.mapping.intrinsic)[-1]
        most = max(2, (THREAD_REGISTERS - OTHER_REGISTERS) // each)
        return min(known, most) if known else most

    @cached_property
    def scratchpads(self) -> dict[str, str]:
        """Operands that the intrinsic moves through a bounded level of the machine, by its name."""
        if self.machine is None:
            return {}
        bounded = {level.name for level in self.machine.levels if level.capacity}
        return {
            statement.operand: statement.scope
            for statement in self.mapping.intrinsic.memory
            if statement.scope in bounded
        }

    @cached_property
    def buffers(self) -> dict[str, tuple[str, int]]:
        """Name and bytes of the buffer that an operand has for itself, by operand."""
        return {
            statement.operand: (statement.register_scope, statement.capacity)
            for statement in self.mapping.intrinsic.memory
            if statement.capacity
        }

    @cached_property
    def tiles(self) -> dict[str, Tile]:
        """Fragments as warps see them, by operand; none if they are no matrices."""
        return {tile.staged.name: tile for tile in tiles(self.nest)}

    @property
    def warps(self) -> bool:
        """Whether warps of a CUDA machine run the intrinsic, on data in shared memory."""
        cuda = self.machine is not None and self.machine.architecture > 0
        return bool(cuda and self.scratchpads and self.tiles)

    def indexed(self, operand: StagedOperand) -> tuple[str, ...]:
        """Spatial loops that move along an operand."""
        names = {name for dim in operand.dims for name in dim.index.names}
        return tuple(loop.name for loop in self.spatial if loop.name in names)


@dataclass
class Draft:
    """Variables and constraints while rules add to them."""

    context: TilingContext
    variables: dict[str, Variable] = field(default_factory=dict)
    constraints: list[Constraint] = field(default_factory=list)

    def tunable(
        self, name: str, domain: tuple[Value, ...], rule: str, default: Value | None = None
    ) -> None:
        """Declare what a search decides."""
        self.variables[name] = Variable(name, "tunable", domain, default, rule)

    def constant(self, name: str, value: int, rule: str, role: Role = "architecture") -> str:
        """Declare a variable of one value; returns its name."""
        self.variables.setdefault(name, Variable(name, role, (value,), None, rule))
        return name

    def free(self, name: str, count: int, rule: str) -> str:
        """Declare a choice that no schedule names: the constraints may make it."""
        self.variables[name] = Variable(name, "other", tuple(range(count)), None, rule)
        return name

    def derived(self, name: str, rule: str, role: Role = "length") -> str:
        """Declare a variable that a constraint defines; returns its name."""
        self.variables.setdefault(name, Variable(name, role, (), None, rule))
        return name

    def require(self, *constraints: Constraint) -> None:
        """Add constraints."""
        self.constraints.extend(constraints)

    def finish(self) -> CSP:
        """The problem."""
        return CSP(dict(self.variables), tuple(self.constraints))


class ScheduleRule(Protocol):
    """Adds primitives where its condition holds (Heron, Table 6)."""

    name: str

    def condition(self, context: TilingContext) -> bool:
        """Whether the rule applies."""
        ...

    def apply(self, context: TilingContext) -> list[Primitive]:
        """The primitives it adds."""
        ...


class ConstraintRule(Protocol):
    """Adds variables and constraints for the primitives it knows (Heron, Table 8)."""

    name: str

    def condition(self, context: TilingContext, template: list[Primitive]) -> bool:
        """Whether the rule applies."""
        ...

    def apply(self, draft: Draft, template: list[Primitive]) -> None:
        """Add to the draft."""
        ...
