"""Variables and the six types of constraints (Heron, Table 7).

Values are whole numbers from 0 on. A tunable of words, such as a loop order, takes
the position of the word in its domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from amos.plan.schedule import Value

__all__ = ["Constraint", "Eq", "In", "Le", "Prod", "Role", "Select", "Sum", "Variable"]


#: ``architecture`` and ``length`` have one value or follow from others, ``tunable``
#: is what a search decides, ``other`` helps to describe (Heron, Table 4).
Role = Literal["architecture", "length", "tunable", "other"]


@dataclass(frozen=True)
class Variable:
    """One variable of the problem.

    Attributes:
        name: for example ``tile.p``.
        role: what it stands for.
        domain: its values; empty if it follows from other variables.
        default: what a schedule means that does not name it; ``None`` if it must.
        rule: the rule that declared it.
    """

    name: str
    role: Role
    domain: tuple[Value, ...] = ()
    default: Value | None = None
    rule: str = ""

    @property
    def codes(self) -> tuple[int, ...]:
        """The values as numbers: words become their positions."""
        if any(isinstance(value, str) for value in self.domain):
            return tuple(range(len(self.domain)))
        return tuple(int(value) for value in self.domain)


@dataclass(frozen=True)
class Prod:
    """T1: ``target = factor * factor * …``."""

    target: str
    factors: tuple[str, ...]
    rule: str = ""
    type: ClassVar[str] = "PROD"

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable of the constraint."""
        return (self.target, *self.factors)

    def __str__(self) -> str:
        return f"{self.target} = {' * '.join(self.factors) or '1'}"


@dataclass(frozen=True)
class Sum:
    """T2: ``target = term + term + …``."""

    target: str
    terms: tuple[str, ...]
    rule: str = ""
    type: ClassVar[str] = "SUM"

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable of the constraint."""
        return (self.target, *self.terms)

    def __str__(self) -> str:
        return f"{self.target} = {' + '.join(self.terms) or '0'}"


@dataclass(frozen=True)
class Eq:
    """T3: ``left = right``."""

    left: str
    right: str
    rule: str = ""
    type: ClassVar[str] = "EQ"

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable of the constraint."""
        return (self.left, self.right)

    def __str__(self) -> str:
        return f"{self.left} = {self.right}"


@dataclass(frozen=True)
class Le:
    """T4: ``left <= right``; ``reason`` says what would break, in words."""

    left: str
    right: str
    rule: str = ""
    reason: str = ""
    type: ClassVar[str] = "LE"

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable of the constraint."""
        return (self.left, self.right)

    def __str__(self) -> str:
        return f"{self.left} <= {self.right}"


@dataclass(frozen=True)
class In:
    """T5: ``variable`` takes one of ``values``."""

    variable: str
    values: tuple[Value, ...]
    rule: str = ""
    type: ClassVar[str] = "IN"

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable of the constraint."""
        return (self.variable,)

    def __str__(self) -> str:
        return f"{self.variable} in {_listed(self.values)}"


@dataclass(frozen=True)
class Select:
    """T6: ``target`` is the choice at the position of ``index`` in its domain."""

    target: str
    index: str
    choices: tuple[str | int, ...]
    rule: str = ""
    type: ClassVar[str] = "SELECT"

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable of the constraint."""
        return (self.target, self.index, *(c for c in self.choices if isinstance(c, str)))

    def __str__(self) -> str:
        return f"{self.target} = {_listed(self.choices)}[{self.index}]"


Constraint = Prod | Sum | Eq | Le | In | Select


def _listed(values: Sequence[object], most: int = 8) -> str:
    shown = ", ".join(map(str, values[:most]))
    return f"[{shown}, …{len(values) - most} more]" if len(values) > most else f"[{shown}]"
