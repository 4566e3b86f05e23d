"""Task mappings drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from hypothesis import strategies as st

from amos.ir.tasks import Index, TaskMapping, custom, repeat, spatial


def permuted(shape: Sequence[int], workers: int, seed: int) -> TaskMapping:
    """A custom mapping that does the tasks in some order of its own."""
    total = prod(shape)
    step = next(n for n in range(1 + seed % total, 2 * total + 2) if np.gcd(n, total) == 1)
    turns = total // workers

    def task(worker: Index, turn: Index) -> list[Index]:
        place = (worker * turns + turn) * step % total
        return [place // prod(shape[d + 1 :]) % n for d, n in enumerate(shape)]

    return custom(shape, workers, task)


@st.composite
def task_mappings(draw: st.DrawFn, dimensions: int) -> TaskMapping:
    """One of the three kinds, with nine tasks at most in two dimensions."""
    shape = draw(st.lists(st.integers(1, 3), min_size=dimensions, max_size=dimensions))
    kind = draw(st.sampled_from(["repeat", "spatial", "custom"]))
    if kind == "custom":
        divisors = [n for n in range(1, prod(shape) + 1) if prod(shape) % n == 0]
        return permuted(shape, draw(st.sampled_from(divisors)), draw(st.integers(0, 99)))
    return repeat(*shape) if kind == "repeat" else spatial(*shape)
