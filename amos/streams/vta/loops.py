"""Loops of a tile as two loops of an instruction, and micro-operations for the others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from amos.streams.codegen.writer import Step

#: Steps that a loop of an instruction has at most (``VTA_LOOP_ITER_WIDTH``).
_ITERATIONS = 2**14 - 1


@dataclass(frozen=True)
class Arranged:
    """One instruction for a nest of loops; micro-operations × destination, source and weight."""

    outer: Step
    inner: Step
    uops: np.ndarray


@lru_cache(maxsize=1024)
def arrange_loops(loops: tuple[Step, ...], most: int, interval: int) -> Arranged | None:
    """Find the instruction with the fewest micro-operations for a nest of loops.

    Args:
        loops: in any order.
        most: micro-operations that it may have.
        interval: operations from one on an accumulator to the next one on it, at least.
    """
    steps = _merge([step for step in loops if step.length > 1])
    unit_step = Step(1, (0, 0, 0))
    # Fields of factors have no sign: loops that go down are micro-operations.
    loopable = [n for n, step in enumerate(steps) if min(step.moves) >= 0]
    best: tuple[int, Step, Step, list[Step]] | None = None
    for outer, inner in itertools.permutations([*loopable, -1, -2], 2):
        pair = [steps[n] if n >= 0 else unit_step for n in (outer, inner)]
        unrolled = [step for n, step in enumerate(steps) if n not in (outer, inner)]
        unrolled.sort(key=lambda step: not step.sums)
        count = prod(step.length for step in unrolled)
        if max(step.length for step in pair) > _ITERATIONS or count > most:
            continue
        if _accumulator_interval([*pair, *unrolled]) >= interval and (
            best is None or count < best[0]
        ):
            best = (count, pair[0], pair[1], unrolled)
    if best is None:
        return None
    uops = np.zeros((1, 3), np.int32)
    for step in best[3]:
        moved = np.arange(step.length)[:, None] * np.array(step.moves)
        uops = (uops[:, None] + moved).reshape(-1, 3).astype(np.int32)
    return Arranged(best[1], best[2], uops)


def _accumulator_interval(order: Sequence[Step]) -> float:
    """Count the operations between two on one accumulator, in a nest."""
    between = 1
    for step in reversed(order):
        if step.sums and step.length > 1:
            return between
        between *= step.length
    return float("inf")


def _merge(steps: list[Step]) -> list[Step]:
    """Merge loops of which one continues where the other ends."""
    for a, b in itertools.permutations(range(len(steps)), 2):
        outer, inner = steps[a], steps[b]
        if outer.sums == inner.sums and outer.moves == tuple(inner.length * m for m in inner.moves):
            remaining = [step for n, step in enumerate(steps) if n not in (a, b)]
            return _merge([*remaining, inner._replace(length=outer.length * inner.length)])
    return steps
