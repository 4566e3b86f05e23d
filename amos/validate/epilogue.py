"""Prologues and epilogues in NumPy: the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amos.ir import BufferLoad, Operator, Result, Tensor, dtype
from amos.ir.epilogue import Epilogue
from amos.ir.expression import ACCUMULATORS, Function, Node, Typed, inline_call
from amos.ir.floats import quantize
from amos.validate.buffers import FlatAccess, write_output

#: Bits of a double beyond those of a float, their value halfway between two floats, and the least
#: float that is not denormal.
_BELOW_FLOATS, _HALFWAY, _LEAST_NORMAL = (1 << 29) - 1, 1 << 28, 2.0**-126
#: Elements per block, so that doubles stay in a core's cache.
_BLOCK = 1 << 14
#: Added to a small integer, it leaves a float's exponent, 127 more, in the lowest bits.
_TO_EXPONENT = np.float32(1.5 * 2**23 + 127)


def finish(op: Operator, accumulators: np.ndarray, inputs: Mapping[str, np.ndarray]) -> Any:
    """Apply the epilogue of an operator, if it has one, and put results where they belong.

    Returns:
        array of the result's shape, or a tuple of all results if there are further ones;
        elements that the operator does not write are zero.

    Raises:
        OperatorError: the epilogue takes no such accumulator.
    """
    first = _finish_first(op, accumulators, inputs)
    if not op.further:
        return first
    return (first, *(_finish_further(op, each, accumulators, inputs) for each in op.further))


def _finish_first(
    op: Operator, accumulators: np.ndarray, inputs: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Compute the first result, and write it where it is stored."""
    if op.epilogue is None and op.store is None:
        return accumulators
    values = _elements(op, accumulators, inputs)
    return write_output(op, values, values.dtype, op.stored)


