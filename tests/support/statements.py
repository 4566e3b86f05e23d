"""Statements that do not sum products, units for them, and what NumPy says they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from amos.intrinsics import Intrinsic
from amos.intrinsics.virtual import unit
from amos.ir import Operator

__all__ = ["STATEMENTS", "Statement"]


@dataclass(frozen=True)
class Statement:
    """An operator, an instruction for it, and the same in NumPy.

    Attributes:
        text, extents, dtype: of the operator; every tensor has the dtype.
        meaning, sizes: of the instruction.
        expected: its result of the sources, in their order.
    """

    text: str
    extents: dict[str, int]
    dtype: str
    meaning: str
    sizes: dict[str, int]
    expected: Callable[..., Any]

    @property
    def operator(self) -> Operator:
        """The operator."""
        names = [piece.split()[-1].split("(")[-1] for piece in self.text.split("[")[:-1]]
        return Operator.parse(self.text, self.extents, dict.fromkeys(names, self.dtype))

    @property
    def unit(self) -> Intrinsic:
        """The instruction."""
        return self.unit_of(self.dtype)

    def unit_of(self, dtype: str) -> Intrinsic:
        """The instruction on operands of a dtype."""
        return unit(self.meaning, self.sizes, dtype)


def _windows(image: np.ndarray, fill: float) -> np.ndarray:
    """3×3 windows at every other place of images padded by one: n, c, p, q, window."""
    padded = np.pad(image, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    return windows.reshape(*windows.shape[:4], 9)


def _odd(values: np.ndarray) -> np.ndarray:
    """The values at odd places."""
    out = np.zeros(2 * len(values), values.dtype)
    out[1::2] = values
    return out


_POOL = "out[n,c,p,q] max= pad(a[n,c,p*2+r-1,q*2+s-1]{})"
_WINDOW = dict(n=1, c=5, p=4, q=3, r=3, s=3)
_SQUARE, _TILE = dict(i=5, j=6, k=7), dict(i1=4, i2=4, r1=4)

STATEMENTS = {
    "sum": Statement(
        "out[i] = a[i] + b[i]", {"i": 21}, "f32",
        "Dst[i1] = Src1[i1] + Src2[i1]", {"i1": 8}, np.add,
    ),
    "difference": Statement(
        "out[i,j] = a[i,j] - b[j]", {"i": 5, "j": 16}, "f64",
        "Dst[i1] = Src1[i1] - Src2[i1]", {"i1": 8}, np.subtract,
    ),
    "larger of bytes": Statement(
        "out[i] = max(a[i], b[i])", {"i": 21}, "s8",
        "Dst[i1] = max(Src1[i1], Src2[i1])", {"i1": 8}, np.maximum,
    ),
    "row maxima": Statement(
        "out[i] max= a[i,k]", {"i": 9, "k": 70}, "s8",
        "Dst[i1] max= Src1[i1,r1]", {"i1": 4, "r1": 4}, lambda a: a.max(1),
    ),
    "column minima": Statement(
        "out[j] min= a[k,j]", {"j": 9, "k": 70}, "u8",
        "Dst[i1] min= Src1[i1]", {"i1": 4}, lambda a: a.min(0),
    ),
    "row products": Statement(
        "out[i*2+1] *= a[i,k]", {"i": 5, "k": 3}, "s32",
        "Dst[i1] *= Src1[i1,r1]", {"i1": 4, "r1": 2}, lambda a: _odd(np.prod(a, 1, np.int32)),
    ),
    "longest paths": Statement(
        "out[i,j] max= a[i,k] + b[k,j]", _SQUARE, "f32",
        "Dst[i1,i2] max= Src1[i1,r1] + Src2[r1,i2]", _TILE,
        lambda a, b: (a[:, :, None] + b).max(1),
    ),
    "bottlenecks": Statement(
        "out[i,j] max= min(a[i,k], b[k,j])", _SQUARE, "u8",
        "Dst[i1,i2] max= min(Src1[i1,r1], Src2[r1,i2])", _TILE,
        lambda a, b: np.minimum(a[:, :, None], b).max(1),
    ),
    "sums of sums": Statement(
        "out[i] += a[i,k] + b[k]", {"i": 5, "k": 7}, "s32",
        "Dst[i1] += Src1[i1,r1] + Src2[i1,r1]", {"i1": 4, "r1": 4},
        lambda a, b: (a + b).sum(1, dtype=np.int32),
    ),
    # The first source lacks the reduction, and yet must be nothing beyond it.
    "sums of minima": Statement(
        "out[i] += min(a[i], b[k])", {"i": 5, "k": 7}, "s32",
        "Dst[i1] += min(Src1[i1,r1], Src2[r1,i1])", {"i1": 4, "r1": 4},
        lambda a, b: np.minimum(a[:, None], b).sum(1, dtype=np.int32),
    ),
    "pooling": Statement(
        _POOL.format(", -inf"), _WINDOW, "f32",
        "Dst[i1] max= Src1[i1]", {"i1": 4}, lambda a: _windows(a, -np.inf).max(-1),
    ),
    "pooling over zeros": Statement(
        _POOL.format(""), _WINDOW, "f32",
        "Dst[i1] max= Src1[i1]", {"i1": 4}, lambda a: _windows(a, 0).max(-1),
    ),
    "pooling of bytes": Statement(
        _POOL.format(", -128"), _WINDOW, "s8",
        "Dst[i1] max= Src1[i1,r1]", {"i1": 4, "r1": 3}, lambda a: _windows(a, -128).max(-1),
    ),
}  # fmt: skip
