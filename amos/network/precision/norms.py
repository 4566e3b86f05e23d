"""The norm by which results of two precisions differ."""

from __future__ import annotations

import math

import numpy as np


def relative_norm(result: np.ndarray, expected: np.ndarray) -> float:
    """Return the 2-norm of a difference over that of what is expected.

    Integers count as numbers. What is not finite has to be the same on both sides, or the norm is
    infinite; so have strings.
    """
    if expected.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(result, expected) else math.inf
    value, exact = result.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(exact)
    same = np.array_equal(value[~finite], exact[~finite], equal_nan=True)
    if not same or not np.isfinite(value[finite]).all():
        return math.inf
    exact = exact[finite]
    size, difference = _norm(exact), _norm(value[finite] - exact)
    return difference / size if size else difference


def _norm(values: np.ndarray) -> float:
    """Return the 2-norm; NumPy's own waits for cores on which onnxruntime's threads spin."""
    with np.errstate(over="ignore"):
        return math.sqrt(np.square(values).sum())