def _finish_further(
    op: Operator, result: Result, accumulators: np.ndarray, inputs: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Compute a further result; a reduction adds floats as float64."""
    elements = _elements(op.with_only(result), accumulators, inputs)
    if not result.reduces:
        return write_output(op, elements, elements.dtype, result.store)
    shape = [it.extent for it in op.spatial]
    reduced = tuple(n for n, it in enumerate(op.spatial) if it.name not in result.store.names)
    ufunc = {"+=": np.add, "max=": np.maximum, "min=": np.minimum}[result.combination]
    wide = np.int64 if elements.dtype.kind in "iu" else np.float64
    with np.errstate(over="ignore", invalid="ignore"):
        spread = np.broadcast_to(elements, shape).astype(wide)
        values = ufunc.reduce(spread, axis=reduced, keepdims=True)
    values = values.astype(np.int32 if wide is np.int64 else np.float32)
    if result.last is not None:
        values = _apply(op, result.last, values, values.dtype.name, inputs)
    return write_output(op, values, values.dtype, result.store)


def _elements(
    op: Operator, accumulators: np.ndarray, inputs: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Apply the epilogue to accumulators: an axis for each spatial iteration."""
    names = [it.name for it in op.spatial]
    values = FlatAccess.of(op.output, accumulators, op.extents).view(names, op.extents)
    if op.epilogue is None:
        return values
    kind = op.output.tensor.dtype or accumulators.dtype.name
    return _apply(op, op.epilogue, values, kind, inputs)


def _apply(
    op: Operator,
    epilogue: Epilogue,
    values: np.ndarray,
    kind: str,
    inputs: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Apply an epilogue to values of a dtype, with an axis for each spatial iteration."""
    return apply_epilogue(epilogue, values, kind, {it.name: it.extent for it in op.spatial}, inputs)


def apply_epilogue(
    epilogue: Epilogue,
    values: np.ndarray,
    kind: str,
    extents: Mapping[str, int],
    inputs: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Apply an epilogue to values of a dtype, one of ``extents`` for each axis."""
    final = dtype(epilogue.result(kind))
    by = _InNumPy(extents, inputs, [*extents])
    with np.errstate(all="ignore"):
        value = epilogue.compute(values, kind, by)
        return np.asarray(by.round_to(value, epilogue.kind(kind), final.name), final.numpy)


def source_values(op: Operator, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the sources of a statement by name: inputs, and values of prologues."""
    return {load.tensor.name: source_value(op, load.tensor, inputs) for load in op.sources}


def source_value(op: Operator, source: Tensor, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a source of the statement: the input itself, or the value of its prologue."""
    prologue = op.prologue(source.name)
    if prologue is None:
        return inputs[source.name]
    extents = dict(zip(prologue.dimensions, source.shape, strict=True))
    by = _InNumPy(extents, inputs, list(extents))
    with np.errstate(all="ignore"):
        value = by.round_to(np.asarray(prologue.compute(by)), prologue.kind, prologue.dtype)
    value = value.astype(dtype(prologue.dtype).numpy)
    # Not by ascontiguousarray, which gives a scalar a dimension.
    return np.broadcast_to(value, source.shape).copy()


def expression_values(
    expression: Node,
    extents: Mapping[str, int],
    inputs: Mapping[str, np.ndarray],
    origin: Mapping[str, int] | None = None,
) -> np.ndarray:
    """Evaluate an expression at every point of some loops, as its own kind, an axis for each."""
    names = list(extents)
    steps = dict(zip(names, np.ogrid[tuple(slice(0, n) for n in extents.values())], strict=True))
    variables = {
        name: Typed((step + (origin or {}).get(name, 0)).astype(np.int32), "int32")
        for name, step in steps.items()
    }
    with np.errstate(all="ignore"):
        value = expression.compute(variables, _InNumPy(extents, inputs, names)).value
    return np.broadcast_to(np.asarray(value), tuple(extents.values()))


def round_values(values: np.ndarray, final: str) -> np.ndarray:
    """Round values of ``int32`` or ``float32`` to a dtype, in an array that holds it."""
    kind = "int32" if values.dtype.kind in "iu" else "float32"
    with np.errstate(all="ignore"):
        is_integer = dtype(final).is_integer
        exact = values if is_integer or kind == "float32" else values.astype(np.float32)
        rounded = _InNumPy({}, {}, []).round_to(exact, kind, final)
    # Not by ascontiguousarray, which gives a scalar a dimension.
    return np.asarray(rounded, dtype(final).numpy, order="C")


class _InNumPy:
    """Arrays with one axis for each of the named loops, of extent 1 where it does not occur."""

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

    def widen(self, value: Any, dtype: str) -> Any:
        return value.astype(ACCUMULATORS[dtype])

    def convert(self, value: Any) -> Any:
        return value.astype(np.float32)

    def call(self, function: Function, kind: str, values: list[Any]) -> Any:
        return inline_call(function, kind, values, self)

    def apply(self, name: str, kind: str, values: list[Any]) -> Any:
        if name == "_choose":
            return np.where(values[0] > values[1], values[2], values[3])
        if name == "_greater":
            return np.where(values[0] > values[1], *values)
        if name == "_less":
            return np.where(values[0] < values[1], *values)
        if name == "_unless_nan":
            return np.where(np.isnan(values[0]), *values)
        computed = _OPERATIONS[name](*values)
        return computed.astype(kind, copy=False)

    def round_to(self, value: Any, kind: str, final: str) -> Any:
        """Round to nearest even, and clamp."""
        scalar = dtype(final)
        if not scalar.is_integer:
            return quantize(value.astype(np.float32), final).astype(np.float32)
        low, high = scalar.limits
        if kind == "int32":
            return np.clip(value, low, high)
        above = np.where(value > low, value, np.float32(low))
        # No float32 is 2**31 - 1, so ends are compared as wider floats.
        return np.minimum(np.rint(above.astype(np.float64)), high).astype(np.int32)


def fma(a: Any, b: Any, c: Any) -> Any:
    """Compute ``a * b + c``, rounded once.

    A double holds the product exactly, but rounds the sum. That matters only where the sum lies
    halfway between two floats, or where floats are denormal. There an inexact sum is replaced by
    its odd neighbour (rounding to odd: Boldo and Melquiond, IEEE TC
    2008), so that the second rounding, to a float, is that of the exact sum.
    """
    with np.nditer(
        [a, b, c, None],
        ["external_loop", "buffered", "zerosize_ok"],
        [["readonly"], ["readonly"], ["readonly"], ["writeonly", "allocate"]],
        [np.float64, np.float64, np.float64, np.float32],
        casting="same_kind",
        buffersize=_BLOCK,
    ) as blocks:
        for multiplier, multiplicand, addend, result in blocks:
            product = multiplier * multiplicand
            total = product + addend
            halfway = (total.view(np.int64) & _BELOW_FLOATS) == _HALFWAY
            size = np.abs(total)
            doubtful = halfway | ((size < _LEAST_NORMAL) & (size > 0))
            if doubtful.any():
                terms = (each[doubtful] for each in (product, addend, total))
                total[doubtful] = _round_to_odd(*terms)
            result[...] = total
        return blocks.operands[3]


def _round_to_odd(product: np.ndarray, addend: np.ndarray, total: np.ndarray) -> Any:
    """Round sums of doubles to the odd neighbour where they are not exact."""
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    odd = np.where((error > 0) == (total > 0), 1, -1)
    inexact = (error != 0) & np.isfinite(error) & (bits % 2 == 0)
    return np.where(inexact, bits + odd, bits).view(np.float64)


def _power_of_two(exponent: Any) -> Any:
    """Make a float with an exponent from -126 to 127 from its bits; infinite for 128."""
    return (np.asarray(exponent + _TO_EXPONENT).view(np.uint32) << np.uint32(23)).view(np.float32)


def _exponent(value: Any) -> Any:
    """Extract the exponent of a positive normal float from its bits."""
    bits = np.asarray(value, np.float32).view(np.uint32) >> np.uint32(23)
    return (bits.astype(np.int32) - 127).astype(np.float32)


_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "shift": np.right_shift,
    "round": np.rint,
    "sqrt": np.sqrt,
    "fma": fma,
    "_pow2": _power_of_two,
    "_exponent": _exponent,
}
