"""Tables of elementwise functions from one quantized tensor to another.

An element has at most 256 values, so that a table replaces GELU, SiLU or a hard swish, with all
steps of quantization between their operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from amos.network.graph import Constant, GraphBuilder, Node, Operand, Rewrite
from amos.network.operations import OPERATIONS, Kind, evaluate
from amos.network.passes.levels import levels_of
from amos.network.shapes import BYTES, Result

#: Functions that a table is faster than; products and sums are computed in the tensor's kernel.
_FUNCTIONS = frozenset(
    {
        *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sin", "Sinh", "Tan"),
        *("Erf", "Exp", "Gelu", "Log", "Pow", "Sigmoid", "Sqrt", "Swish", "Tanh"),
    }
)
#: dtypes of what is computed between bytes.
_DTYPES = ("float32", "bool")


def rewrite_as_table(node: Node) -> Rewrite | None:
    """Return a rewrite of a quantize to the look-up of a table.

    ``None`` if it is not an elementwise function of a single tensor, or a table is not faster.
    """
    if node.dtype not in BYTES or levels_of(node, "QuantizeLinear") is None:
        return None
    with np.errstate(all="ignore"):
        evaluated = _evaluate(node, node.shape, {})
    if evaluated is None or evaluated.source is None or not evaluated.is_slow:
        return None
    return partial(_emit_table, evaluated.source, evaluated.values)


def _emit_table(source: Node, values: np.ndarray, builder: GraphBuilder) -> Operand:
    """Emit the look-up of values by elements of bytes, less the smallest of their dtype."""
    index = builder.value(source)
    if low := np.iinfo(source.dtype).min:
        wide = builder.emit("Cast", index, to="int32")
        index = builder.emit("Sub", wide, Constant(np.array(low, np.int32)))
    return builder.emit("Gather", Constant(values), index, axis=0)


@dataclass(frozen=True, eq=False)
class _Values:
    """Values for each value of a tensor; of a constant a single one.

    Attributes:
        values: as many as it has values.
        is_slow: whether one of the slow functions was computed.
    """

    source: Node | None
    values: np.ndarray
    is_slow: bool = False


def _evaluate(
    operand: Operand, shape: tuple[int, ...], before: dict[int, _Values | None]
) -> _Values | None:
    """Evaluate an operand for each value of the only tensor that it depends on."""
    if isinstance(operand, Constant):
        number = prod(operand.shape) == 1
        return _Values(None, operand.array.reshape(1)) if number else None
    if operand.number not in before:
        evaluated = _step(operand, shape, before)
        if evaluated is None and operand.dtype in BYTES and operand.shape == shape:
            info = np.iinfo(operand.dtype)
            evaluated = _Values(operand, np.arange(info.min, info.max + 1).astype(operand.dtype))
        before[operand.number] = evaluated
    return before[operand.number]


def _step(node: Node, shape: tuple[int, ...], before: dict[int, _Values | None]) -> _Values | None:
    compute = _of_levels(node) or _of_floats(node)
    if compute is None or prod(node.shape) not in (1, prod(shape)):
        return None
    sources = [_evaluate(each, shape, before) for each in node.operands[: compute.operands]]
    inputs = [each for each in sources if each is not None]
    tensors = {each.source for each in inputs if each.source is not None}
    if len(inputs) < len(sources) or len(tensors) > 1 or (tensors and node.shape != shape):
        return None
    values = compute.function(*(each.values for each in inputs))
    is_slow = node.operation in _FUNCTIONS or any(each.is_slow for each in inputs)
    return _Values(next(iter(tensors), None), np.asarray(values).astype(node.dtype), is_slow)


@dataclass(frozen=True)
class _Compute:
    """A function of the first operands of a node."""

    operands: int
    function: Callable[..., np.ndarray]


def _of_levels(node: Node) -> _Compute | None:
    """Convert between bytes and floats in float32, as the standard defines it."""
    levels = levels_of(node)
    if levels is not None and levels.single and node.dtype == "float32":
        scale, zero = levels.scale, levels.zero
        return _Compute(1, lambda x: (x.astype(np.int32) - zero).astype(np.float32) * scale)
    if (levels := levels_of(node, "QuantizeLinear")) is not None and levels.single:
        scale, zero, info = levels.scale, levels.zero, np.iinfo(node.dtype)
        return _Compute(1, lambda x: np.clip(np.rint(x / scale) + zero, info.min, info.max))
    return None


def _of_floats(node: Node) -> _Compute | None:
    operation = OPERATIONS.get(node.operation)
    if operation is None or operation.kind is not Kind.ELEMENTWISE or operation.evaluate is None:
        return None
    if {node.dtype, *(each.dtype for each in node.operands)} - {*_DTYPES}:
        return None

    def compute(*arrays: np.ndarray) -> np.ndarray:
        result = evaluate(node.operation, arrays, node.attributes, Result((), node.dtype))
        assert result is not None
        return result

    return _Compute(len(node.operands), compute)
