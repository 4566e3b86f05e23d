"""How often a padded index stays inside its tensor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from amos.ir import Affine

__all__ = ["share_inside"]

#: Values of an index that are looked at one by one; of more, so many at equal distances.
_LOOKED_AT = 1 << 16


def share_inside(index: Affine, extents: Mapping[str, int], size: int) -> float:
    """Share of the points of its loops at which an index is in ``range(size)``, 0 to 1.

    The longest loop is counted, not walked.

    >>> share_inside(Affine.of({"p": 1, "r": 1}, -1), {"p": 4, "r": 3}, 4)
    0.8333333333333334
    """
    *others, longest = sorted(index.terms, key=lambda term: extents[term[0]]) or [("", 0)]
    at = np.array([index.constant], dtype=np.int64)
    for name, step in others:
        most = max(2, _LOOKED_AT // at.size)
        places = np.arange(extents[name]) if extents[name] <= most else np.linspace(
            0, extents[name] - 1, most).astype(np.int64)  # fmt: skip
        at = (at[:, None] + step * places).ravel()
    name, step = longest
    if not step:
        return float(np.mean((at >= 0) & (at < size)))
    if step < 0:  # the same points from the other end
        at, step = at + step * (extents[name] - 1), -step
    first, last = (np.clip(-(-(edge - at) // step), 0, extents[name]) for edge in (0, size))
    return float((last - first).sum(dtype=float) / (at.size * extents[name]))
