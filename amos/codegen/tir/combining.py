"""Joining sources and combining a reduction, in TVM's expressions and as TVMScript."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

from amos._toolchain import te, tirx
from amos.codegen.tir.arrays import container_dtype
from amos.ir import Compute
from amos.ir.combining import function, neutral

_SIGNS = {"*": operator.mul, "+": operator.add, "-": operator.sub}


def join(symbol: str, values: Sequence[Any]) -> Any:
    """Apply a function to TVM expressions, from the left."""
    if symbol in _SIGNS:
        return reduce(_SIGNS[symbol], values)
    return reduce(tirx.max if symbol == "max" else tirx.min, values)


def reduce_axes(combiner: str, value: Any, axes: list[Any]) -> Any:
    """Write a TE reduction that starts at the combiner's neutral value.

    TVM's own maximum starts at the smallest finite number, which is larger than minus infinity.
    """
    if combiner == "+":
        return te.sum(value, axis=axes)
    return te.comm_reducer(
        lambda x, y: join(combiner, (x, y)),
        lambda kind: tirx.const(neutral(combiner, str(kind)), container_dtype(str(kind))),
    )(value, axis=axes)


def join_text(symbol: str, values: Sequence[str]) -> str:
    """Apply a function to TVMScript expressions, from the left."""
    if function(symbol).ordered:
        return reduce(lambda a, b: f"T.{symbol}({a}, {b})", values)
    return f" {symbol} ".join(values)


def statement_text(compute: Compute, accumulator: str, values: Sequence[str]) -> str:
    """Write the statement on an accumulator and its sources' elements, in TVMScript."""
    value = join_text(compute.join, values)
    if not compute.accumulates:
        return value
    grouped = value if compute.sums_products else f"({value})"
    return join_text(compute.combiner, [accumulator, grouped])
