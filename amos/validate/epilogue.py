"""What prologues make of inputs and an epilogue of accumulators, in NumPy: the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from amos.ir import dtype
from amos.ir.floats import quantize
from amos.validate.buffers import FlatAccess, write_output

if TYPE_CHECKING:
    from amos.ir import BufferLoad, Operator, Tensor

__all__ = ["finish", "source_value", "source_values"]


def finish(op: Operator, accumulators: np.ndarray, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Apply the epilogue of an operator, if it has one, and put results where they belong.

    Args:
        op: the operator.
        accumulators: what its statement computes, in the output's shape.
        inputs: an array for each input tensor, by name.

    Returns:
        array of the result's shape; elements that the operator does not write are
        zero.

    Raises:
        OperatorError: the epilogue takes no such accumulator.
    """
    if op.epilogue is None and op.store is None:
        return accumulators
    names = [it.name for it in op.spatial]
    held = FlatAccess.of(op.output, accumulators, op.extents).view(names, op.extents)
    if op.epilogue is None:
        return write_output(op, held, accumulators.dtype, op.stored)
    kind = op.output.tensor.dtype or accumulators.dtype.name
    final = dtype(op.epilogue.result(kind))
    by = _InNumPy(op.extents, inputs, names)
    with np.errstate(over="ignore", invalid="ignore"):
        value = op.epilogue.compute(held, kind, by)
        return write_output(op, _store(value, final.name), final.numpy, op.stored)


def source_values(op: Operator, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The sources of a statement by name: inputs, and what prologues make of some.

    Args:
        op: the operator.
        inputs: an array for each input tensor, by name.
    """
    return {load.tensor.name: source_value(op, load.tensor, inputs) for load in op.sources}


def source_value(op: Operator, source: Tensor, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """One source of a statement: the input itself, or what its prologue makes of others."""
    prologue = op.prologue(source.name)
    if prologue is None:
        return inputs[source.name]
    extents = dict(zip(prologue.dimensions, source.shape, strict=True))
    by = _InNumPy(extents, inputs, list(extents))
    with np.errstate(over="ignore", invalid="ignore"):
        value = _store(np.asarray(prologue.compute(by)), prologue.dtype)
    # Not by ascontiguousarray, which gives a scalar a dimension.
    return np.broadcast_to(value, source.shape).copy()


class _InNumPy:
    """Arrays with one axis for each loop, of extent 1 where it does not occur.

    Args:
        extents: of the loops that may index tensors.
        inputs: the tensors, by name.
        names: the loops, in the order of the axes.
    """

    def __init__(
        self, extents: Mapping[str, int], inputs: Mapping[str, np.ndarray], names: list[str]
    ) -> None:
        self.extents, self.inputs, self.names = extents, inputs, names

    def number(self, value: float, kind: str) -> Any:
        return np.dtype(kind).type(value)

    def read(self, load: BufferLoad, kind: str) -> Any:
        flat = FlatAccess.of(load, self.inputs[load.tensor.name], self.extents)
        extents = {n: self.extents[n] if n in load.names else 1 for n in self.names}
        return flat.view(self.names, extents).astype(kind)

    def convert(self, value: Any) -> Any:
        return value.astype(np.float32)

    def apply(self, name: str, kind: str, values: list[Any]) -> Any:
        if name == "round":
            return np.rint(values[0])
        left, right = values
        if name == "max":
            return np.where(left > right, left, right)
        if name == "min":
            return np.where(left < right, left, right)
        made = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}[name](left, right)
        return made.astype(kind, copy=False)


def _store(value: np.ndarray, kind: str) -> np.ndarray:
    """A value as the result's dtype: rounded to nearest even and clamped."""
    final = dtype(kind)
    if not final.is_integer:
        return quantize(value.astype(np.float32), kind)
    low, high = final.limits
    if value.dtype.kind == "i":
        clipped: np.ndarray = np.clip(value, low, high)
        return clipped.astype(final.numpy)
    above = np.where(value > low, value, np.float32(low))
    # No float32 is 2**31 - 1, so ends are compared as wider floats.
    nearest: np.ndarray = np.minimum(np.rint(above.astype(np.float64)), high)
    return nearest.astype(final.numpy)
