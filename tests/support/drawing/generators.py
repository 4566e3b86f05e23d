"""NumPy generators whose choices Hypothesis draws, repeats and shrinks."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

__all__ = ["DrawnGenerator", "drawn", "generators"]

#: Steps of a random number between 0 and 1.
_STEPS = 1 << 20
#: Elements of an array up to which each is drawn.
_SMALL = 16


class DrawnGenerator(np.random.Generator):
    """A generator that draws scalars, orders and small arrays; large arrays follow from a seed.

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
        if _is_large(size) or np.ndim(low) or np.ndim(high):
            return super().integers(low, high, size, dtype, endpoint)
        first, last = (0, int(low)) if high is None else (int(low), int(high))
        kind = np.dtype(dtype).type
        return _filled(size, lambda: kind(self._draw(first, last - (not endpoint))))

    def random(self, size: Any = None, *more: Any, **options: Any) -> Any:
        if _is_large(size):
            return super().random(size, *more, **options)
        return _filled(size, lambda: 1 - (self._draw(0, _STEPS - 1) + 1) / _STEPS)

    def choice(self, a: Any, size: Any = None, *more: Any, p: Any = None, **options: Any) -> Any:
        if _is_large(size) or more or options:
            return super().choice(a, size, *more, p=p, **options)  # type: ignore[call-overload]
        values = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
        shares = None if p is None else np.cumsum(p)[:-1]

        def pick() -> Any:
            if shares is None:
                return values[self._draw(0, len(values) - 1)]
            return values[int((shares <= self._draw(0, _STEPS - 1) / _STEPS).sum())]

        return _filled(size, pick)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        for last in range(len(x) - 1, 0, -1):
            at = last - self._draw(0, last)
            x[at], x[last] = x[last], x[at]

    def permutation(self, x: Any, axis: int = 0) -> Any:
        values = np.arange(x) if np.ndim(x) == 0 else np.asarray(x)
        order = list(range(len(values)))
        self.shuffle(order)
        return values[order]


def _is_large(size: Any) -> bool:
    return size is not None and prod(np.atleast_1d(size).tolist()) > _SMALL


def _filled(size: Any, draw: Callable[[], Any]) -> Any:
    """One value, or a small array of them."""
    if size is None:
        return draw()
    values = [draw() for _ in range(prod(np.atleast_1d(size).tolist()))]
    return np.array(values).reshape(size)


def generators() -> st.SearchStrategy[DrawnGenerator]:
    """Generators for whatever takes one of NumPy's."""
    return st.randoms(use_true_random=False).map(lambda source: DrawnGenerator(source.randint))


def drawn(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with generators as its argument ``rng``: the same ones each time."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        run = settings(
            max_examples=examples, derandomize=True, suppress_health_check=list(HealthCheck)
        )
        return run(given(rng=generators())(test))

    return decorate
