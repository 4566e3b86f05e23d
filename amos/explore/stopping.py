"""When an exploration no longer gets anywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

from amos.records import Trial

__all__ = ["idle"]

#: A trial is progress if it is faster by this share.
_PROGRESS = 1e-3


def idle(trials: Sequence[Trial]) -> int:
    """Trials since the last one that was clearly faster than all before it."""
    best, last = math.inf, -1
    for number, trial in enumerate(trials):
        if trial.seconds < best * (1 - _PROGRESS):
            best, last = trial.seconds, number
    return len(trials) - 1 - last
