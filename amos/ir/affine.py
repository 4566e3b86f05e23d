"""Affine index expressions over named iterations."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from amos.errors import OperatorError, quote
from amos.ir.limits import fits


@dataclass(frozen=True)
class Affine:
    """``sum(coefficient * iteration) + constant`` with integer coefficients.

    Terms keep the order in which they were first written, so that an expression
    prints as its author wrote it; equality ignores that order.

    Raises:
        OperatorError: a number does not fit 64 bits.

    >>> Affine.of({"p": 2, "r": 1}, -1)
    p*2 + r - 1
    """

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    def __post_init__(self) -> None:
        names = [name for name, _ in self.terms]
        if len(set(names)) != len(names):
            raise ValueError(f"an iteration is repeated in {self.terms}")
        if any(c == 0 for _, c in self.terms):
            raise ValueError(f"a coefficient is zero in {self.terms}")
        if not (fits(self.constant) and all(fits(c) for _, c in self.terms)):
            beyond = next(c for c in (*dict(self.terms).values(), self.constant) if not fits(c))
            raise OperatorError(f"a number of an index does not fit 64 bits: {quote(beyond)}")

    @staticmethod
    def of(terms: Mapping[str, int] | Iterable[tuple[str, int]], constant: int = 0) -> Affine:
        """Build from pairs, adding up repeated names and dropping zeros."""
        total: dict[str, int] = {}
        for name, c in terms.items() if isinstance(terms, Mapping) else terms:
            total[name] = total.get(name, 0) + c
        return Affine(tuple((n, c) for n, c in total.items() if c), constant)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the iterations that occur, in written order."""
        return tuple(name for name, _ in self.terms)

    def coefficient(self, name: str) -> int:
        """Return the coefficient of an iteration; 0 if it does not occur."""
        return dict(self.terms).get(name, 0)

    def bounds(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Return the smallest and largest value when each iteration runs over its extent."""
        low = high = self.constant
        for name, c in self.terms:
            reach = c * (extents[name] - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def find_overlap(self, extents: Mapping[str, int], determined: Container[str] = ()) -> str:
        """Return the condition for different points to have different values; empty if they do.

        They do when the terms, without those of ``determined`` names, form a mixed radix: each
        coefficient exceeds what the smaller ones together can reach.

        >>> Affine.of({"p": 4, "q": 1}).find_overlap({"p": 3, "q": 4})
        ''
        """
        reach = 0
        for name, c in sorted(self.terms, key=lambda term: abs(term[1])):
            if name in determined or extents[name] == 1:
                continue
            if abs(c) <= reach:
                return (
                    f"the coefficient {c} of {name} must exceed {reach}, the reach of the smaller "
                    "terms"
                )
            reach += abs(c) * (extents[name] - 1)
        return ""

    def rename(self, spell: Callable[[str], str]) -> Affine:
        """Rename iterations."""
        return Affine(tuple((spell(name), c) for name, c in self.terms), self.constant)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Evaluate at given iterations: integers, NumPy arrays, or TVM expressions."""
        total: Any = self.constant
        for name, c in self.terms:
            term = values[name] if c == 1 else values[name] * c
            total = term if isinstance(total, int) and total == 0 else total + term
        return total

    def substitute(self, values: Mapping[str, Affine]) -> Affine:
        """Replace each iteration by an expression of other iterations."""
        total = Affine(constant=self.constant)
        for name, c in self.terms:
            total = total + values[name] * c
        return total

    def restrict(self, names: Iterable[str]) -> Affine:
        """Set every iteration but these to zero."""
        keep = set(names)
        return Affine(tuple(t for t in self.terms if t[0] in keep), self.constant)

    def __add__(self, addend: Affine | int) -> Affine:
        addend = addend if isinstance(addend, Affine) else Affine(constant=addend)
        return Affine.of(self.terms + addend.terms, self.constant + addend.constant)

    def __mul__(self, factor: int) -> Affine:
        return Affine.of([(n, c * factor) for n, c in self.terms], self.constant * factor)

    def __eq__(self, value: object) -> bool:
        if not isinstance(value, Affine):
            return NotImplemented
        return self.constant == value.constant and dict(self.terms) == dict(value.terms)

    def __hash__(self) -> int:
        return hash((frozenset(self.terms), self.constant))

    def __str__(self) -> str:
        text = ""
        for name, c in self.terms:
            body = name if abs(c) == 1 else f"{name}*{abs(c)}"
            sign = ("-" if c < 0 else "") if not text else (" - " if c < 0 else " + ")
            text += sign + body
        if self.constant or not text:
            k = self.constant
            text += str(k) if not text else f" {'-' if k < 0 else '+'} {abs(k)}"
        return text

    __repr__ = __str__
