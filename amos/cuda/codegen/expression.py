"""Integer expressions as C text, simplified by the range of their values.

The arithmetic that places data (:meth:`amos.plan.nest.Group.decode`,
:meth:`amos.ir.Affine.evaluate`) works on whatever has ``+ * // %``. Given these
expressions it writes C, in which a division or remainder that can change nothing
does not appear.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Expr:
    """A C expression of type int whose value lies between ``low`` and ``high``.

    Attributes:
        code: the text.
        low: smallest value that it can have.
        high: largest value that it can have.
        atom: whether the text needs no brackets as an operand.
    """

    code: str
    low: int
    high: int
    atom: bool = True

    def __add__(self, addend: Value) -> Value:
        if isinstance(addend, int):
            if addend == 0:
                return self
            sign, size = ("-", -addend) if addend < 0 else ("+", addend)
            return Expr(f"{self.code} {sign} {size}", self.low + addend, self.high + addend, False)
        return Expr(
            f"{self.code} + {addend.code}", self.low + addend.low, self.high + addend.high, False
        )

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
        return Expr(f"{_operand(self)} * {_signed(factor)}", ends[0], ends[1], True)

    def __rmul__(self, factor: int) -> Value:
        return self * factor

    def __floordiv__(self, size: int) -> Value:
        """For values that are not negative, where C's division is the same."""
        if size == 1:
            return self
        if self.low >= 0 and self.high < size:
            return 0
        return Expr(f"{_factor(self)} / {size}", self.low // size, self.high // size, False)

    def __mod__(self, size: int) -> Value:
        """For values that are not negative, where C's remainder is the same."""
        if size == 1:
            return 0
        if self.low >= 0 and self.high < size:
            return self
        return Expr(f"{_factor(self)} % {size}", 0, size - 1, False)


#: Result of index arithmetic.
Value = Expr | int


def _operand(value: Expr) -> str:
    return value.code if value.atom and "*" not in value.code else f"({value.code})"


def _factor(value: Expr) -> str:
    return value.code if value.code.isidentifier() else f"({value.code})"


def _signed(factor: int) -> str:
    return str(factor) if factor >= 0 else f"({factor})"


def variable(name: str, extent: int) -> Value:
    """A variable that runs over ``range(extent)``; zero if there is nothing to run over."""
    return Expr(name, 0, extent - 1) if extent > 1 else 0


def text(value: Value) -> str:
    """The C text of a value."""
    return value.code if isinstance(value, Expr) else str(value)


def at_most(value: Value) -> int:
    """Largest value that an expression can have."""
    return value.high if isinstance(value, Expr) else value
