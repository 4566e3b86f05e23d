"""The functions of floats that a text may call, step by step as they are stated.

Each works on arrays of float32 and rounds after each step; nothing is shared with the package.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["FUNCTIONS"]

F = np.float32


def _fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """``x * y + z`` rounded once, by the longest floats that the machine has.

    Where these end half-way between two floats, what they cut off decides.
    """
    product = x.astype(np.longdouble) * y
    total = product + z
    back = total - product
    cut = (product - (total - back)) + (z - back)
    near: np.ndarray = total.astype(F)
    next_float = np.nextafter(near, np.where(total > near, F(np.inf), F(-np.inf)))
    half = (total != near) & (total - near == next_float - total)
    return np.where(
        half & (((cut > 0) & (next_float > near)) | ((cut < 0) & (next_float < near))),
        next_float,
        near,
    )


def _horner(x: np.ndarray, *coefficients: float) -> np.ndarray:
    """A polynomial, its highest coefficient first."""
    value = np.full_like(x, F(coefficients[0]))
    for coefficient in coefficients[1:]:
        value = _fused(value, x, np.full_like(x, F(coefficient)))
    return value


def _between(low: float, x: np.ndarray, high: float) -> np.ndarray:
    """Within limits; NaN stays what it is."""
    return np.asarray(np.clip(x, F(low), F(high)))


def _two_to(n: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # of 128, infinity
        return np.asarray(np.ldexp(F(1), n.astype(np.int32)), F)


def _exp(x: np.ndarray, scalings: int = 2) -> np.ndarray:
    nan, x = np.isnan(x), np.nan_to_num(_between(-104, x, 89))
    n = np.rint(x * F(1.442695))
    r = _fused(n, np.full_like(x, F(-0.6931472)), x)
    r = _fused(n, np.full_like(x, F(1.9046542e-9)), r)
    y = _horner(r, 0.0013814465, 0.008368781, 0.041668393, 0.1666652, 0.49999994, 1, 1)
    first = n if scalings == 1 else np.rint(n * F(0.5))
    return np.where(nan, F(np.nan), y * _two_to(first) * _two_to(n - first))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(F(1) / (F(1) + _exp(_between(-87.33654, F(0) - x, 89), scalings=1)))


def _tanh(x: np.ndarray) -> np.ndarray:
    x = _between(-9.75, x, 9.75)
    s = x * x
    top = _horner(s, 1.3335574e-08, 2.0595358e-05, 0.0034947563, 0.13380326, 1)
    bottom = _horner(s, 7.768761e-07, 0.0003284273, 0.025873821, 0.4671364, 1)
    return _between(-1, x * top / bottom, 1)


def _erf(x: np.ndarray) -> np.ndarray:
    x = _between(-4.15, x, 4.15)
    s = x * x
    top = _horner(s, 2.041906e-06, 0.00028478814, 0.0037791613, 0.05278887, 0.19077489, 1.1283791)
    bottom = _horner(s, 3.8002326e-05, 0.0011650845, 0.014996549, 0.11425362, 0.50240254, 1)
    return _between(-1, x * top / bottom, 1)


def _hardsigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(_between(0, x + F(3), 6) / F(6))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    inner = _fused(x * x, np.full_like(x, F(0.035677407)), np.full_like(x, F(0.7978846)))
    return np.asarray(F(0.5) * x * (F(1) + _tanh(x * inner)))


FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "round": np.rint,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: F(1) / np.sqrt(x),
    "fma": lambda x, y, z: _fused(*np.broadcast_arrays(x, y, z)),
    "exp": _exp,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "tanh": _tanh,
    "erf": _erf,
    "gelu": lambda x: F(0.5) * x * (F(1) + _erf(x * F(0.70710677))),
    "gelu_tanh": _gelu_tanh,
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda x: x * _hardsigmoid(x),
}
