"""An operator as it is, by an instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amos.codegen.tir.program import Argument
from amos.ir import Operator
from amos.measure.reference import References, tolerance
from amos.network.lowerings.base import Example, Lowering, Scheduled


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

    def write(self, parts: Sequence[Scheduled]) -> tuple[Sequence[Argument], Any]:
        """Those of the product."""
        return parts[0].program.arguments, parts[0].function

    def example(self, references: References) -> Example:
        """Random inputs, and results."""
        inputs, (expected,) = references.get(self.operator)
        return inputs, expected, (tolerance(self.operator, expected),)
