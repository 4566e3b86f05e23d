"""The loops of one group of cores: how often each runs, and what data it touches."""

from __future__ import annotations

import numpy as np

from amos.perfmodel.structure import Dimension, LoopBatch, Operand, Structure

__all__ = ["Part", "column"]


def column(values: np.ndarray, number: np.ndarray) -> np.ndarray:
    """One column of each row."""
    picked: np.ndarray = values[np.arange(len(values)), number]
    return picked


class Part:
    """The nest of one group of cores, after the parallel loops were shared out.

    Positions run from the outermost spatial loop to the innermost reduction, with
    the blocks of the spatial loops between the two if there are any; depth ``d``
    means: inside are the loops from position ``d`` on, and always the register
    tiles. At the last depth only these are inside. Tiles that do not divide a loop
    are padded, hence the rounding up.
    """

    def __init__(
        self, structure: Structure, batch: LoopBatch, groups: np.ndarray, line: int
    ) -> None:
        self.line = line
        rows, spatial = len(batch), len(structure.spatial)
        ones = np.ones((rows, len(structure.reduce)), dtype=int)
        tile = np.concatenate([batch.tile, ones], axis=1)
        span = np.concatenate([batch.span, ones], axis=1)
        extents = np.broadcast_to(structure.extents, tile.shape)
        whole = -(-extents // np.maximum(span, 1))
        levels = [(batch.order, whole), (batch.reduce, whole)]
        if batch.block is not None:
            levels.insert(1, (batch.order, batch.block))
        self.loop = np.concatenate([loops for loops, _ in levels], axis=1)
        self.count = self.loop.shape[1]
        #: Position of the outermost reduction.
        self.begin = self.count - len(structure.reduce)
        steps = [np.take_along_axis(values, loops, axis=1) for loops, values in levels]
        outer = np.concatenate(steps, axis=1).astype(float)
        parts = groups.astype(float)
        for position in range(spatial):
            ways = np.where(batch.parallel > position, np.minimum(outer[:, position], parts), 1.0)
            outer[:, position] = np.ceil(outer[:, position] / ways)
            parts = np.ceil(parts / ways)
        self.outer, self.tile = outer, tile.astype(float)
        #: trips[:, d]: how often what is at depth d runs.
        self.trips = np.concatenate([np.ones((rows, 1)), np.cumprod(outer, axis=1)], axis=1)
        self._cover: dict[int, np.ndarray] = {}
        self._footprint: dict[str, np.ndarray] = {}
        self._traffic: dict[tuple[str, bool], np.ndarray] = {}

    def cover(self, loop: int) -> np.ndarray:
        """Steps of a loop that are inside each depth: rows × depths."""
        if loop not in self._cover:
            steps = np.where(self.loop == loop, self.outer, 1.0)
            inside = np.ones((len(steps), self.count + 1))
            inside[:, :-1] = np.cumprod(steps[:, ::-1], axis=1)[:, ::-1]
            self._cover[loop] = inside * self.tile[:, loop, None]
        return self._cover[loop]

    def footprint(self, operand: Operand) -> np.ndarray:
        """Bytes that one execution of each depth touches: rows × depths."""
        if operand.name not in self._footprint:
            self._footprint[operand.name] = self._touched(operand)
        return self._footprint[operand.name]

    def elements(self, operand: Operand) -> np.ndarray:
        """Elements that one execution of each depth touches: rows × depths."""
        total = np.ones((len(self.outer), self.count + 1))
        for dim in operand.dims:
            total *= self._along(dim)
        return total

    def _touched(self, operand: Operand) -> np.ndarray:
        total = self.elements(operand) * operand.size
        if operand.leading and 0 < operand.fragment < self.line:
            # Less than a line is brought in as a whole line.
            run = operand.fragment * self._along(operand.dims[operand.leading - 1])
            total *= np.maximum(1.0, self.line / run)
        return total

    def _along(self, dim: Dimension) -> np.ndarray | float:
        """Positions of one dimension that each depth touches."""
        if not dim.terms:
            return float(min(dim.reach + 1, dim.points, dim.extent))
        reach: np.ndarray | float = float(dim.reach + 1)
        points: np.ndarray | float = float(dim.points)
        for loop, c in dim.terms:
            steps = self.cover(loop)
            reach = reach + c * (steps - 1)
            points = points * steps
        most: np.ndarray = np.minimum(np.minimum(reach, points), dim.extent)
        return most

    def traffic(self, operand: Operand, *, windows: bool) -> np.ndarray:
        """Bytes to move so that each depth always finds the operand inside.

        A loop that does not index the operand finds it where it is. With
        ``windows``, the steps of the nearest loop that does index it share what
        their windows have in common.
        """
        key = operand.name, windows
        if key not in self._traffic:
            self._traffic[key] = self._moved(operand, windows)
        return self._traffic[key]

    def _moved(self, operand: Operand, windows: bool) -> np.ndarray:
        footprint = self.footprint(operand)
        total = np.empty_like(footprint)
        total[:, 0] = footprint[:, 0]
        indexed = np.zeros(self.count, dtype=bool)
        indexed[list(operand.indexed)] = True
        before = np.full(len(footprint), -1)
        for position in range(self.count):
            moves = indexed[self.loop[:, position]] & (self.outer[:, position] > 1)
            before = np.where(moves, position, before)
            at = np.maximum(before, 0)
            if windows:
                whole = column(footprint, at)
                times = column(self.trips, at)
            else:
                whole = footprint[:, position + 1]
                times = column(self.trips, at + 1)
            once = footprint[:, position + 1]
            total[:, position + 1] = np.where(before < 0, once, whole * times)
        return total
