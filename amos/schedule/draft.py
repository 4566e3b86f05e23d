"""Context of rules, and the problem that they add to (Heron, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from amos.machine import Machine
from amos.plan import Value
from amos.plan.operand import Operand
from amos.plan.structure import Structure
from amos.schedule.constraints import Constraint, In, Le, Prod, Role, Select, Sum, Variable

#: ``hardware``: tiles need not divide extents; ``divisors``: they must; ``few``: as hardware, but a
#: search tries listed schedules only.
Tiling = Literal["hardware", "divisors", "few"]

#: Most fragments of a register tile where the intrinsic does not state a capacity: an assumption
#: that keeps tiles small, not a property of the hardware.
_DEFAULT_REGISTERS = 16


@dataclass(frozen=True)
class TilingContext(Structure):
    """Context of rules: a mapping, the machine if known, the kind of tiles."""

    machine: Machine | None = None
    tiling: Tiling = "hardware"

    @property
    def gathered(self) -> tuple[Operand, ...]:
        """Sources that are copied into their staged form inside the kernel."""
        return tuple(op for op in self.sources if op.choice and not op.optional)

    @property
    def optional(self) -> tuple[Operand, ...]:
        """Sources that are read in place or copied."""
        return tuple(op for op in self.sources if op.optional)

    @cached_property
    def registers(self) -> int:
        """Fragments that fit the registers at once."""
        return self.mapping.intrinsic.registers or _DEFAULT_REGISTERS

    @cached_property
    def scratchpads(self) -> dict[str, str]:
        """Operands that the intrinsic moves through a bounded level of the machine, by its name."""
        levels = self.machine.levels if self.machine is not None else ()
        bounded = {level.name for level in levels if level.capacity}
        return {m.operand: m.scope for m in self.mapping.intrinsic.memory if m.scope in bounded}

    def along(self, kind: str, operand: Operand) -> list[str]:
        """List the variables of one kind, as ``"tile"``, of the spatial loops along an operand."""
        names = [loop.name for loop in self.spatial]
        return [f"{kind}.{name}" for n, name in enumerate(names) if n in operand.indexed]


@dataclass
class Draft:
    """Variables and constraints under construction; each belongs to the current ``rule``.

    Methods that define a variable return its name.
    """

    context: TilingContext
    rule: str = ""
    variables: dict[str, Variable] = field(default_factory=dict)
    constraints: list[Constraint] = field(default_factory=list)

    def tunable(
        self,
        name: str,
        domain: tuple[Value, ...],
        default: Value | None = None,
        needs: tuple[str, ...] = (),
    ) -> None:
        """Declare a variable that a search decides, among candidates (C3)."""
        self.variables[name] = Variable(name, "tunable", domain, default, self.rule, needs)
        self.require(In(name, domain, "C3"))

    def constant(self, name: str, value: int, role: Role = "architecture") -> str:
        """Declare a variable of one value."""
        return self._declare(name, role, (value,))

    def free(self, name: str, count: int) -> str:
        """Declare a choice that no schedule names; only constraints restrict it."""
        return self._declare(name, "other", tuple(range(count)))

    def product(self, name: str, factors: Iterable[str], role: Role = "length") -> str:
        """Define a variable as a product."""
        self.require(Prod(name, tuple(factors), self.rule))
        return self._declare(name, role)

    def sum(self, name: str, terms: Iterable[str], role: Role = "other") -> str:
        """Define a variable as a sum."""
        self.require(Sum(name, tuple(terms), self.rule))
        return self._declare(name, role)

    def select(
        self, name: str, index: str, choices: Iterable[str | int], role: Role = "length"
    ) -> str:
        """Define a variable as the choice at the position of another one."""
        self.require(Select(name, index, tuple(choices), self.rule))
        return self._declare(name, role)

    def limit(self, lhs: str, rhs: str, reason: str) -> None:
        """Require ``lhs <= rhs``; ``reason`` says what breaks otherwise."""
        self.require(Le(lhs, rhs, self.rule, reason))

    def require(self, *constraints: Constraint) -> None:
        """Add constraints."""
        self.constraints.extend(constraints)

    def _declare(self, name: str, role: Role, domain: tuple[int, ...] = ()) -> str:
        self.variables.setdefault(name, Variable(name, role, domain, None, self.rule))
        return name


@dataclass(frozen=True)
class Rule:
    """A reason for variables and constraints, ``"C1"`` to ``"C6"`` of Heron, Tables 6 and 8."""

    name: str
    apply: Callable[[Draft], None]
