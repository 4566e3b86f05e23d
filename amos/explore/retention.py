"""Select the mappings of a task to search on: GTA's sub-tasks (section 4.2).

A mapping is worth the inverse of the time of its best kernel, ``P ~ 1/V``; those that were
measured least are worth more, ``P' ~ (1 + beta) P``; and of ``n`` mappings the ``ceil(kappa n)``
with the largest ``P'`` are retained (equation 3), at least two: dropping one of
few mappings saves little. Where instructions compete, a sub-task is an instruction with a mapping.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

from amos.errors import ExploreError, quote

Name = TypeVar("Name", bound=Hashable)
#: Relative boost of a mapping that was measured least (``beta`` in the paper).
_BOOST = 0.1
#: Least number of retained mappings.
_FEWEST = 2


def check_retain(share: float, name: str = "retain") -> float:
    """Return a share, above 0 and at most 1, of mappings unless ``name`` says another."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ExploreError(f"{name}: expected a share above 0 and at most 1, got {quote(share)}")
    return float(share)


def probabilities(seconds: Mapping[Name, float], measured: Mapping[Name, int]) -> dict[Name, float]:
    """Return P' of each mapping; they add up to 1.

    Args:
        seconds: of the best kernel of each of at least one mapping, measured or predicted;
            infinite if none runs.
        measured: how many kernels of each were measured; 0 where it is left out.

    >>> probabilities({"a": 1.0, "b": 3.0}, {"a": 1, "b": 1})
    {'a': 0.75, 'b': 0.25}
    """
    counts = np.array([measured.get(name, 0) for name in seconds])
    rates = 1.0 / np.array([*seconds.values()])
    rates[counts == counts.min()] *= 1 + _BOOST
    total = float(rates.sum())
    if not total:
        return dict.fromkeys(seconds, 1 / len(seconds))
    return dict(zip(seconds, (rates / total).tolist(), strict=True))


def select_retained(
    seconds: Mapping[Name, float], measured: Mapping[Name, int], share: float
) -> frozenset[Name]:
    """Return the mappings to search on; arguments as of :func:`probabilities`."""
    ranked = probabilities(seconds, measured)
    best = sorted(ranked, key=lambda name: -ranked[name])
    return frozenset(best[: max(_FEWEST, math.ceil(share * len(best)))])
