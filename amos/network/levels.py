"""What the integers of a quantized tensor stand for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amos.network.graph import Constant, Node, Operand

#: dtypes that quantized activations have.
BYTES = ("uint8", "int8")


@dataclass(frozen=True, eq=False)
class Levels:
    """What the integers of a tensor stand for: ``(integers - zero) * scale``.

    Attributes:
        integers: the tensor.
        scale: float32, one or one for each step of the axis.
        zero: as many integers.
        axis: that they belong to.
    """

    integers: Operand
    scale: np.ndarray
    zero: np.ndarray
    axis: int

    @property
    def single(self) -> bool:
        """Whether all elements have the same."""
        return self.scale.size == 1 and self.zero.size == 1

    def same(self, other: Levels) -> bool:
        """Whether all elements of both have the same."""
        both = self.single and other.single
        return both and self.scale[0] == other.scale[0] and self.zero[0] == other.zero[0]

    def shaped(self, values: np.ndarray) -> np.ndarray:
        """One value, or one for each step of the axis, as they are broadcast to the tensor."""
        if values.size == 1:
            return values.reshape(())
        rank = len(self.integers.shape)
        return values.reshape([-1 if d == self.axis % rank else 1 for d in range(rank)])

    def values(self) -> np.ndarray:
        """The floats of a constant."""
        assert isinstance(self.integers, Constant)
        centred = self.integers.array.astype(np.int32) - self.shaped(self.zero)
        floats: np.ndarray = centred.astype(np.float32) * self.shaped(self.scale)
        return floats


def levels_of(node: Operand, operation: str = "dequantize") -> Levels | None:
    """Of the operand of a dequantize, or the result of a quantize."""
    if not isinstance(node, Node) or node.operation != operation:
        return None
    integers, scale, zero = node.operands
    if not isinstance(scale, Constant) or not isinstance(zero, Constant):
        return None
    return Levels(
        integers,
        scale.array.astype(np.float32).reshape(-1),
        zero.array.astype(np.int32).reshape(-1),
        int(node.attributes.axis),
    )


def constant_floats(operand: Operand) -> np.ndarray | None:
    """The floats of a constant, dequantized and reshaped or not."""
    if isinstance(operand, Constant):
        return operand.array if operand.dtype == "float32" else None
    if operand.operation in ("reshape", "expand_dims", "squeeze"):
        inner = constant_floats(operand.operands[0])
        return None if inner is None else inner.reshape(operand.shape)
    levels = levels_of(operand)
    if levels is None or not isinstance(levels.integers, Constant):
        return None
    return levels.values()
