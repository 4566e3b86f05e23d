"""Division of loops among cores, and the copies inside them.

The formulas take many schedules at once, one per column: a plan evaluates one, the model thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

import numpy as np

from amos.plan.operand import Dimension
from amos.plan.split_reduction import part_steps
from amos.plan.structure import LoopBatch, Structure


@lru_cache(maxsize=1 << 16)
def even_ranges(steps: int, cores: int) -> int:
    """Return the fewest equal ranges that load the busiest core no more than single steps do.

    >>> [even_ranges(steps, 4) for steps in (3, 8, 10, 13)]
    [3, 4, 10, 13]
    """
    small = [n for n in range(1, isqrt(steps) + 1) if steps % n == 0]
    busiest, least = -(-steps // cores), min(cores, steps)
    return next(
        ranges
        for ranges in (*small, *(steps // n for n in reversed(small)))
        if ranges >= least and -(-ranges // cores) * (steps // ranges) <= busiest
    )


@dataclass(frozen=True)
class SharedLoops:
    """Loops of many schedules, some of which are fused and divided among the cores.

    Attributes:
        order: int, spatial loops × schedules: the loop at each position, outermost first.
        fused: int, the same shape: steps of a divided position, else 1.
        extents: int, all loops × schedules: steps of a loop with its padding.
        grown: int, the same shape: steps by which a loop is padded beyond the dimensions of
            operands.
        parts: int, schedules: parts of the outermost reduction, which are divided among the cores
            before the loops; 1 if it is whole.
        divided: int, schedules: that reduction; its extent is then that of one part.
    """

    order: np.ndarray
    fused: np.ndarray
    extents: np.ndarray
    grown: np.ndarray
    parts: np.ndarray
    divided: np.ndarray | None = None

    @classmethod
    def of(
        cls, structure: Structure, batch: LoopBatch, split: np.ndarray | None = None
    ) -> SharedLoops:
        """Compute the loops of a mapping under each schedule of a batch."""
        spatial, rows, span = len(structure.spatial), len(batch), batch.span.T
        extents = np.repeat(structure.extents[:, None], rows, axis=1)
        grown = np.zeros_like(extents)
        grown[:spatial] = -extents[:spatial] % span
        padded, order = extents + grown, batch.order.T
        outer = np.take_along_axis(padded[:spatial] // span, order, axis=0)
        # Loops of one step are removed before the outermost are fused and divided.
        live = outer > 1
        fused = np.where(live & (np.cumsum(live, axis=0) <= batch.parallel), outer, 1)
        if split is None or not structure.reduce:
            return cls(order, fused, padded, grown, np.ones(rows, dtype=np.int64))
        divided = batch.reduce[:, 0]
        steps = structure.extents[divided]
        unrolls = (len(structure.reduce) == 1) & (steps % batch.unroll == 0)
        part_length = part_steps(steps, split, np.where(unrolls, batch.unroll, 1))
        padded[divided, np.arange(rows)] = part_length
        return cls(order, fused, padded, grown, -(-steps // part_length), divided)

    @property
    def steps(self) -> np.ndarray:
        """Steps that are divided among the cores: schedules."""
        shared: np.ndarray = self.fused.prod(axis=0) * self.parts
        return shared

    def ranges(self, cores: int) -> np.ndarray:
        """Return the fewest equal ranges that load the busiest core no more: schedules."""
        steps, where = np.unique(self.steps, return_inverse=True)
        return np.array([even_ranges(int(n), cores) for n in steps], dtype=np.int64)[where]

    def box_extents(self, dims: Sequence[Dimension], share: np.ndarray) -> list[np.ndarray]:
        """Return the extents of a box around all that each range reads: schedules.

        Args:
            share: consecutive fused steps of one range, which divide them all.
        """
        steps, extents = self.range_steps(share), self.whole(dims)
        for n, dim in enumerate(dims):
            reach = sum(step * (steps[loop] - 1) for loop, step in dim.terms)
            extents[n] = np.minimum(extents[n], dim.reach + 1 + reach)
        return extents

    def whole(self, dims: Sequence[Dimension]) -> list[np.ndarray]:
        """Return the extent of each dimension of a staged operand for all steps."""
        none = np.zeros(len(self.parts), dtype=np.int64)
        return [
            sum((step * self.grown[loop] for loop, step in dim.terms), none + dim.extent)
            for dim in dims
        ]

    def range_steps(self, share: np.ndarray) -> np.ndarray:
        """Return each loop's steps in the smallest box around each range: loops × schedules."""
        touched = _touched_steps(np.vstack([self.parts[None], self.fused]), share)
        steps = self.extents.copy()
        if len(self.order):
            whole = np.take_along_axis(steps, self.order, axis=0)
            np.put_along_axis(steps, self.order, whole // self.fused * touched[1:], axis=0)
        if self.divided is not None:
            steps[self.divided, np.arange(len(share))] *= touched[0]
        return steps

    def runs_whole(self, share: np.ndarray) -> np.ndarray:
        """Return whether each range runs all steps of a loop: bool, loops × schedules."""
        fused = np.vstack([self.parts[None], self.fused])
        turns = np.cumprod(fused[::-1], axis=0)[::-1]
        whole = (fused == 1) | (turns <= share)
        runs = np.ones(self.extents.shape, dtype=bool)
        np.put_along_axis(runs, self.order, whole[1:], axis=0)
        if self.divided is not None:
            runs[self.divided, np.arange(len(share))] = whole[0]
        return runs


def _touched_steps(fused: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return the steps of each fused position that a range touches, at most over all ranges.

    One box holds for all ranges, so positions inside one with several such steps count as a whole.
    """
    touched = np.empty_like(fused)
    several, inner_steps = np.zeros(len(share), dtype=bool), fused.prod(axis=0)
    for position, steps in enumerate(fused):
        inner_steps = inner_steps // steps
        started = -(-(share - np.gcd(share, inner_steps)) // inner_steps) + 1
        started = np.where(share % inner_steps == 0, share // inner_steps, started)
        touched[position] = np.where(several, steps, np.minimum(started, steps))
        several = several | (touched[position] > 1)
    return touched
