"""Levels: the floats that the integers of a quantized tensor represent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from amos.network.graph import Constant, Node, Operand
from amos.validate.epilogue import fma

#: Scales whose inverses, in two parts, are normal numbers, and the results that are compared.
_SCALES, _RESULTS = (2.0**-60, 2.0**60), 512
#: Floats next to a tie that are tried: a quotient is off by one of them at most.
_NEXT = np.arange(-8, 9)


@dataclass(frozen=True, eq=False)
class Levels:
    """The floats that the integers of a tensor represent: ``(integers - zero) * scale``.

    Attributes:
        scale: float32, one or one for each step of the axis.
        zero: as many integers.
    """

    integers: Operand
    scale: np.ndarray
    zero: np.ndarray
    axis: int

    @property
    def single(self) -> bool:
        """Whether all elements have the same scale and zero point."""
        return self.scale.size == 1 and self.zero.size == 1

    def equals(self, levels: Levels) -> bool:
        """Return whether all elements of both tensors have the same scale and zero point."""
        both = self.single and levels.single
        return both and self.scale[0] == levels.scale[0] and self.zero[0] == levels.zero[0]

    def reshape(self, values: np.ndarray) -> np.ndarray:
        """Reshape a value, or one for each step of the axis, for broadcasting to the tensor."""
        if values.size == 1:
            return values.reshape(())
        rank = len(self.integers.shape)
        return values.reshape([-1 if d == self.axis % rank else 1 for d in range(rank)])

    def values(self) -> np.ndarray:
        """Return the floats of a constant."""
        assert isinstance(self.integers, Constant)
        centred = self.integers.array.astype(np.int32) - self.reshape(self.zero)
        floats: np.ndarray = centred.astype(np.float32) * self.reshape(self.scale)
        return floats


def levels_of(node: Operand, operation: str = "DequantizeLinear") -> Levels | None:
    """Return the levels of a dequantize or a quantize; ``None`` if they are not constant."""
    if not isinstance(node, Node) or node.operation != operation:
        return None
    integers, scale, zero = node.operands
    if not isinstance(scale, Constant) or not isinstance(zero, Constant):
        return None
    return Levels(
        integers,
        scale.array.astype(np.float32).reshape(-1),
        zero.array.astype(np.int32).reshape(-1),
        node.attributes["axis"],
    )


def constant_floats(operand: Operand) -> np.ndarray | None:
    """Return the floats of a constant, which may be dequantized and reshaped."""
    if isinstance(operand, Constant):
        return operand.array if operand.dtype == "float32" else None
    if operand.operation == "Reshape":
        inner = constant_floats(operand.operands[0])
        return None if inner is None else inner.reshape(operand.shape)
    levels = levels_of(operand)
    if levels is None or not isinstance(levels.integers, Constant):
        return None
    return levels.values()


def inverse_of(scale: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return two floats whose sum, times a number, rounds to the same integer as the quotient.

    A product and a fused one take two instructions, a division the time of ten (Brisebarre,
    Muller and Raina, IEEE TC 2004). Results can differ only next to ties, all of which are tried
    within the range of bytes; ``None`` if one differs, or there are several scales.
    """
    if scale.size != 1 or scale.dtype != np.float32:
        return None
    return _inverse(scale.reshape(()).item())


@cache
def _inverse(value: float) -> tuple[np.ndarray, np.ndarray] | None:
    if not _SCALES[0] < value < _SCALES[1]:
        return None
    scale, high = np.float32(value), np.float32(1 / value)
    low = np.float32(1 / value - float(high))
    ties = ((np.arange(_RESULTS) + 0.5) * value).astype(np.float32)
    near = (ties.view(np.int32)[:, None] + _NEXT.astype(np.int32)).view(np.float32)
    exact = np.rint(fma(near, high, near * low)) == np.rint(near / scale)
    return (np.asarray(high), np.asarray(low)) if exact.all() else None
