"""Two programs that compute the same, timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

#: Rounds at least and at most, and the seconds after which no further one begins.
_LEAST, _MOST, _SECONDS = 3, 31, 0.5
#: Share of the other's time that has to be saved.
_MARGIN = 0.02


@dataclass(frozen=True)
class Race:
    """Seconds of calls, in turns.

    Attributes:
        amos: of AMOS.
        other: of the program that it replaces.
    """

    amos: tuple[float, ...]
    other: tuple[float, ...]

    @property
    def wins(self) -> bool:
        """Whether AMOS is faster by its median, and at its best.

        Threads wait long for each other where other processes use the cores.
        """
        return all(least(self.amos) <= least(self.other) * (1 - _MARGIN) for least in (median, min))

    @property
    def medians(self) -> tuple[float, float]:
        """Seconds of both."""
        return median(self.amos), median(self.other)


def race(amos: Callable[[], Any], other: Callable[[], Any]) -> Race:
    """Time two functions in turns."""
    seconds: dict[Callable[[], Any], list[float]] = {amos: [], other: []}
    begin = time.perf_counter()
    for number in range(_MOST):
        if number >= _LEAST and time.perf_counter() - begin > _SECONDS:
            break
        for function, row in seconds.items():
            function()  # the caches, and threads that still spin, are the other function's
            start = time.perf_counter()
            function()
            row.append(time.perf_counter() - start)
    return Race(tuple(seconds[amos]), tuple(seconds[other]))
