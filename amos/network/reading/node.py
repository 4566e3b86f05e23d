"""A node of ONNX while it is read: its inputs as values of a graph, its attributes as Python's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amos.errors import NetworkError
from amos.network.graph import Constant, GraphBuilder, Operand
from amos.network.operations import numpy_dtype


@dataclass(frozen=True)
class NodeSource:
    """A node of ONNX with its inputs in a graph.

    Attributes:
        inputs: values in order; ``None`` where one is left out.
        attributes: numbers, strings, arrays and tuples by name.
        opset: version of the operator set.
        outputs: whether each of its results is read.
    """

    operation: str
    inputs: tuple[Operand | None, ...]
    attributes: Mapping[str, Any]
    opset: int
    builder: GraphBuilder
    outputs: tuple[bool, ...] = (True,)

    def input(self, position: int) -> Operand:
        """Return an input; raise NetworkError if it is left out."""
        value = self.optional(position)
        if value is None:
            raise self.refuse(f"input {position} is missing")
        return value

    def optional(self, position: int) -> Operand | None:
        """Return an input, or ``None`` where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def constant(self, position: int) -> np.ndarray | None:
        """Return the values of an input that parameterizes the operator; ``None`` without one.

        Raises:
            NetworkError: its values are known at run time only.
        """
        value = self.optional(position)
        if value is None:
            return None
        if not isinstance(value, Constant):
            raise self.refuse(
                f"input {position} depends on values that the network computes, "
                "which is not supported"
            )
        return value.array

    def integers(self, name: str, position: int | None = None) -> tuple[int, ...] | None:
        """Return integers that are an attribute, or an input since some version of ONNX."""
        if name in self.attributes:
            values = self.attributes[name]
            return tuple(map(int, values if isinstance(values, Sequence) else [values]))
        array = self.constant(position) if position is not None else None
        return None if array is None else tuple(map(int, array.reshape(-1)))

    def axes(self, rank: int, position: int | None = None) -> tuple[int, ...] | None:
        """Return the axes that a node states, counted from 0 and rising."""
        axes = self.integers("axes", position)
        return None if axes is None else tuple(sorted(self.axis_of(a, rank) for a in axes))

    def axis_of(self, axis: int, rank: int) -> int:
        """Return an axis counted from 0; raise NetworkError if there is none."""
        if not -max(rank, 1) <= axis < max(rank, 1):
            raise self.refuse(f"axis {axis} of a tensor of {rank} axes")
        return axis % max(rank, 1)

    def emit(self, operation: str, *operands: Operand, **attributes: Any) -> Operand:
        """Append an operator to the graph; see :meth:`GraphBuilder.emit`."""
        return self.builder.emit(operation, *operands, **attributes)

    def reshape(self, value: Operand, shape: Sequence[int]) -> Operand:
        """Append a Reshape, unless the shape stays."""
        return self.builder.reshape(value, shape)

    def transpose(self, value: Operand, perm: Sequence[int]) -> Operand:
        """Append a Transpose, unless the order stays."""
        perm = tuple(perm)
        if perm == tuple(range(len(perm))):
            return value
        return self.emit("Transpose", value, perm=perm)

    def cast(self, value: Operand, dtype: str) -> Operand:
        """Append a Cast, unless the dtype stays."""
        return self.builder.cast(value, dtype)

    def scalar(self, value: Any, like: Operand) -> Constant:
        """Return a number in the dtype of a value."""
        return Constant(np.asarray(value, numpy_dtype(like.dtype)))

    def refuse(self, why: str) -> NetworkError:
        """Return the error that leaves this node to onnxruntime."""
        return NetworkError(f"{self.operation}: {why}")


#: Emits what a node stands for; returns its result, or one for each of its outputs.
Read = Callable[[NodeSource], Operand | tuple[Operand | None, ...]]


def is_float(value: Operand) -> bool:
    """Return whether elements are floats of any width."""
    return "float" in value.dtype
