"""Epilogues as TVM expressions, in the arithmetic that :mod:`amos.ir.epilogue` states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from amos.codegen.arrays import decoded, encoded, held
from amos.ir import BufferLoad, Operator, dtype
from amos.ir.floats import integer_limits

__all__ = ["finished"]

#: 2**31 - 1 is no float32; this is the largest one that an int32 holds.
_LARGEST_FLOAT_IN_INT32 = 2147483520


def finished(
    op: Operator, accumulator: Any, at: Mapping[str, Any], tensors: Mapping[str, Any]
) -> Any:
    """What is stored for one element of the output.

    Args:
        op: the operator, every dtype set.
        accumulator: its accumulated value.
        at: the spatial iterations of the element; one left out stands at zero.
        tensors: TE tensors of the epilogue, by name.
    """
    if op.epilogue is None:
        return accumulator
    kind = str(op.output.tensor.dtype)
    value = op.epilogue.compute(accumulator, kind, _InTVM(at, tensors))
    return _store(value, op.epilogue.expression.kind(kind), op.epilogue.result(kind))


class _InTVM:
    def __init__(self, at: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        self.at, self.tensors = at, tensors

    def number(self, value: float, kind: str) -> Any:
        from tvm import tirx

        return tirx.const(value, kind)

    def read(self, load: BufferLoad, kind: str) -> Any:
        where = [
            index.evaluate({name: self.at.get(name, 0) for name in index.names})
            for index in load.indices
        ]
        element = self.tensors[load.tensor.name][tuple(where)]
        return decoded(element, str(load.tensor.dtype), kind)

    def convert(self, value: Any) -> Any:
        return value.astype("float32")

    def apply(self, name: str, kind: str, values: list[Any]) -> Any:
        from tvm import tirx

        if name == "round":
            return tirx.nearbyint(values[0])
        left, right = values
        if name in ("max", "min"):
            return (tirx.max if name == "max" else tirx.min)(left, right)
        if name == "multiply":
            return left * right
        if kind == "float32":
            left, right = _rounded(left), _rounded(right)
        return left + right if name == "add" else left - right


def _rounded(term: Any) -> Any:
    """A term of a sum; a product is made to be rounded before it is added.

    TVM lets LLVM fuse a product and a sum, which rounds once where two roundings
    are stated. A comparison between them keeps them apart, and unlike a call of
    LLVM's fence for this purpose TVM vectorizes it.
    """
    from tvm import tirx

    if not isinstance(term, tirx.Mul):
        return term
    return tirx.max(term, tirx.const(-math.inf, "float32"))


def _store(value: Any, computed: str, kind: str) -> Any:
    """A value of kind ``computed`` as an element of the result, of dtype ``kind``."""
    from tvm import tirx

    final = dtype(kind)
    if not final.is_integer:
        return encoded(value.astype("float32"), kind)
    low, high = integer_limits(kind)
    if computed == "float32":
        high = min(high, _LARGEST_FLOAT_IN_INT32)
        above = tirx.max(value, tirx.const(low, "float32"))
        value = tirx.nearbyint(tirx.min(above, tirx.const(high, "float32"))).astype("int32")
    elif kind != "int32":
        limits = tirx.const(low, "int32"), tirx.const(high, "int32")
        value = tirx.min(tirx.max(value, limits[0]), limits[1])
    return value.astype(held(kind))
