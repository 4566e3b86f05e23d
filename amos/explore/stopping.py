"""When an exploration ends: after so many trials, seconds, or trials without progress."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from amos.errors import ExploreError
from amos.explore.objective import Trial

__all__ = ["Stopping"]

#: A trial is progress if it is faster by this share.
_PROGRESS = 1e-3


@dataclass(frozen=True)
class Stopping:
    """Limits of an exploration; the first one that is reached ends it.

    Attributes:
        trials: candidates to try.
        seconds: time from the start; ``None`` for no limit.
        stagnation: trials without progress; ``None`` for no limit.

    Raises:
        ExploreError: a limit is not positive.
    """

    trials: int
    seconds: float | None = None
    stagnation: int | None = None
    _start: float = field(default_factory=time.monotonic, compare=False)

    def __post_init__(self) -> None:
        _positive("trials", self.trials, whole=True)
        if self.seconds is not None:
            _positive("time_limit", self.seconds, whole=False)
        if self.stagnation is not None:
            _positive("stagnation", self.stagnation, whole=True)

    def late(self) -> bool:
        """True once the time is up."""
        return self.seconds is not None and time.monotonic() - self._start >= self.seconds

    def reached(self, trials: Sequence[Trial]) -> str:
        """Why the exploration should end now; empty if it should go on."""
        if len(trials) >= self.trials:
            return f"{self.trials} trials"
        if self.late() and trials:
            return f"{self.seconds:g} seconds"
        if self.stagnation is not None and _idle(trials) >= self.stagnation:
            return f"{self.stagnation} trials without progress"
        return ""


def _idle(trials: Sequence[Trial]) -> int:
    """Trials since the last one that was clearly faster than all before it."""
    best, last = math.inf, -1
    for number, trial in enumerate(trials):
        if trial.seconds < best * (1 - _PROGRESS):
            best, last = trial.seconds, number
    return len(trials) - 1 - last


def _positive(name: str, value: float, *, whole: bool) -> None:
    kind = int if whole else int | float
    if not isinstance(value, kind) or isinstance(value, bool) or not value > 0:
        raise ExploreError(f"{name}: expected a positive number, got {value}")
