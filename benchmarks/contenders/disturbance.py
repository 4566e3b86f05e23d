"""Noticing other virtual machines that compute on the same cores.

A virtual core is often one of two hardware threads of a core. While the other one works for a
neighbour, code that saturates the units of the core takes up to twice as long, and code that waits
for memory or for its own results as long as before. Then ratios of contenders say little.
"""

from __future__ import annotations

import os
import time

import numpy as np

__all__ = ["Disturbance"]

#: Extent of a matrix product that stays in an L1 cache and on one thread.
_EXTENT = 64
#: Products of one measurement, which takes some 2 ms.
_COUNT = 200
#: Share of the best rate below which a core is disturbed.
_SHARE = 0.8


class Disturbance:
    """Compares how fast each core computes now with the fastest that was seen."""

    def __init__(self) -> None:
        self.left, self.right = np.ones((2, _EXTENT, _EXTENT), np.float32)
        self.result = np.empty_like(self.left)
        self.least_seconds = float("inf")
        for _ in range(20):
            self.present()

    def present(self) -> bool:
        """Whether some core of this process computes slowly."""
        cores = os.sched_getaffinity(0)
        try:
            seconds = [self._seconds_on(core) for core in cores]
        finally:
            os.sched_setaffinity(0, cores)
        self.least_seconds = min(self.least_seconds, *seconds)
        return max(seconds) * _SHARE > self.least_seconds

    def _seconds_on(self, core: int) -> float:
        os.sched_setaffinity(0, {core})
        np.matmul(self.left, self.right, out=self.result)
        start = time.perf_counter()
        for _ in range(_COUNT):
            np.matmul(self.left, self.right, out=self.result)
        return time.perf_counter() - start
