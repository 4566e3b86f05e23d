"""The number in ``pad(image[…], 128)``: the value of reads outside of a tensor."""

from __future__ import annotations

import math

import numpy as np

from amos.errors import OperatorError, quote
from amos.ir.dtypes import DType
from amos.ir.floats import limits, quantize

#: Whole floats below this are exact integers.
_WHOLE = 1 << 53


def plain_number(value: object, where: str) -> int | float:
    """Convert a number to Python's own type: whole ones to integers, minus zero to zero.

    Raises:
        OperatorError: it is no such number.

    >>> plain_number(np.float32(128), "padding"), plain_number(-0.0, "padding")
    (128, 0)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise OperatorError(f"{where}: expected a number, got {quote(value)}")
    if isinstance(value, int | np.integer):
        return int(value)
    number = float(value)
    if math.isnan(number):
        raise OperatorError(f"{where}: expected a number, got {number}")
    return int(number) if number.is_integer() and abs(number) < _WHOLE else number


def padding_of(value: int | float, kind: DType) -> int | float:
    """Convert a padding value to a dtype; infinities become its limits if it has none.

    >>> from amos.ir.dtypes import dtype
    >>> padding_of(-math.inf, dtype("s8")), padding_of(-math.inf, dtype("f32"))
    (-128, -inf)
    """
    if not math.isinf(value):
        return value
    infinite = not kind.is_integer and math.isinf(quantize(np.array(value), kind))
    return value if infinite else limits(kind)[value > 0]


def check_padding(value: int | float, kind: DType, where: str) -> None:
    """Refuse a padding that is no value of a type.

    Raises:
        OperatorError: in one line, with the value and the type.
    """
    low, high = limits(kind)
    if math.isinf(padding_of(value, kind)):
        return
    if not low <= value <= high or (kind.is_integer and value != int(value)):
        raise OperatorError(
            f"{where}: {quote(value)} is no value of {kind.declared}, which are {low} to {high}"
        )
    nearest = value if kind.is_integer else float(quantize(np.array(float(value)), kind))
    if nearest != value:
        raise OperatorError(
            f"{where}: {quote(value)} is no value of {kind.name}; the nearest is {nearest!r}"
        )


def padded_text(access: str, value: int | float) -> str:
    """Write an access within ``pad`` in the operator language.

    >>> padded_text("a[i]", 0), padded_text("a[i]", -0.5)
    ('pad(a[i])', 'pad(a[i], -0.5)')
    """
    return f"pad({access}, {value!r})" if value else f"pad({access})"
