"""Noticing other virtual machines that compute on the same cores.

A virtual core is often one of two hardware threads of a core. While the other one works for a
neighbour, code that saturates the units of the core takes up to twice as long, and code that waits
for memory or for its own results as long as before. Then ratios of contenders say little.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np

__all__ = ["Disturbance", "seconds_on"]

#: Extent of a matrix product that stays in an L1 cache and on one thread.
_EXTENT = 64
#: Products of one measurement, which takes some 2 ms.
_COUNT = 200
#: Share of the best rate below which a core is disturbed.
_SHARE = 0.8


def seconds_on(core: int) -> float:
    """Time a fixed number of products on a core; restore where this process runs."""
    left, right, result = np.ones((3, _EXTENT, _EXTENT), np.float32)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        np.matmul(left, right, out=result)
        start = time.perf_counter()
        for _ in range(_COUNT):
            np.matmul(left, right, out=result)
        return time.perf_counter() - start
    finally:
        os.sched_setaffinity(0, cores)


class Disturbance:
    """Compares how fast each core computes now with the fastest that was seen.

    Args:
        measure: seconds of a fixed computation on a core, by its number.
    """

    def __init__(self, measure: Callable[[int], float] = seconds_on) -> None:
        self.measure = measure
        self.least_seconds = float("inf")

    def is_present(self) -> bool:
        """Whether some core of this process computes slowly; the first answer is always no."""
        seconds = [self.measure(core) for core in os.sched_getaffinity(0)]
        is_first = self.least_seconds == float("inf")
        self.least_seconds = min(self.least_seconds, *seconds)
        return not is_first and max(seconds) * _SHARE > self.least_seconds
