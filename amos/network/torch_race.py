"""A compiled PyTorch graph timed in turns with PyTorch's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

#: Rounds at least and at most, and the seconds after which no further one begins.
_LEAST, _MOST, _SECONDS = 3, 31, 0.5
#: Share of PyTorch's time that has to be saved.
_MARGIN = 0.02


@dataclass(frozen=True)
class Race:
    """Seconds of calls, in turns.

    Attributes:
        amos: of the compiled graph.
        eager: of PyTorch's own.
    """

    amos: tuple[float, ...]
    eager: tuple[float, ...]

    @property
    def wins(self) -> bool:
        """Whether the compiled graph runs: it is faster by its median, and at its best.

        Threads of PyTorch wait long for each other where other processes use the cores.
        """
        return all(least(self.amos) <= least(self.eager) * (1 - _MARGIN) for least in (median, min))

    def __str__(self) -> str:
        runs = "compiled" if self.wins else "eagerly"
        amos, eager = (median(seconds) * 1e3 for seconds in (self.amos, self.eager))
        return f"{amos:.4g} ms, PyTorch {eager:.4g} ms: runs {runs}"


def race(amos: Callable[[], Any], eager: Callable[[], Any]) -> Race:
    """Time two functions in turns."""
    seconds: dict[Callable[[], Any], list[float]] = {amos: [], eager: []}
    begin = time.perf_counter()
    for number in range(_MOST):
        if number >= _LEAST and time.perf_counter() - begin > _SECONDS:
            break
        for function, row in seconds.items():
            function()  # the caches, and threads that still spin, are the other function's
            start = time.perf_counter()
            function()
            row.append(time.perf_counter() - start)
    return Race(tuple(seconds[amos]), tuple(seconds[eager]))
