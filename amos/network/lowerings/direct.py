"""An operator as it is, by an instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amos.codegen.tir.program import Argument
from amos.ir import Operator
from amos.measure.reference import References, tolerance
from amos.network.lowerings.base import Example, ProductLowering, ScheduledProduct


@dataclass(frozen=True)
class Direct(ProductLowering):
    """An operator that is its own product."""

    def total(self, seconds: float) -> float:
        """Return the seconds of the product."""
        return seconds

    @property
    def tuned(self) -> tuple[Operator, ...]:
        """The operator."""
        return (self.operator,)

    def write(self, product: ScheduledProduct) -> tuple[Sequence[Argument], Any]:
        """Return arguments and function of the product."""
        return product.program.arguments, product.function

    def example(self, references: References) -> Example:
        """Draw inputs and compute the result."""
        inputs, (expected,) = references.get(self.operator)
        return inputs, expected, (tolerance(self.operator, expected),)
