"""Values in doubles beside a bound of what floats of a kernel may be off by.

A bound follows from the steps: what arguments are off by, through the function, and the rounding
of its own. So a comparison needs no tolerance by hand. Elements that are not finite have to be the
same; where arguments within their bounds lead to NaN, an infinity and a number, such as of zero or
almost zero times infinity, the bound is infinite, and a kernel may have any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

__all__ = ["Bounded", "combined", "computed", "softmax", "stored"]

Array = np.ndarray
_EPSILON = 2.0**-24
#: What a function of a few operations rounds, relative to its value and to its arguments.
_OF_VALUE, _OF_ARGUMENTS = 16 * _EPSILON, 2 * _EPSILON
#: What is lost where the smallest normal number of float32 is 0.
_TINY = 2.0**-125
#: Beyond this, float32 is infinite.
_LARGEST = float(np.finfo(np.float32).max)
#: Half of the distance of neighbours, relative to them.
_HALVES = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
#: From where on halves are infinite, and what they lose where they are no longer normal.
_LARGEST_HALF, _SMALL_HALF = 65520.0, 2.0**-24


@dataclass(frozen=True)
class Bounded:
    """Values, and for each how far a kernel may be off.

    Attributes:
        value: in doubles.
        error: of the same shape.
    """

    value: Array
    error: Array

    @staticmethod
    def exact(value: Any) -> Bounded:
        """Values that a kernel has, too."""
        values = np.asarray(value, np.float64)
        return Bounded(values, np.zeros_like(values))

    def at(self, places: tuple[Array, ...]) -> Bounded:
        """The elements at some places."""
        return Bounded(np.asarray(self.value[places]), np.asarray(self.error[places]))

    def spread(self, shape: Sequence[int]) -> Bounded:
        """The same for each point of a grid."""
        return Bounded(*(np.broadcast_to(x, shape) for x in (self.value, self.error)))

    def differences(self, got: Array) -> Array:
        """By how much each element is beyond its bound; infinite where one alone is finite."""
        expected, own = np.broadcast_arrays(self.value, got.astype(np.float64))
        finite = np.isfinite(expected)
        same = np.isnan(own) & np.isnan(expected) | (own == expected)
        with np.errstate(all="ignore"):
            beyond = np.abs(own - expected) - self.error
        beyond = np.where(finite, np.nan_to_num(beyond, nan=np.inf), np.where(same, 0, np.inf))
        return np.asarray(np.where(np.isinf(self.error), 0, np.maximum(beyond, 0)))


def _settled(value: Array, error: Array) -> Bounded:
    """No finite bound where there is no number; an infinite one where the bound is none."""
    error = np.where(np.isnan(error), np.inf, error)
    return Bounded(value, np.where(np.isfinite(value) | np.isinf(error), error, 0))


def _distance(corner: Array, value: Array) -> Array:
    """How far values are apart; infinite where they differ and one is not finite."""
    same = (corner == value) | np.isnan(corner) & np.isnan(value)
    distance = np.where(np.isfinite(corner) & np.isfinite(value), np.abs(corner - value), np.inf)
    return np.where(same, 0, distance)


def computed(function: Callable[..., Any], *args: Bounded, exact: bool = False) -> Bounded:
    """A function of elements.

    Args:
        function: monotone in each argument where these are off.
        exact: whether it rounds nothing, as of integers.
    """
    with np.errstate(all="ignore"):
        value = np.asarray(function(*(x.value for x in args)), np.float64)
        error = np.zeros_like(value)
        moved = [[0.0]] if all(not x.error.any() for x in args) else [[-1.0, 1.0]] * len(args)
        for signs in product(*moved):
            if len(signs) == len(args):
                pairs = zip(args, signs, strict=True)
                corner = function(*(x.value + sign * x.error for x, sign in pairs))
                error = np.fmax(error, _distance(np.asarray(corner), value))
        if not exact:
            inner = sum(np.where(np.isfinite(x.value), np.abs(x.value), 0) for x in args)
            own = _OF_VALUE * np.abs(value) + _OF_ARGUMENTS * inner + _TINY
            error = error + np.where(np.isfinite(value), own, 0)
        for x in args:
            error = np.where(np.isinf(x.error), np.inf, error)
    return _settled(value, error)


def combined(sign: str, terms: Bounded, axes: tuple[int, ...], *, exact: bool = False) -> Bounded:
    """Sums, maxima or minima along axes."""
    with np.errstate(all="ignore"):
        if sign != "+":
            reduce = np.maximum.reduce if sign == "max" else np.minimum.reduce
            return _settled(reduce(terms.value, axis=axes), terms.error.max(axis=axes))
        value, count = terms.value.sum(axis=axes), 1
        for axis in axes:
            count *= terms.value.shape[axis]
        # Twice: sums that are rescaled are rounded again.
        rounding = 0 if exact else 2 * (count + 2) * _EPSILON * np.abs(terms.value).sum(axis=axes)
        rounding = np.where(np.isfinite(value), rounding, 0)
        return _settled(value, terms.error.sum(axis=axes) + rounding)


def softmax(name: str, terms: Bounded, axis: int) -> Bounded:
    """``softmax``, ``safe_softmax`` and ``logsumexp`` along an axis.

    Args:
        axis: stays, but for the last of these.
    """
    top = combined("max", terms, (axis,))
    top = Bounded(np.expand_dims(top.value, axis), np.expand_dims(top.error, axis))
    # An argument of -100 that is off by its rounding is one of exp that is off as much.
    powers = computed(lambda x, m: np.exp(x - m), terms, top)
    total = combined("+", powers, (axis,))
    if name == "logsumexp":
        top = Bounded(top.value.squeeze(axis), top.error.squeeze(axis))
        result = computed(lambda m, s: m + np.log(s), top, total)
        # In parts, a row that is all ``-inf`` begins at a finite number.
        return Bounded(result.value, np.where(np.isneginf(top.value), np.inf, result.error))
    total = Bounded(np.expand_dims(total.value, axis), np.expand_dims(total.error, axis))
    share = computed(np.divide, powers, total)
    if name == "safe_softmax":
        none = np.isneginf(top.value) | np.isnan(total.value)  # zeros where softmax gives NaN
        return Bounded(np.where(none, 0, share.value), np.where(none, 0, share.error))
    return share


def stored(x: Bounded, kind: str) -> Bounded:
    """What a tensor of a dtype has."""
    if kind == "float32":
        too_large = np.isfinite(x.value) & (np.abs(x.value) > _LARGEST)
        return Bounded(x.value, np.where(too_large, np.inf, x.error))
    if kind not in _HALVES:
        return x
    half, value = _HALVES[kind], x.value
    rounding = np.where(np.isfinite(value), half * np.abs(value), 0)
    error = x.error * (1 + half) + rounding + _TINY
    if kind == "float16":
        error = np.where(np.isfinite(value), np.maximum(error, _SMALL_HALF), error)
        with np.errstate(invalid="ignore"):
            low, high = np.abs(value) - error, np.abs(value) + error
        near = (low < _LARGEST_HALF) & (high >= _LARGEST_HALF)
        error = np.where(near, np.inf, error)
        value = np.where(np.abs(value) >= _LARGEST_HALF, np.copysign(np.inf, value), value)
    return _settled(value, error)
