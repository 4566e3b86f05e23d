"""Algorithm 1 of the paper, on binary matrices alone (AMOS, section 5.2).

``X`` is the software access matrix (operands × software iterations), ``Z`` the
intrinsic access matrix (operands × intrinsic iterations), and ``Y`` the matching
matrix (intrinsic iterations × software iterations). ``★`` is the product of
binary matrices: or of ands.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from amos.errors import MappingError


def algorithm_1(X: Any, Y: Any, Z: Any) -> bool:
    """Check Algorithm 1 to the letter: ``Z ★ Y == X`` and ``X ★ Yᵀ == Z``.

    Every software iteration has to be matched and every intrinsic iteration
    filled. See :func:`holds_on_matched` for matchings that leave some out.

    Raises:
        MappingError: a matrix is not binary, or the shapes do not fit.
    """
    return bool(_holds(*_to_binary(X, Y, Z), matched=False))


def holds_on_matched(X: Any, Y: Any, Z: Any) -> bool:
    """Check Algorithm 1 on the matched columns and the non-empty rows of Y only.

    An unmatched software iteration stays a loop around the call, where it
    constrains nothing; an empty intrinsic iteration is padded from extent 1.
    """
    return bool(_holds(*_to_binary(X, Y, Z), matched=True))


def algorithm_1_batch(X: Any, Y: Any, Z: Any, *, matched: bool = False) -> np.ndarray:
    """Check Algorithm 1 on many matchings at once.

    Returns:
        bool array of length ``batch``.
    """
    return np.asarray(_holds(*_to_binary(X, Y, Z, batch=True), matched=matched))


def _holds(x: np.ndarray, y: np.ndarray, z: np.ndarray, matched: bool) -> Any:
    """Check Algorithm 1; NumPy's product of bool arrays is ``★``."""
    software = z @ y != x
    hardware = x @ y.swapaxes(-1, -2) != z
    if matched:
        software &= y.any(axis=-2, keepdims=True)
        hardware &= y.swapaxes(-1, -2).any(axis=-2, keepdims=True)
    return ~(software.any(axis=(-1, -2)) | hardware.any(axis=(-1, -2)))


def _to_binary(
    X: Any, Y: Any, Z: Any, *, batch: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Convert X, Y and Z to bool arrays, and check that their shapes fit."""
    parts = []
    for name, matrix, dims in (("X", X, 2), ("Y", Y, 3 if batch else 2), ("Z", Z, 2)):
        try:
            array = np.asarray(matrix)
            truth = array.astype(bool)
        except (TypeError, ValueError) as error:
            raise MappingError(f"matrix {name}: expected zeros and ones, got {error}") from None
        if array.ndim != dims:
            raise MappingError(f"matrix {name}: expected {dims} dimensions, got {array.ndim}")
        if array.dtype != bool and not np.array_equal(array, truth):
            raise MappingError(f"matrix {name}: expected zeros and ones only")
        parts.append(truth)
    x, y, z = parts
    if (x.shape[0], y.shape[-2], y.shape[-1]) != (z.shape[0], z.shape[1], x.shape[1]):
        raise MappingError(
            f"X {x.shape}, Y {y.shape} and Z {z.shape} do not fit: expected operands × software, "
            "intrinsic × software, operands × intrinsic iterations"
        )
    return x, y, z
