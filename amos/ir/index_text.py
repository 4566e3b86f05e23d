"""Integer expressions as C text, simplified by the range of their values.

The arithmetic that places data (:meth:`amos.plan.nest.Group.decode`,
:meth:`amos.ir.Affine.evaluate`, :mod:`amos.ir.tasks`) works on any type with ``+ * // %``.
On these expressions it writes C, as CUDA and OpenCL accept it, without divisions and
remainders that change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

#: Text that needs no brackets as a dividend: a variable, or a member of one.
_NAME = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Expr:
    """A C expression of type int whose value lies between ``low`` and ``high``.

    Attributes:
        atom: whether the text needs no brackets as an operand.
        terms: summands; empty for a value that is no sum.
        name: a variable that holds the value, for uses that cannot split the sum.
    """

    code: str
    low: int
    high: int
    atom: bool = True
    terms: tuple[Term, ...] = ()
    name: str = ""

    def __add__(self, addend: Value) -> Value:
        if isinstance(addend, int):
            if addend == 0:
                return self
            sign, size = ("-", -addend) if addend < 0 else ("+", addend)
            return Expr(f"{self.code} {sign} {size}", self.low + addend, self.high + addend, False)
        code = f"{self.code} + {addend.code}"
        terms = (*self._summands, *addend._summands) if min(self.low, addend.low) >= 0 else ()
        return Expr(code, self.low + addend.low, self.high + addend.high, False, terms)

    def __radd__(self, addend: int) -> Value:
        return self + addend

    def __sub__(self, subtrahend: int) -> Value:
        return self + -subtrahend

    def __mul__(self, factor: int) -> Value:
        if factor == 0:
            return 0
        if factor == 1:
            return self
        ends = sorted((self.low * factor, self.high * factor))
        terms = tuple(Term(term.value, term.weight * factor) for term in self._summands)
        terms = terms if min(self.low, factor) >= 0 else ()
        return Expr(f"{_operand(self)} * {_format_factor(factor)}", ends[0], ends[1], True, terms)

    def __rmul__(self, factor: int) -> Value:
        return self * factor

    def __floordiv__(self, size: int) -> Value:
        """Divide; add a multiple to negative dividends first, as C rounds to zero."""
        _check_divisor(size)
        if size == 1:
            return self
        if self.low < 0:
            below = -(self.low // size)
            return (self + below * size) // size - below
        if self.high < size:
            return 0
        if division := self._divide(size):
            quotient = division.quotient
            if self.name and isinstance(quotient, Expr):
                return quotient.with_name(f"{self.name} / {size}")
            return quotient
        code = f"{_factor(self)} / {size}"
        return Expr(code, self.low // size, self.high // size, False)

    def __mod__(self, size: int) -> Value:
        """Take the remainder; add a multiple to negative dividends first, as C keeps their sign."""
        _check_divisor(size)
        if size == 1:
            return 0
        if self.low < 0:
            return (self - self.low // size * size) % size
        if self.high < size:
            return self
        if division := self._divide(size):
            return division.remainder
        return Expr(f"{_factor(self)} % {size}", 0, size - 1, False)

    def with_name(self, name: str) -> Expr:
        """Name a variable that holds the sum, for divisions that cannot be made term by term."""
        return replace(self, name=name) if self.terms else self

    def limit(self, high: int) -> Expr:
        """Lower the largest value, where a condition guarantees it."""
        return replace(self, high=min(self.high, high))

    @property
    def _summands(self) -> tuple[Term, ...]:
        return self.terms or (Term(self, 1),)

    def _divide(self, size: int) -> _Division | None:
        """Divide a sum term by term; ``None`` where terms carry into one another.

        From the largest weight down: a multiple of ``size`` goes to the quotient unchanged. A
        weight that divides ``size`` contributes to both, if smaller terms stay below it.
        """
        parts = sorted(enumerate(self.terms), key=lambda placed: -placed[1].weight)
        quotient: dict[int, Value] = {}
        remainder: dict[int, Value] = {}
        for number, (place, term) in enumerate(parts):
            below = sum(smaller.high for _, smaller in parts[number + 1 :])
            if term.high + below < size:
                remainder[place] = term.value * term.weight
            elif term.weight % size == 0:
                quotient[place] = term.value * (term.weight // size)
            elif size % term.weight == 0 and below < term.weight:
                count = size // term.weight
                quotient[place] = term.value // count
                remainder[place] = term.value % count * term.weight
            else:
                return None
        if not parts:
            return None
        return _Division(
            _limit(_add(quotient), self.high // size), _limit(_add(remainder), size - 1)
        )


@dataclass(frozen=True)
class Term:
    """A summand: a non-negative value times a positive factor."""

    value: Expr
    weight: int

    @property
    def high(self) -> int:
        """The largest value that it can have."""
        return self.value.high * self.weight


#: Result of index arithmetic.
Value = Expr | int


@dataclass(frozen=True)
class _Division:
    quotient: Value
    remainder: Value


def _check_divisor(size: object) -> None:
    if not isinstance(size, int | np.integer) or size < 1:
        raise TypeError(f"expected a positive divisor, got {size!r}")


def _add(values: dict[int, Value]) -> Value:
    """Add up values in the order of their places in the sum that they were taken from."""
    total: Value = 0
    for place in sorted(values):
        total = values[place] + total if isinstance(total, int) else total + values[place]
    return total


def _limit(value: Value, high: int) -> Value:
    return value.limit(high) if isinstance(value, Expr) else value


def _operand(value: Expr) -> str:
    return value.code if value.atom and "*" not in value.code else f"({value.code})"


def _factor(value: Expr) -> str:
    code = value.name or value.code
    return code if _NAME.fullmatch(code) else f"({code})"


def _format_factor(factor: int) -> str:
    return str(factor) if factor >= 0 else f"({factor})"


def variable(name: str, extent: int) -> Value:
    """Make a variable that runs over ``range(extent)``; zero if the extent is 1.

    >>> text(variable("thread", 8) * 2), text(variable("first + thread", 8) * 2)
    ('thread * 2', '(first + thread) * 2')
    """
    code = name if _NAME.fullmatch(name) else f"({name})"
    return Expr(code, 0, extent - 1) if extent > 1 else 0


def text(value: Value) -> str:
    """Return the C text of a value."""
    return value.code if isinstance(value, Expr) else str(value)


def forget_sum(value: Value) -> Value:
    """Forget that a value is a sum, so that it is divided as one number."""
    return replace(value, terms=(), name="") if isinstance(value, Expr) else value


def upper_bound(value: Value) -> int:
    """Return the largest value that an expression can have."""
    return value.high if isinstance(value, Expr) else value


def conditions(values: Iterable[Value], extents: Iterable[int]) -> list[str]:
    """Write C conditions that values lie below extents, without those that always hold."""
    pairs = zip(values, extents, strict=True)
    return [f"{text(value)} < {extent}" for value, extent in pairs if upper_bound(value) >= extent]
