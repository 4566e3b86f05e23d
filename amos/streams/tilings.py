"""All tilings of a mapping on a streamed unit, and the least traffic of their schedules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from amos.machine import Machine
from amos.mapping import Mapping
from amos.perfmodel.energy import level_of
from amos.plan.structure import Structure
from amos.schedule.rules import tile_sizes
from amos.streams.accesses import count_accesses
from amos.streams.operand import StreamOperand
from amos.streams.schedule import StreamBatch
from amos.streams.tiles import StreamTiles, call_cycles, independent_dims

#: Most tilings of a mapping to list; with more, its floor is its bound.
_TILINGS = 1_000_000
#: Rows, an order and buffers of a tiling each, that are evaluated at once, and in all.
_ROWS, _MOST_ROWS = 20_000, 100_000
_PICO = 1e-12


@dataclass(frozen=True)
class Least:
    """The least weighted traffic of a mapping, and whether a schedule reaches it."""

    amount: float
    reached: bool


class Tilings:
    """All tilings of a mapping, with the traffic of each.

    Amounts are bytes from and to DRAM, each times the weight of its operand.

    Args:
        machine: that streams drive, with a rate of its intrinsic.
        domains: sizes of tiles of each loop, spatial loops first; by default all that matter.
    """

    def __init__(
        self, mapping: Mapping, machine: Machine, domains: Sequence[Sequence[int]] | None = None
    ) -> None:
        self.structure, self.machine = Structure(mapping), machine
        self._domains = domains
        unit = machine.stream
        assert unit is not None
        spatial = prod(x.extent for x in self.structure.spatial)
        cycles = self.structure.nest.calls * call_cycles(self.structure, machine)
        self.seconds = (cycles + (spatial if unit.clears else 0)) / machine.clock
        self._smallest = self.batch(np.ones((self._loop_count, 1), np.int64))
        self.operands = StreamTiles(self.structure, self._smallest).operands
        self.ones = (1.0,) * len(self.operands)

    @property
    def _loop_count(self) -> int:
        return len(self.structure.spatial) + len(self.structure.reduce)

    def floor(self, weights: Sequence[float]) -> float:
        """Weigh the traffic of moving every touched element once."""
        return sum(w * size for w, size in zip(weights, self._touched, strict=True))

    @property
    def floor_seconds(self) -> float:
        """Seconds of the calls, or of all elements that are touched through the port."""
        port = self.machine.levels[-1].read_bandwidth
        return max(self.seconds, self.floor(self.ones) / port)

    @cached_property
    def _touched(self) -> list[float]:
        """Bytes of each operand in DRAM that some call reads or writes."""
        return [float(self._fragments(op) * op.moved_bytes) for op in self.operands]

    def _fragments(self, operand: StreamOperand) -> int:
        """Count touched fragments; among dimensions that share a loop only the longest counts."""
        loops = (*self.structure.spatial, *self.structure.reduce)
        extents = {loop.name: loop.extent for loop in loops}
        counts = []
        for group in independent_dims(operand):
            sizes = []
            for dim in group:
                at = np.array([dim.index.constant])
                for name, step in dim.index.terms:
                    at = np.unique(np.add.outer(at, step * np.arange(extents.get(name, 1))))
                sizes.append(int(((at >= 0) & (at < dim.extent)).sum()))
            counts.append(max(sizes))
        return prod(counts)

    @cached_property
    def prices(self) -> tuple[float, ...]:
        """Picojoules of a byte of each operand on its way between DRAM and its buffer."""
        dram, prices = self.machine.levels[-1], []
        for number, op in enumerate(self.operands):
            level = level_of(op.pad, self.machine)
            assert level is not None
            stored = number == len(self.operands) - 1
            # Results are read from their buffer in full width, equally often in every schedule.
            into = 0.0 if stored else level.write_pj_per_byte or 0.0
            transfer = dram.write_pj_per_byte if stored else dram.read_pj_per_byte
            prices.append((transfer or 0.0) + into)
        return tuple(prices)

    @cached_property
    def constant_joules(self) -> float:
        """Joules of products and of the accesses of calls, in any schedule."""
        tiles = StreamTiles(self.structure, self._smallest)
        nothing = [np.zeros(1) for _ in self.operands]
        rows = count_accesses(tiles, self.machine, nothing)
        return sum(float(row.joules[0]) for row in rows if row.joules is not None)

    @property
    def joules_floor(self) -> float:
        """Joules if every element that is touched is moved once."""
        return self.constant_joules + self.floor(self.prices) * _PICO

    def least_joules(self, stop: float) -> Least:
        """Find the least joules of any schedule; infinite if not below ``stop``."""
        least = self.least(self.prices, (stop - self.constant_joules) / _PICO)
        return Least(self.constant_joules + least.amount * _PICO, least.reached)

    def least(self, weights: tuple[float, ...], stop: float, *, enough: float = 0.0) -> Least:
        """Find the least weighted traffic of any schedule.

        Args:
            stop: amounts from here on are returned as infinite.
            enough: an amount up to this is returned, even if it is not the least.
        """
        lengths = self.lengths
        if lengths is None:
            return Least(self.floor(weights), False)
        tiles = self.tiles
        amounts = [
            weight * tiles.dram_fragments(op) * op.moved_bytes
            for weight, op in zip(weights, tiles.operands, strict=True)
        ]
        floors = np.where(self.fits, self.floors_of(amounts), np.inf)
        order = np.argsort(floors, kind="stable")[: int(self.fits.sum())]
        if len(order) and self._choices > _MOST_ROWS:
            return Least(float(floors[order[0]]), False)
        best, rows = stop, 0
        step = max(1, _ROWS // max(1, self._choices))
        for start in range(0, len(order), step):
            which = order[start : start + step]
            if floors[which[0]] >= best or best <= enough:
                break
            if rows > _MOST_ROWS:
                return Least(float(floors[which[0]]), False)
            batch = self._combine(lengths[:, which])
            repeated = [np.repeat(amount[which], self._choices) for amount in amounts]
            best, rows = min(best, self._least_of(batch, repeated)), rows + len(batch)
        return Least(best if best < stop else math.inf, True)

    @cached_property
    def tiles(self) -> StreamTiles:
        """The tiles of every tiling, in the order of :attr:`lengths`."""
        assert self.lengths is not None
        return StreamTiles(self.structure, self.batch(self.lengths))

    @cached_property
    def fits(self) -> np.ndarray:
        """Whether each tiling fits with one buffer for each operand."""
        overfull: np.ndarray = np.any(list(self.tiles.find_overfull(self.machine).values()), axis=0)
        return ~overfull

    def floors_of(self, amounts: Sequence[np.ndarray]) -> np.ndarray:
        """Bound each tiling's traffic from below, by the amounts of each operand's transfers."""
        tiles, spatial = self.tiles, range(len(self.structure.spatial))
        visits = tiles.counts[: len(spatial)].prod(axis=0)
        once, again = [], []
        for op in tiles.operands:
            moving = tiles.loops_along(op)
            sums = tiles.counts[[x for x in moving if x not in spatial]].prod(axis=0)
            outer = tiles.counts[[x for x in moving if x in spatial]].prod(axis=0)
            once.append(sums * np.where(sums > self._tiles_on_chip(op), visits, outer))
            again.append(sums * visits)
        base = np.sum([n * amount for n, amount in zip(once, amounts, strict=True)], axis=0)
        floors = np.full(len(visits), np.inf)
        for loop in spatial:
            floor = np.zeros(len(visits))
            for op, few, many, amount in zip(tiles.operands, once, again, amounts, strict=True):
                moves = loop in tiles.loops_along(op)
                full = moves & (tiles.counts[loop] > self._tiles_on_chip(op))
                floor = floor + amount * np.where(full, many, few)
            floors = np.where(tiles.counts[loop] > 1, np.minimum(floors, floor), floors)
        return np.asarray(np.where(np.isfinite(floors), floors, base))

    @staticmethod
    def _tiles_on_chip(operand: StreamOperand) -> int:
        """Return the most tiles of an operand that are on chip."""
        return 2 if operand.pad.double else 1

    def _least_of(self, batch: StreamBatch, amounts: Sequence[np.ndarray]) -> float:
        """Find the least weighted traffic of a batch's schedules that fit."""
        tiles = StreamTiles(self.structure, batch)
        fits = ~np.any(list(tiles.find_overfull(self.machine).values()), axis=0)
        loads = [tiles.loads(number) for number in range(len(amounts))]
        amount = np.sum([n * weight for n, weight in zip(loads, amounts, strict=True)], axis=0)
        return float(np.where(fits, amount, np.inf).min())

    @cached_property
    def lengths(self) -> np.ndarray | None:
        """Steps of each loop in one tile: loops × tilings; ``None`` if there are too many."""
        domains, most = self._domains, max(op.depth for op in self.operands)
        if domains is None:
            domains = [
                tile_sizes(loop.extent, most, divisors=False)
                for loop in (*self.structure.spatial, *self.structure.reduce)
            ]
        if (count := prod(map(len, domains))) > _TILINGS:
            return None
        grid = np.array(np.meshgrid(*domains, indexing="ij"), np.int64)
        return grid.reshape(self._loop_count, count)

    @cached_property
    def _orders(self) -> tuple[np.ndarray, np.ndarray]:
        """Orders of the spatial loops and of the reductions: orders × loops, pairs of both."""
        spatial = len(self.structure.spatial)
        loops = range(spatial), range(spatial, self._loop_count)
        pairs = list(itertools.product(*(itertools.permutations(each) for each in loops)))
        first = np.array([a for a, _ in pairs], np.int64).reshape(len(pairs), spatial)
        second = np.array([b for _, b in pairs], np.int64).reshape(len(pairs), -1)
        return first, second

    @cached_property
    def _buffers(self) -> np.ndarray:
        """Numbers of tiles on chip of each operand: choices × operands."""
        sizes = [(1, 2) if op.pad.double else (1,) for op in self.operands]
        return np.array(list(itertools.product(*sizes)), np.int64)

    @property
    def _choices(self) -> int:
        spatial = len(self.structure.spatial)
        orders = math.factorial(spatial) * math.factorial(self._loop_count - spatial)
        return orders * len(self._buffers)

    def _combine(self, lengths: np.ndarray) -> StreamBatch:
        """Combine tilings with every order and number of buffers."""
        orders, buffers = self._orders, self._buffers
        tilings, many = lengths.shape[1], len(orders[0])
        columns = np.repeat(lengths, self._choices, axis=1)
        which = np.tile(np.repeat(np.arange(many), len(buffers)), tilings)
        rows = np.tile(np.arange(len(buffers)), tilings * many)
        return self.batch(columns, orders[0][which], orders[1][which], buffers[rows])

    def batch(
        self,
        lengths: np.ndarray,
        order: np.ndarray | None = None,
        reduce: np.ndarray | None = None,
        buffers: np.ndarray | None = None,
    ) -> StreamBatch:
        """Make tilings a batch, by default in the order of the loops and with one buffer."""
        rows, spatial = lengths.shape[1], len(self.structure.spatial)
        loops = np.tile(np.arange(self._loop_count), (rows, 1))
        ones = np.ones(rows, np.int64)
        return StreamBatch(
            tile=lengths[:spatial].T,
            order=loops[:, :spatial] if order is None else order,
            reduce=loops[:, spatial:] if reduce is None else reduce,
            parallel=ones,
            unroll=ones,
            ahead=np.zeros((rows, len(self.structure.choices)), np.bool_),
            steps=lengths[spatial:].T,
            buffers=np.ones((rows, len(self.structure.operands)), np.int64)
            if buffers is None
            else buffers,
        )
