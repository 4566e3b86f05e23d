"""Functions of two values that join the sources of a statement or combine a reduction.

``out[n] max= a[n,k] + b[k]`` joins its sources by ``+`` and combines over ``k`` by ``max``.
Sources count as values of the destination's dtype, in which both functions compute:
integers wrap around. ``max`` and ``min`` are defined for numbers: their result
for a NaN is left open, as instructions differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from amos.ir.dtypes import DType, dtype
from amos.ir.floats import SCALE, limits


@dataclass(frozen=True)
class Function:
    """A function of two values.

    Attributes:
        ordered: whether it compares its arguments, which then must not have wrapped around.
        commutes: whether its arguments may be swapped.
    """

    symbol: str
    ufunc: np.ufunc
    ordered: bool = False
    commutes: bool = True

    def text(self, arguments: list[str]) -> str:
        """Write a call in the operator language."""
        if self.ordered and len(arguments) > 1:
            return f"{self.symbol}({', '.join(arguments)})"
        return f" {self.symbol} ".join(arguments)


_ALL = (
    Function("*", np.multiply),
    Function("+", np.add),
    Function("-", np.subtract, commutes=False),
    Function("max", np.maximum, ordered=True),
    Function("min", np.minimum, ordered=True),
)
#: Functions that may join sources, and those that may combine over a reduction.
JOINS = tuple(each.symbol for each in _ALL)
COMBINERS = tuple(each.symbol for each in _ALL if each.commutes)


def function(symbol: str) -> Function:
    """Look up a function by its symbol in statements."""
    return next(each for each in _ALL if each.symbol == symbol)


def neutral(symbol: str, kind: str | DType) -> int | float:
    """Return the identity element of a combiner in a dtype, or 0 without a combiner.

    >>> neutral("+", "f32"), neutral("max", "s8"), neutral("min", "f32")
    (0, -128, inf)
    """
    if symbol not in ("max", "min"):
        return int(symbol == "*")
    scalar = dtype(kind)
    ends = limits(scalar)
    if not scalar.is_integer and scalar.name not in ("float8_e4m3", SCALE):
        ends = (-math.inf, math.inf)
    return ends[symbol == "min"]


def fills_lanes(
    combiner: str, join: str, sources: int, kind: str | DType, *, arbitrary_source: bool = False
) -> bool:
    """Return whether neutral values in lanes beyond a reduction leave its result unchanged.

    Args:
        combiner: of the reduction.
        join: joins the sources.
        kind: dtype of the destination.
        arbitrary_source: whether another source may hold any value in these lanes.

    >>> fills_lanes("+", "*", 2, "f32", arbitrary_source=True), fills_lanes("max", "*", 2, "f32")
    (True, False)
    >>> fills_lanes("+", "+", 2, "f32"), fills_lanes("+", "+", 2, "f32", arbitrary_source=True)
    (True, False)
    """
    if sources < 2:
        return True
    scalar = dtype(kind)
    value, ends = neutral(combiner, scalar), limits(scalar)
    probes = [0, 1, *ends, *([] if scalar.is_integer else [-1])] if arbitrary_source else []
    with np.errstate(over="ignore", invalid="ignore"):
        empty = np.asarray(value).astype(scalar.numpy)
        compute = function(join).ufunc
        return all(
            joined == empty
            for probe in np.array([value, *probes]).astype(scalar.numpy)
            for joined in (compute(empty, probe), compute(probe, empty))
        )
