"""An operator as it is, by an instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amos.ir import Operator
from amos.measure.reference import References, tolerance
from amos.network.kernels import TaskKernel
from amos.network.lowerings.base import Example, Lowering, schedule_product


@dataclass(frozen=True)
class Direct(Lowering):
    """An operator that is its own product."""

    operator: Operator

    def total(self, seconds: Sequence[float]) -> float:
        """Those of the product."""
        return seconds[0]

    @property
    def tuned(self) -> tuple[tuple[Operator, int], ...]:
        """The operator."""
        return ((self.operator, 1),)

    def build(self, symbol: str) -> TaskKernel:
        """Compile the product; errors as of all lowerings."""
        program, function = schedule_product(self.products[0])
        return self.compile(symbol, program, program.arguments, function)

    def example(self, references: References) -> Example:
        """Random inputs, and results."""
        inputs, (expected,) = references.get(self.operator)
        return inputs, expected, (tolerance(self.operator, expected),)
