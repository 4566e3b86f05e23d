"""Groups of threads that compute one block of an output: their number, and each one's share.

Thread blocks of CUDA and work-groups of OpenCL divide the loops alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from amos.plan.device_schedule import DeviceBatch
from amos.plan.fragment import Fragment
from amos.plan.structure import Structure


class Groups:
    """The groups of each schedule; arrays with one column a schedule.

    A worker, which is a warp or a work-item, holds ``tile`` steps of each spatial loop in
    accumulators, and a group has ``workers`` along it. The reduction loops are one sequence of
    steps, some of which are staged together.

    Attributes:
        tile: spatial loops × schedules: fragments of a worker along each loop.
        workers: of one group.
        span: spatial loops × schedules: steps that a group makes along each loop.
        blocks: spatial loops × schedules: groups along each loop.
        padded: spatial loops × schedules: factor by which each loop became longer.
        raster: rows of groups that take turns at each column.
        staged: steps of the reduction that are staged together, no more than there are.
        sequence: stages of the whole reduction.
        loops: of each operand, numbers of the spatial loops that move along it.
        sizes: registers or bytes that a worker holds one fragment of each operand in.
    """

    def __init__(
        self,
        structure: Structure,
        batch: DeviceBatch,
        workers: np.ndarray | None,
        steps: np.ndarray,
        fragments: Sequence[Fragment],
        sizes: Sequence[int],
    ) -> None:
        self.structure, self.sizes = structure, sizes
        extents = structure.extents.astype(float)[:, None]
        spatial = len(structure.spatial)
        self.tile = batch.tile.T.astype(float)
        along = np.ones_like(self.tile) if workers is None else workers.T.astype(float)
        self.span = self.tile * along
        self.blocks = np.ceil(extents[:spatial] / self.span)
        self.workers = along.prod(axis=0)
        self.padded = self.blocks * self.span / extents[:spatial]
        self.raster = np.ones(len(batch), dtype=np.int64)
        if batch.raster is not None and spatial > 1:
            rows = np.take_along_axis(self.blocks, batch.order.T[-2:-1], axis=0)[0]
            self.raster = np.gcd(batch.raster, rows.astype(np.int64))
        reduction = float(extents[spatial:].prod())
        self.staged = np.minimum(steps, reduction)
        self.sequence = np.ceil(reduction / self.staged)
        self._reduced = [fragment.reduced for fragment in fragments]
        numbers = {loop.name: n for n, loop in enumerate(structure.spatial)}
        self.loops = [[numbers[name] for name in fragment.loops] for fragment in fragments]

    def own(self, operand: int) -> np.ndarray:
        """Count the fragments of an operand that a worker needs in one step."""
        return np.asarray(self.tile[self.loops[operand]].prod(axis=0))

    def fragments(self, operand: int) -> np.ndarray:
        """Count the fragments of a source that a group stages together."""
        count = self.span[self.loops[operand]].prod(axis=0)
        return np.asarray(count * self.staged if self._reduced[operand] else count)

    @cached_property
    def accumulators(self) -> np.ndarray:
        """Accumulators of a worker."""
        return self.own(-1)

    @cached_property
    def whole_source(self) -> np.ndarray:
        """Number of the source whose fragments of a step a worker holds all at once.

        Of the others they are loaded one by one, each used and forgotten.
        """
        return np.asarray(self._source_sizes.argmin(axis=0))

    @cached_property
    def footprint(self) -> np.ndarray:
        """Size of a worker's accumulators and fragments of sources, one source held whole."""
        return np.asarray(self.accumulators * self.sizes[-1] + self._source_sizes.min(axis=0))

    @cached_property
    def _source_sizes(self) -> np.ndarray:
        """Size of all sources if one is held whole and one fragment of each other, by it."""
        *sizes, _ = self.sizes
        return np.stack([self.own(n) * size + sum(sizes) - size for n, size in enumerate(sizes)])
