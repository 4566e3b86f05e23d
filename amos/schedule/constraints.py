"""Variables and the six types of constraints (Heron, Table 7).

Values are whole numbers from 0 on. A tunable of words, such as a loop order, takes
the position of the word in its domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from amos.plan.variables import Value

#: ``architecture`` and ``length`` have one value or follow from others, ``tunable`` is decided by a
#: search, ``other`` is auxiliary (Heron, Table 4).
Role = Literal["architecture", "length", "tunable", "other"]


@dataclass(frozen=True)
class Variable:
    """One variable of the problem.

    Attributes:
        name: for example ``tile.p``.
        domain: its values; empty if it follows from other variables.
        default: its value in a schedule that does not name it; ``None`` if a schedule must name it.
        rule: the rule that declared it.
        needs: variables, one of which must differ from its default for this one to have an effect.
    """

    name: str
    role: Role
    domain: tuple[Value, ...] = ()
    default: Value | None = None
    rule: str = ""
    needs: tuple[str, ...] = ()

    @property
    def codes(self) -> tuple[int, ...]:
        """The values as numbers: words become their positions."""
        if any(isinstance(value, str) for value in self.domain):
            return tuple(range(len(self.domain)))
        return tuple(int(value) for value in self.domain)

    def encode(self, values: Iterable[Value]) -> frozenset[int]:
        """Encode values as numbers; those outside of the variable's domain are left out."""
        if not self.domain:
            return frozenset(int(value) for value in values)
        codes = dict(zip(self.domain, self.codes, strict=True))
        return frozenset(codes[value] for value in values if value in codes)


@dataclass(frozen=True)
class _Combined:
    """A variable that is defined by others, its parts."""

    target: str
    parts: tuple[str, ...]
    rule: str = ""
    type: ClassVar[str]
    sign: ClassVar[str]
    nothing: ClassVar[str]

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable of the constraint."""
        return (self.target, *self.parts)

    def __str__(self) -> str:
        return f"{self.target} = {f' {self.sign} '.join(self.parts) or self.nothing}"


class Prod(_Combined):
    """T1: ``target = part * part * …``."""

    type, sign, nothing = "PROD", "*", "1"


class Sum(_Combined):
    """T2: ``target = part + part + …``."""

    type, sign, nothing = "SUM", "+", "0"


@dataclass(frozen=True)
class _Compared:
    """A comparison of two variables; ``reason`` says in words what would break."""

    lhs: str
    rhs: str
    rule: str = ""
    reason: str = ""
    type: ClassVar[str]
    sign: ClassVar[str]

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable of the constraint."""
        return (self.lhs, self.rhs)

    def __str__(self) -> str:
        return f"{self.lhs} {self.sign} {self.rhs}"


class Eq(_Compared):
    """T3: ``lhs = rhs``."""

    type, sign = "EQ", "="


class Le(_Compared):
    """T4: ``lhs <= rhs``."""

    type, sign = "LE", "<="


@dataclass(frozen=True)
class In:
    """T5: ``variable`` takes one of ``values``; ``reason`` says what would break, in words."""

    variable: str
    values: tuple[Value, ...]
    rule: str = ""
    reason: str = ""
    type: ClassVar[str] = "IN"

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable of the constraint."""
        return (self.variable,)

    def __str__(self) -> str:
        return f"{self.variable} in {_list_values(self.values)}"


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
        return f"{self.target} = {_list_values(self.choices)}[{self.index}]"


Constraint = Prod | Sum | Eq | Le | In | Select


def _list_values(values: Sequence[object]) -> str:
    shown = ", ".join(map(str, values[:8]))
    return f"[{shown}, …{len(values) - 8} more]" if len(values) > 8 else f"[{shown}]"
