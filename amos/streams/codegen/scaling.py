"""Scaling of sums by a unit's stores: ``relu``, a factor, and a narrower dtype.

Gemmini's ``mvout`` does so to the accumulators that it reads (ucb-bar/gemmini, README, ISA:
``config_ex``; ``AccumulatorScale.scala``): ``relu``, then times a float32 number, rounded to
nearest even and clamped. Sums are converted to float32, which rounds to nearest even as well
(``scale_func`` of ``GemminiConfigs.defaultConfig``): the arithmetic of an epilogue
``s8(relu(acc) * factor)``, operation by operation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from amos.errors import BuildError
from amos.ir import BufferLoad, Operator, dtype
from amos.ir.expression import Function, inline_call


@dataclass(frozen=True)
class Scaling:
    """``dtype(relu(sum) * factor)``, with a float32 factor."""

    factor: float = 1.0
    relu: bool = False
    dtype: str = "int32"

    def apply(self, sums: np.ndarray) -> np.ndarray:
        """Scale sums: an array of :attr:`dtype`."""
        clamped = np.maximum(sums, 0) if self.relu else sums
        scaled = clamped.astype(np.float32) * np.float32(self.factor)
        low, high = dtype(self.dtype).limits
        return np.asarray(np.clip(np.rint(scaled), low, high).astype(dtype(self.dtype).numpy))

    def __str__(self) -> str:
        return f"{dtype(self.dtype).short}({'relu(acc)' if self.relu else 'acc'} * {self.factor!r})"


def scaling_of(op: Operator, kind: str, unit: str) -> Scaling | None:
    """Match an operator's epilogue with a unit's scaling stores; ``None`` without an epilogue.

    Args:
        kind: dtype that stores can leave; empty if they leave sums as they are.
        unit: name of the unit, for messages.

    Raises:
        BuildError: stores do not do that.
    """
    if op.epilogue is None:
        return None
    if not kind:
        raise BuildError(f"{unit} stores sums as they are: nothing computes {op.epilogue} there")
    by = _Stores(unit, str(op.epilogue), kind)
    if op.epilogue.result("int32") != kind:
        by.refuse()
    scaling = by.round_to(op.epilogue.compute(Scaling(), "int32", by), "", kind)
    assert isinstance(scaling, Scaling)
    return scaling


@dataclass(frozen=True)
class _Stores:
    """Values are expressions of the accumulator, or numbers."""

    unit: str
    whole: str
    kind: str

    def refuse(self) -> NoReturn:
        raise BuildError(
            f"{self.unit}'s stores compute {dtype(self.kind).short}(relu(acc) * number), with or "
            f"without either, not {self.whole}"
        )

    def number(self, value: float, kind: str) -> float:
        return value

    def read(self, load: BufferLoad, kind: str) -> NoReturn:
        self.refuse()

    def widen(self, value: Any, dtype: str) -> NoReturn:
        self.refuse()

    def convert(self, value: Any) -> Any:
        return value

    def round_to(self, value: Any, kind: str, final: str) -> Scaling:
        if not isinstance(value, Scaling) or final != self.kind:
            self.refuse()
        return replace(value, dtype=final)

    def apply(self, name: str, kind: str, values: list[Any]) -> Scaling:
        chains = [value for value in values if isinstance(value, Scaling)]
        numbers = [value for value in values if not isinstance(value, Scaling)]
        if len(chains) != 1 or len(numbers) != 1 or chains[0].dtype == self.kind:
            self.refuse()
        (chain,), (number,) = chains, numbers
        # A factor above zero keeps signs, so that it does not matter which comes first.
        if name in ("max", "_greater") and number == 0 and chain.factor > 0:
            return replace(chain, relu=True)
        if name == "multiply" and kind == "float32" and chain.factor == 1:
            return replace(chain, factor=float(np.float32(number)))
        self.refuse()

    def call(self, function: Function, kind: str, values: list[Any]) -> Any:
        return inline_call(function, kind, values, self)
