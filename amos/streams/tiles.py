"""Tiles of a streamed unit: how large they are, and how often they are loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from amos.errors import ScheduleError
from amos.intrinsics import Intrinsic
from amos.intrinsics.scratchpad import Scratchpad
from amos.machine.machine import Machine
from amos.plan.structure import LoopBatch, Structure
from amos.streams.operand import StreamDim, StreamOperand, stream_operands
from amos.streams.schedule import StreamBatch


def runs_streams(structure: Structure, machine: Machine | None) -> bool:
    """Return whether streams of instructions drive the intrinsic on a machine."""
    if machine is None or machine.stream is None:
        return False
    return structure.mapping.intrinsic.name in machine.peaks


def call_cycles(structure: Structure, machine: Machine) -> int:
    """Return the cycles from a call of the intrinsic to the next one."""
    return max(1, round(machine.peaks[structure.mapping.intrinsic.name].interval * machine.clock))


def list_memories(unit: Intrinsic, machine: Machine) -> tuple[Scratchpad, ...]:
    """List the memories that tiles have to fit: the buffers of an intrinsic, and memories of the
    machine that are smaller than the buffers in them.

    A scratchpad level holds the buffer of its name, or otherwise all of them.
    """
    pads = unit.scratchpads
    result = list(pads)
    for level in machine.levels:
        members = [pad for pad in pads if pad.name == level.name] or pads
        if level.scratchpad and level.capacity < sum(pad.capacity for pad in members):
            operands = tuple(name for pad in members for name in pad.operands)
            name = f"{machine.name}.{level.name}"
            result.append(Scratchpad(name, level.capacity, 1, True, operands))
    return tuple(result)


class StreamTiles:
    """The tiles of each schedule; arrays with one column a schedule.

    Attributes:
        operands: sources, then the destination.
        lengths: loops × schedules: steps of each loop in one tile, spatial loops first.
        counts: the same: tiles along each loop.

    Raises:
        ScheduleError: the schedules are for another target.
    """

    def __init__(self, structure: Structure, batch: LoopBatch) -> None:
        if not isinstance(batch, StreamBatch):
            raise ScheduleError(f"expected a StreamSchedule for {structure.mapping.intrinsic.name}")
        self.structure, self.batch = structure, batch
        self.lengths = np.concatenate([batch.tile, batch.steps], axis=1).T
        self.counts = -(-structure.extents[:, None] // self.lengths)
        self.operands = stream_operands(structure)
        self._numbers = {x.name: n for n, x in enumerate((*structure.spatial, *structure.reduce))}

    @cached_property
    def _positions(self) -> np.ndarray:
        """Position of each loop around tiles, outermost first: loops × schedules."""
        order = np.concatenate([self.batch.order, self.batch.reduce], axis=1)
        return np.argsort(order, axis=1).T

    def buffers(self, number: int) -> np.ndarray:
        """Return the number of tiles of an operand that fit on chip."""
        return self.batch.buffers[:, number]

    def lines(self, operand: StreamOperand, *, mean: bool = False) -> list[np.ndarray]:
        """Count the fragments of one tile along each dimension of an operand in DRAM.

        Args:
            mean: of all tiles, those at the ends included; otherwise of the largest.
        """
        lengths = self.structure.extents[:, None] / self.counts if mean else self.lengths
        result = []
        for dim in operand.dims:
            length = np.ones(lengths.shape[1], lengths.dtype)
            for name, step in dim.index.terms:
                if name in self._numbers:
                    length = length + abs(step) * (lengths[self._numbers[name]] - 1)
            result.append(length)
        return result

    def dram_fragments(self, operand: StreamOperand) -> np.ndarray:
        """Count the fragments of one tile that are in DRAM, on average over all tiles.

        Exact for tiles at the ends, which are shorter or reach into padding.
        """
        columns = [self._present(dims) for dims in independent_dims(operand)]
        return np.asarray(np.prod([np.ones(self.lengths.shape[1]), *columns], axis=0))

    def _present(self, dims: Sequence[StreamDim]) -> np.ndarray:
        """Count one tile's fragments along some dimensions in DRAM, on average over all tiles.

        A schedule has few lengths of the loops that move along them: each is counted once.
        """
        names = dict.fromkeys(name for dim in dims for name in dim.index.names)
        loops = [self._numbers[name] for name in names if name in self._numbers]
        keys = np.zeros(self.lengths.shape[1], np.int64)
        for n in loops:
            keys = keys * (self.structure.extents[n] + 1) + self.lengths[n]
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        means = []
        for column in self.lengths[loops][:, first].T:
            grid = np.ix_(
                *(
                    np.arange(0, self.structure.extents[n], length)
                    for n, length in zip(loops, column, strict=True)
                )
            )
            starts = dict(zip(loops, grid, strict=True))
            lengths = dict(zip(loops, column, strict=True))
            present = np.ones(tuple(axis.size for axis in grid))
            for dim in dims:
                present = present * self._present_along(dim, starts, lengths)
            means.append(present.mean())
        return np.array(means)[which.reshape(-1)]

    def _present_along(
        self, dim: StreamDim, starts: Mapping[int, np.ndarray], lengths: Mapping[int, int]
    ) -> np.ndarray:
        """Count the fragments along a dimension that are in DRAM, for each tile of its loops."""
        first: np.ndarray | int = dim.index.constant
        last: np.ndarray | int = dim.index.constant
        for name, step in dim.index.terms:
            if (number := self._numbers.get(name)) is None:
                continue
            begin = starts[number]
            end = np.minimum(begin + lengths[number], self.structure.extents[number]) - 1
            low, high = (begin, end) if step > 0 else (end, begin)
            first, last = first + step * low, last + step * high
        present = np.minimum(last, dim.extent - 1) - np.maximum(first, 0) + 1
        return np.asarray(np.maximum(present, 0))

    def fragments(self, operand: StreamOperand, *, mean: bool = False) -> np.ndarray:
        """Count the fragments of one tile, of the largest one or on average over all."""
        ones = np.ones(self.lengths.shape[1], np.float64 if mean else np.int64)
        return np.asarray(np.prod([ones, *self.lines(operand, mean=mean)], axis=0))

    def transfers(self, operand: StreamOperand) -> np.ndarray:
        """Count the instructions that move one tile, a rectangle each."""
        count = np.ones(self.lengths.shape[1], dtype=np.int64)
        # Whether a second dimension is free, and whether the next loop continues where this ends.
        free, whole = np.ones(count.shape, dtype=bool), np.ones(count.shape, dtype=bool)
        for length, dim in reversed(list(zip(self.lines(operand), operand.dims, strict=True))):
            separate = (length > 1) & ~whole
            count = np.where(separate & ~free, count * length, count)
            whole = np.where(dim.extent == 1, whole, (length == dim.extent) & (free | ~separate))
            free = free & ~separate
        return count

    def loops_along(self, operand: StreamOperand) -> list[int]:
        """List the loops that move along an operand."""
        names = {name for dim in operand.dims for name in dim.index.names}
        return sorted(self._numbers[name] for name in names if name in self._numbers)

    def loads(self, number: int) -> np.ndarray:
        """Count how often a tile of an operand is loaded, or stored."""
        return self.visits(number)[0]

    def visits(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Count how often a tile of an operand is loaded, and how many tiles stay between loads.

        The innermost loops visit so few tiles that all of them stay on chip: they are loaded again
        when an enclosing loop moves along the operand.
        """
        counts, moving = self.counts, self.loops_along(self.operands[number])
        positions = self._positions[moving]
        loads = self.computes
        staying = np.ones(counts.shape[1], dtype=np.int64)
        for cut in range(len(counts) - 1, -2, -1):
            tiles_inside = np.where(positions > cut, counts[moving], 1).prod(axis=0)
            is_enclosing = (positions <= cut) & (counts[moving] > 1)
            last = np.where(is_enclosing, positions, -1).max(axis=0, initial=-1)
            visits = np.where(self._positions <= last, counts, 1).prod(axis=0)
            fewer = (tiles_inside <= self.buffers(number)) & (tiles_inside * visits < loads)
            loads = np.where(fewer, tiles_inside * visits, loads)
            staying = np.where(fewer, tiles_inside, staying)
        return loads, staying

    def find_overfull(self, machine: Machine) -> dict[str, np.ndarray]:
        """Return for each buffer whether the tiles in it exceed it.

        With more than one bank, each tile has one to itself.
        """
        over = {}
        for pad in list_memories(self.structure.mapping.intrinsic, machine):
            own = [(n, op) for n, op in enumerate(self.operands) if op.name in pad.operands]
            sizes = [self.fragments(op) * op.bytes for _, op in own]
            counts = [self.buffers(n) for n, _ in own]
            if pad.banks == 1:
                need = sum(size * count for size, count in zip(sizes, counts, strict=True))
                over[pad.name] = np.asarray(need > pad.capacity)
            else:
                fits = np.max(sizes, axis=0) * pad.banks <= pad.capacity
                over[pad.name] = ~fits | (np.sum(counts, axis=0) > pad.banks)
            if not pad.double:
                over[pad.name] = over[pad.name] | (np.max(counts, axis=0) > 1)
        return over

    @cached_property
    def computes(self) -> np.ndarray:
        """Tiles of the whole nest: steps in which something is computed."""
        return np.asarray(self.counts.prod(axis=0))


def independent_dims(operand: StreamOperand) -> list[tuple[StreamDim, ...]]:
    """Group the dimensions of an operand so that no loop moves along two groups."""
    groups: list[tuple[StreamDim, ...]] = []
    for dim in operand.dims:
        names = set(dim.index.names)
        joined = [g for g in groups if any(names.intersection(x.index.names) for x in g)]
        groups = [g for g in groups if g not in joined]
        groups.append((*(x for g in joined for x in g), dim))
    return groups
