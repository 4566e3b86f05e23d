"""Two programs that compute the same, timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

#: Rounds at least and at most, and the seconds after which no further one begins.
_LEAST, _MOST, _SECONDS = 3, 31, 0.5
#: Rounds after which a race ends in which all calls of one program were faster.
_CLEAR = 5
#: The most of both where medians and best times disagree.
_DOUBT_MOST, _DOUBT_SECONDS = 310, 2.0
#: Share of the reference's time that AMOS has to save.
_MARGIN = 0.02


@dataclass(frozen=True)
class Race:
    """Seconds of calls of AMOS, and of the program that it replaces, in turns."""

    amos: tuple[float, ...]
    reference: tuple[float, ...]

    @property
    def wins(self) -> bool:
        """Whether AMOS is faster by its median, and at its best.

        Medians of busy machines include long waits of threads for each other.
        """
        return all(self._verdicts)

    @property
    def in_doubt(self) -> bool:
        """Whether AMOS is faster by one of the two and not by the other."""
        return any(self._verdicts) and not self.wins

    @property
    def is_clear(self) -> bool:
        """Whether the slowest call of one program was faster than the fastest of the other."""
        wins = max(self.amos) <= min(self.reference) * (1 - _MARGIN)
        return len(self.amos) >= _CLEAR and (wins or max(self.reference) < min(self.amos))

    @property
    def _verdicts(self) -> list[bool]:
        return [of(self.amos) <= of(self.reference) * (1 - _MARGIN) for of in (median, min)]

    @property
    def medians(self) -> tuple[float, float]:
        """Seconds of both."""
        return median(self.amos), median(self.reference)


def race(amos: Callable[[], Any], reference: Callable[[], Any]) -> Race:
    """Time two functions in turns, for longer where the first rounds leave the winner in doubt."""
    rows: list[tuple[float, float]] = []
    result = Race((), ())
    for most, seconds in ((_MOST, _SECONDS), (_DOUBT_MOST, _DOUBT_SECONDS)):
        begin = time.perf_counter()
        while len(rows) < _LEAST or (len(rows) < most and time.perf_counter() - begin <= seconds):
            rows.append((_time_call(amos), _time_call(reference)))
            result = Race(*zip(*rows, strict=True))
            if result.is_clear:
                break
        if not result.in_doubt:
            break
    return result


def _time_call(function: Callable[[], Any]) -> float:
    function()  # warms the caches, and outlasts spinning threads of the function before
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
