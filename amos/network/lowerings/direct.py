"""An operator as it is, by an instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amos.codegen.tir.program import Argument
from amos.ir import Operator
from amos.measure.reference import References, tolerance
from amos.network.lowerings.base import Example, Lowering, ScheduledProduct


@dataclass(frozen=True)
class Direct(Lowering):
    """An operator that is its own product."""

    operator: Operator

    def total(self, seconds: Sequence[float]) -> float:
        """Return the seconds of the product."""
        return seconds[0]

    @property
    def tuned(self) -> tuple[Operator, ...]:
        """The operator."""
        return (self.operator,)

    def write(self, products: Sequence[ScheduledProduct]) -> tuple[Sequence[Argument], Any]:
        """Return arguments and function of the product."""
        return products[0].program.arguments, products[0].function

    def example(self, references: References) -> Example:
        """Draw inputs and compute the result."""
        inputs, (expected,) = references.get(self.operator)
        return inputs, expected, (tolerance(self.operator, expected),)
