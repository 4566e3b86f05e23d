"""Packed sources that kernels for CPUs fetch ahead: arrays with one column a schedule."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from amos.plan.cpu_forms import SourceForm

if TYPE_CHECKING:
    from amos.plan.cpu_blocks import CpuBlocks


class FetchBlocks:
    """The weights of following register tiles that each step of the reduction prefetches.

    Tiles that share weights fetch those of the next ones together, a piece in every step.

    Attributes:
        source: schedules: number of the source that is fetched; -1 if none is.
        tiles: schedules: number of enclosing loops with several steps that lead from one piece of
            it to another. The loops inside of these share it.
        elements: schedules: elements that one step fetches.
    """

    def __init__(self, blocks: CpuBlocks) -> None:
        self.blocks = blocks
        self.source = np.full(len(blocks), -1)
        self.tiles, self.elements = np.zeros((2, len(blocks)), dtype=np.int64)
        intrinsic, sources = blocks.structure.mapping.intrinsic, blocks.forms.sources
        if blocks.tiled:
            return
        free = np.ones(len(blocks), dtype=bool)
        if intrinsic.registers:
            # Where nearly all registers are in use LLVM would spill some for the prefetches.
            free &= blocks.registers <= intrinsic.registers - len(sources)
        for number, source in enumerate(sources):
            if source.staged.constant:
                free = free & ~self._fetch(number, source, free)

    def _fetch(self, number: int, source: SourceForm, free: np.ndarray) -> np.ndarray:
        """Fetch a source where a core's own cache cannot keep it from one call to the next."""
        blocks = self.blocks
        extents = blocks.loops.whole(source.dims)
        bits = np.prod(extents, axis=0, dtype=np.int64) * source.size_bits
        large = np.asarray(bits > 8 * blocks.limits.cache)
        loops, moves = self._surrounding_loops, self._moves(source)
        live = loops > 1
        number_of = np.arange(len(loops))[:, None]
        last = np.where(live & moves, number_of, -1).max(axis=0, initial=-1)
        sharing = live & (number_of > last)
        steps = blocks.reduce_steps
        # Hardware prefetches data that is read once, in order, as well.
        fetched = free & large & (last >= 0) & sharing.any(axis=0) & (steps > 1).any(axis=0)
        pieces = np.where(sharing, loops, 1).prod(axis=0) * steps.prod(axis=0)
        size = np.prod(self._shared_extents(source, extents), axis=0, dtype=np.int64)
        self.source[fetched] = number
        self.tiles[fetched] = (live & (number_of <= last)).sum(axis=0)[fetched]
        self.elements[fetched] = -(-size // pieces)[fetched]
        return large

    @cached_property
    def _surrounding_loops(self) -> np.ndarray:
        """Steps of the loops around the reduction, outermost first: loops × schedules.

        Ranges, the steps of one, the other outer loops, blocks.
        """
        blocks, order = self.blocks, self.blocks.loops.order
        outer = np.take_along_axis(blocks.outer, order, axis=0)
        return np.vstack(
            [
                blocks.ranges[None],
                blocks.share[None],
                np.where(blocks.loops.fused > 1, 1, outer),
                np.take_along_axis(blocks.block, order, axis=0),
            ]
        )

    def _moves(self, source: SourceForm) -> np.ndarray:
        """Return whether each loop leads to another piece of a source: bool, loops × schedules."""
        blocks = self.blocks
        loops, share = blocks.loops, blocks.share
        indexed = np.zeros(len(blocks.structure.extents) + 1, dtype=bool)
        indexed[list(source.indexed)] = True
        spatial = indexed[loops.order]
        parts = np.zeros(len(blocks), dtype=bool)
        if loops.divided is not None:
            parts = indexed[loops.divided]
        fused = np.vstack([loops.parts[None], loops.fused])
        turn = np.cumprod(fused[::-1], axis=0)[::-1]
        moving = np.vstack([parts[None], spatial]) & (fused > 1)
        # Ranges of whole turns of loops all begin at its first step, and where one step of a loop
        # takes whole ranges, the steps of a range stay in that one.
        ranges = moving & (share % turn > 0)
        steps = moving & (turn // fused % share > 0)
        several = np.stack([ranges.any(axis=0), steps.any(axis=0)])
        return np.vstack([several, spatial, spatial])

    def _shared_extents(self, source: SourceForm, extents: list[np.ndarray]) -> list[np.ndarray]:
        """Return the extents that one step of the loops that move through a source reads of it."""
        blocks = self.blocks
        moving = np.zeros(blocks.loops.extents.shape, dtype=bool)
        moving[: len(blocks.outer)] = blocks.outer * blocks.block > 1
        if blocks.loops.divided is not None:
            parts = blocks.loops.parts > 1
            moving[blocks.loops.divided[parts], np.flatnonzero(parts)] = True
        shared = []
        for staged, dim, extent in zip(source.staged.dims, source.dims, extents, strict=True):
            loops = [loop for loop, _ in dim.terms]
            # A packed dimension of one loop is divided into its register tiles.
            single = staged.dimension < 0 and loops and loops[0] < len(blocks.tile)
            piece = blocks.tile[loops[0]] if single else 1
            shared.append(np.where(moving[loops].any(axis=0), piece, extent))
        return shared
