"""Running one intrinsic on fragments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amos.errors import AmosError
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.measure.messages import Context, Failure

__all__ = ["Call"]


@dataclass(frozen=True)
class Call:
    """Calls of an intrinsic, as its self-check makes them.

    Attributes:
        intrinsic: what to run.
        implementation: ``"native"`` or ``"generic"``.
        arrays: for each operand, sources first, calls × fragment.
    """

    intrinsic: Intrinsic
    implementation: str
    arrays: tuple[np.ndarray, ...]

    @property
    def intrinsics(self) -> tuple[Intrinsic, ...]:
        """The one."""
        return (self.intrinsic,)

    @property
    def needs(self) -> frozenset[Operator | str]:
        """Code for CPUs."""
        return frozenset({"cpu"})

    def run(self, context: Context) -> np.ndarray | Failure:
        """The destination after the calls."""
        from amos.codegen.tir.tensor_intrin import holdable
        from amos.runtime.calls import run_calls

        try:
            holdable(self.intrinsic)
        except AmosError as error:
            return Failure("unheld", str(error))
        try:
            return run_calls(self.intrinsic, self.implementation, self.arrays)
        except AmosError as error:
            return Failure("build", str(error))
