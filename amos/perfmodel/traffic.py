"""The loops of one group of cores: their executions and their footprints.

Arrays have one column per schedule, so that operations on one position of the nest access
contiguous numbers. Arrays over all depths are in single precision: there are many of them, and no
model is right to seven digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from amos.plan.cpu_blocks import CpuBlocks
from amos.plan.memoizing import memoize
from amos.plan.operand import Dimension, Operand

_SINGLE = np.float32


def pick(values: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Pick one depth of each schedule: depths × schedules → schedules."""
    return pick_at(values, flat_positions(depth))


def flat_positions(depth: np.ndarray) -> np.ndarray:
    """Return the flat positions of one depth of each schedule, for :func:`pick_at`."""
    rows = len(depth)
    positions: np.ndarray = depth * rows + np.arange(rows)
    return positions


def pick_at(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Return the values at the positions of :func:`flat_positions`."""
    picked: np.ndarray = values.take(where).astype(float)
    return picked


def first_fitting_depth(sizes: np.ndarray, most: float) -> np.ndarray:
    """Return each schedule's outermost depth whose size fits ``most``; sizes shrink inward."""
    too_large = (sizes > most).sum(axis=0, dtype=np.int8)
    depth: np.ndarray = np.minimum(too_large, len(sizes) - 1).astype(np.intp)
    return depth


class LoopNestBatch:
    """The nest of each schedule before it is divided among the cores.

    Positions run from the outermost spatial loop to the innermost reduction, with
    the blocks of the spatial loops between the two if there are any; depth ``d``
    means: inside are the loops from position ``d`` on, and always the register
    tiles. At the last depth only these are inside. Tiles that do not divide a loop
    are padded, hence the rounding up; with ``cut_tiles`` blocks have as many tiles as they
    run on average.

    Attributes:
        blocks: the plans.
        structure, batch: the mapping and the schedules.
        extents: float, spatial loops × 1.
        tile: float, spatial loops × schedules: steps held in registers.
        loop: int, positions × schedules: the loop at each position.
        outer: float, positions × schedules: its steps there.
        begin: position of the outermost reduction.
        padded: float: points of all spatial loops, rounded up to whole tiles.
        order: int, spatial loops × schedules: the loop at each of the outer positions.
        edges: shares of the tiles at the end of loops that run; ``None`` if all of them do.
        parallel: float: steps that are divided among the cores.
        shared: bool, spatial loops × schedules: positions that are divided.
        parts: int: parts of the outermost reduction, each with parallel steps of its own; ``None``
            if every reduction is whole.
        region: int: depth inside one such step; 0 if nothing is divided.
        where: positions at which a loop can be.
    """

    def __init__(self, blocks: CpuBlocks, *, cut_tiles: bool = False) -> None:
        structure, batch, loops = blocks.structure, blocks.batch, blocks.loops
        self.structure, self.batch, self.blocks = structure, batch, blocks
        self.spatial, reductions = len(structure.spatial), len(structure.reduce)
        extents = structure.extents.astype(float)[:, None]
        self.extents = extents[: self.spatial]
        self.tile = _columns(batch.tile)
        padded = self.extents + loops.grown[: self.spatial]
        self.padded = padded.prod(axis=0)
        self.order, reduce = loops.order, batch.reduce.T
        whole = padded / batch.span.T
        positions, steps = [self.order], [np.take_along_axis(whole, self.order, axis=0)]
        self.shared = loops.fused > 1
        self.edges = None
        if cut_tiles and self.spatial and blocks.cuts_tiles.any():
            self.edges = Edges(self, blocks)
        if batch.block is not None:
            block = _columns(batch.block)
            if self.edges is not None:
                block = block * self.edges.tiles
            positions.append(self.order)
            steps.append(np.take_along_axis(block, self.order, axis=0))
        self.begin = self.spatial * len(positions)
        self.loop = np.concatenate([*positions, reduce])
        self.outer = np.concatenate([*steps, extents[:, 0][reduce]])
        self.count = len(self.loop)
        self.parallel = loops.steps.astype(float)
        self.parts = loops.parts if loops.divided is not None else None
        self.region = (self.shared * np.arange(1, self.spatial + 1)[:, None]).max(axis=0, initial=0)
        self.where = [range(self.begin)] * self.spatial
        self.where += [range(self.begin, self.count)] * reductions

    @cached_property
    def runs(self) -> dict[tuple[int, int], np.ndarray]:
        """(loop, position) → the schedules with the loop at that position."""
        return {(n, p): self.loop[p] == n for n, at in enumerate(self.where) for p in at}

    @memoize
    def fragments(self, operand: Operand) -> np.ndarray:
        """Count an operand's distinct fragments in one register tile, per step of the reduction."""
        return self.batch.fragments(operand).astype(float)

    def indexes(self, operand: Operand) -> np.ndarray:
        """Return whether each loop moves along some dimension of an operand: bool, loops."""
        moves = np.zeros(len(self.where), dtype=bool)
        moves[list(operand.indexed)] = True
        return moves

    def __len__(self) -> int:
        return len(self.batch)


def _columns(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.T, dtype=float)


class Edges:
    """Shares of the counted steps that run: spatial loops × schedules.

    A register tile at the end of a loop that it does not divide has code of its own for the
    remaining steps, and tiles beyond the end do not run (:mod:`amos.codegen.tir.edges`). The time
    is that of the busiest core, which is not at the end of the outermost parallel loop.

    Attributes:
        tiles: float: share of the register tiles in whole blocks.
        steps: float: share of the steps in those tiles.
    """

    def __init__(self, steps: LoopNestBatch, blocks: CpuBlocks) -> None:
        several = blocks.limits.cores > 1
        end = ~_outermost(steps) if several else np.ones_like(steps.shared)
        whole = blocks.run_tiles * blocks.tile
        self.tiles = np.where(end, whole / blocks.loops.extents[: steps.spatial], 1.0)
        self.steps = np.where(end, blocks.run_steps / whole, 1.0)

    def fragments(self, operand: Operand) -> np.ndarray:
        """Return the share of an operand's fragments that the register tiles need."""
        loops = [loop for loop in operand.indexed if loop < len(self.steps)]
        return np.asarray(self.steps[loops].prod(axis=0))


def _outermost(steps: LoopNestBatch) -> np.ndarray:
    """Return whether a loop is the outermost of the shared ones: spatial loops × schedules."""
    outermost = np.zeros_like(steps.shared)
    first = np.argmax(steps.shared, axis=0)
    loop = np.take_along_axis(steps.order, first[None], axis=0)
    np.put_along_axis(outermost, loop, steps.shared.any(axis=0, keepdims=True), axis=0)
    return outermost


class CoreNest:
    """The nest of one group of cores, after the parallel loops were divided.

    Attributes:
        steps: the nest of all cores.
        line: bytes of a cache line.
        outer: float32, positions × schedules: steps of one group.
        trips: float32, depths × schedules: executions of each depth.
    """

    def __init__(self, steps: LoopNestBatch, groups: np.ndarray | None, line: int) -> None:
        self.steps, self.line, self.count = steps, line, steps.count
        self.outer = steps.outer.astype(_SINGLE)
        if groups is not None:
            parts = groups.astype(float)
            if steps.parts is not None:
                # Parts come first; a core runs its share of them as one range.
                ways = np.minimum(steps.parts, parts)
                self.outer[steps.begin] = np.ceil(steps.outer[steps.begin] / ways)
                parts = np.ceil(parts / ways)
            # The fused steps are divided into ranges: whole inner loops, part of an outer one.
            fused = np.where(steps.shared, steps.outer[: steps.spatial], 1.0)
            share = np.ceil(fused.prod(axis=0) / parts)
            for position in reversed(range(steps.spatial)):
                mine = np.minimum(fused[position], share)
                self.outer[position] *= mine / fused[position]
                share /= mine
        self.trips = np.ones((self.count + 1, len(steps)), dtype=_SINGLE)
        np.cumprod(self.outer, axis=0, out=self.trips[1:])
        self._several = self.outer > 1

    @memoize
    def cover(self, loop: int) -> np.ndarray:
        """Return the steps of a loop inside each depth: depths × schedules."""
        where = self.steps.where[loop]
        steps = np.empty((self.count + 1, len(self.steps)), dtype=_SINGLE)
        steps[where.stop :] = self.steps.tile[loop] if loop < self.steps.spatial else 1.0
        for position in reversed(where):
            more = np.where(self.steps.runs[loop, position], self.outer[position], 1.0)
            np.multiply(steps[position + 1], more, out=steps[position])
        steps[: where.start] = steps[where.start]
        return steps

    @memoize
    def footprint(self, operand: Operand) -> np.ndarray:
        """Return the bytes that one execution of each depth touches: depths × schedules."""
        total: np.ndarray = self.elements(operand) * operand.size
        if operand.leading and 0 < operand.fragment < self.line:
            # A piece shorter than a line is loaded as a whole line.
            total *= np.maximum(1.0, self.line / self._run(operand, self.line))
        return total

    @memoize
    def elements(self, operand: Operand) -> np.ndarray:
        """Return the elements that one execution of each depth touches: depths × schedules."""
        total = np.ones((self.count + 1, len(self.steps)), dtype=_SINGLE)
        for dim in operand.dims:
            total *= self.along(dim)
        return total

    def _run(self, operand: Operand, line: int) -> np.ndarray | float:
        """Return the contiguous bytes in what each depth touches, at most up to a line."""
        last, *outer_dims = reversed(operand.dims[: operand.leading])
        along = self.along(last)
        run = operand.fragment * along
        contiguous, whole = operand.fragment * last.extent, np.asarray(along >= last.extent)
        for dim in outer_dims:
            if contiguous >= line or not whole.any():
                break
            along = self.along(dim)
            run = run * np.where(whole, along, 1.0)
            whole = whole & np.asarray(along >= dim.extent)
            contiguous *= dim.extent
        return run

    @memoize
    def along(self, dim: Dimension) -> np.ndarray | float:
        """Return the positions of one dimension that each depth touches."""
        if not dim.terms:
            return float(min(dim.reach + 1, dim.points, dim.extent))
        (loop, step), *further = dim.terms
        steps = self.cover(loop)
        points = steps * dim.points
        if further or step != dim.points or dim.points != dim.reach + 1:
            # Steps that overlap or leave gaps.
            reach = steps * step
            gaps = float(dim.reach + 1 - step)
            for loop, step in further:
                steps = self.cover(loop)
                points *= steps
                reach += steps * step
                gaps -= step
            reach += gaps
            np.minimum(points, reach, out=points)
        most: np.ndarray = np.minimum(points, dim.extent, out=points)
        return most

    @memoize
    def moves(self, operand: Operand) -> np.ndarray:
        """Return where a loop advances to another part of an operand: positions × schedules."""
        moved: np.ndarray = self.steps.indexes(operand)[self.steps.loop] & self._several
        return moved

    @memoize
    def working_set(self, operands: Sequence[Operand]) -> np.ndarray:
        """Return the bytes of all operands that each depth touches: depths × schedules."""
        first, *further = operands
        total = self.footprint(first).copy()
        for operand in further:
            total += self.footprint(operand)
        return total

    @memoize
    def traffic(self, operand: Operand, *, windows: bool) -> np.ndarray:
        """Return the bytes to move so that each depth finds the operand inside.

        A loop that does not index the operand reuses it. With ``windows``, the steps of the nearest
        loop that does index it share the overlap of their windows.

        Returns:
            depths × schedules.
        """
        footprint, moves = self.footprint(operand), self.moves(operand)
        total = np.empty_like(footprint)
        total[0] = footprint[0]
        # Of the enclosing loops that move through the operand the nearest counts: the one with the
        # most bytes over all its steps, or the most steps.
        if windows:
            np.multiply(footprint[:-1], self.trips[:-1], out=total[1:])
            total[1:] *= moves
            for position in range(self.count):
                np.maximum(total[position], total[position + 1], out=total[position + 1])
            return total
        times = np.ones_like(footprint[0])
        for position in range(self.count):
            np.maximum(times, self.trips[position + 1] * moves[position], out=times)
            np.multiply(footprint[position + 1], times, out=total[position + 1])
        return total
