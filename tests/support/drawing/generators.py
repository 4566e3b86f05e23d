"""NumPy generators whose choices Hypothesis draws, repeats and shrinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

__all__ = ["DrawnGenerator", "generators"]

#: Steps of a random number between 0 and 1.
_STEPS = 1 << 20


class DrawnGenerator(np.random.Generator):
    """A generator whose scalars and orders are drawn one by one; arrays follow from a drawn seed.

    Random numbers shrink towards 1, so that what a share of the cases has is absent.

    Args:
        draw: draws an integer between two, both included.
    """

    def __new__(cls, draw: Callable[[int, int], int]) -> DrawnGenerator:
        return super().__new__(cls, np.random.PCG64(0))  # type: ignore[call-arg]

    def __init__(self, draw: Callable[[int, int], int]) -> None:
        super().__init__(np.random.PCG64(draw(0, (1 << 32) - 1)))
        self._draw = draw

    def integers(
        self, low: Any, high: Any = None, size: Any = None, dtype: Any = int, endpoint: bool = False
    ) -> Any:
        if size is not None or np.ndim(low) or np.ndim(high):
            return super().integers(low, high, size, dtype, endpoint)
        first, last = (0, low) if high is None else (low, high)
        return np.dtype(dtype).type(self._draw(int(first), int(last) - (not endpoint)))

    def random(self, size: Any = None, *more: Any, **options: Any) -> Any:
        if size is not None:
            return super().random(size, *more, **options)
        return 1 - (self._draw(0, _STEPS - 1) + 1) / _STEPS

    def choice(self, a: Any, size: Any = None, *more: Any, p: Any = None, **options: Any) -> Any:
        if size is not None:
            return super().choice(a, size, *more, p=p, **options)  # type: ignore[call-overload]
        values = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
        if p is None:
            return values[self._draw(0, len(values) - 1)]
        passed = np.cumsum(p) <= self._draw(0, _STEPS - 1) / _STEPS
        return values[min(int(passed.sum()), len(values) - 1)]

    def shuffle(self, x: Any, axis: int = 0) -> None:
        for last in range(len(x) - 1, 0, -1):
            at = last - self._draw(0, last)
            x[at], x[last] = x[last], x[at]

    def permutation(self, x: Any, axis: int = 0) -> Any:
        values = np.arange(x) if np.ndim(x) == 0 else np.asarray(x)
        order = list(range(len(values)))
        self.shuffle(order)
        return values[order]


def generators() -> st.SearchStrategy[DrawnGenerator]:
    """Generators for whatever takes one of NumPy's."""
    return st.randoms(use_true_random=False).map(lambda source: DrawnGenerator(source.randint))
