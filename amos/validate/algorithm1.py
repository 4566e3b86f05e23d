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

__all__ = ["algorithm_1", "algorithm_1_batch", "holds_on_matched"]


def algorithm_1(X: Any, Y: Any, Z: Any) -> bool:
    """Algorithm 1 to the letter: ``Z ★ Y == X`` and ``X ★ Yᵀ == Z``.

    Every software iteration has to be matched and every intrinsic iteration
    filled. See :func:`holds_on_matched` for matchings that leave some out.

    Raises:
        MappingError: a matrix is not binary, or the shapes do not fit.
    """
    x, y, z = _binary(X, Y, Z)
    return bool(np.array_equal(_star(z, y), x) and np.array_equal(_star(x, y.T), z))


def holds_on_matched(X: Any, Y: Any, Z: Any) -> bool:
    """Algorithm 1 restricted to the matched columns and the non-empty rows of Y.

    An unmatched software iteration stays a loop around the call, where it
    constrains nothing; an empty intrinsic iteration is padded from extent 1.

    Raises:
        MappingError: a matrix is not binary, or the shapes do not fit.
    """
    x, y, z = _binary(X, Y, Z)
    columns, rows = y.any(axis=0), y.any(axis=1)
    software, hardware = _star(z, y), _star(x, y.T)
    return bool(
        np.array_equal(software[:, columns], x[:, columns])
        and np.array_equal(hardware[:, rows], z[:, rows])
    )


def algorithm_1_batch(X: Any, Y: Any, Z: Any, *, matched: bool = False) -> np.ndarray:
    """Algorithm 1 on many matchings at once.

    Args:
        X: operands × software iterations.
        Y: batch × intrinsic iterations × software iterations.
        Z: operands × intrinsic iterations.
        matched: judge as :func:`holds_on_matched` does.

    Returns:
        bool array of length ``batch``.

    Raises:
        MappingError: a matrix is not binary, or the shapes do not fit.
    """
    x, y, z = _binary(X, Y, Z, batch=True)
    operands, steps = z.shape
    # A row of Y becomes a bit set over software iterations, so that ★ is a
    # handful of bitwise operations on whole columns of the batch.
    rows = np.packbits(y, axis=2)
    rows = np.ascontiguousarray(rows.transpose(1, 2, 0))
    accesses = np.packbits(x, axis=1)[:, :, None]
    used = np.asarray(np.bitwise_or.reduce(rows, axis=0))
    filled = np.asarray(rows.any(axis=1))
    good = np.ones(y.shape[0], dtype=bool)
    for m in range(operands):
        reached = np.asarray(np.bitwise_or.reduce(rows[z[m]], axis=0))
        differ = reached ^ accesses[m]
        good &= ~((differ & used) if matched else differ).any(axis=0)
        for t in range(steps):
            wrong = (rows[t] & accesses[m]).any(axis=0) != z[m, t]
            good &= ~(wrong & filled[t]) if matched else ~wrong
    return good


def _star(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Product of binary matrices."""
    return np.asarray((a[:, :, None] & b[None, :, :]).any(axis=1))


def _binary(
    X: Any, Y: Any, Z: Any, *, batch: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, Y and Z as bool arrays whose shapes fit."""
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
