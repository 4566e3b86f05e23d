"""The model's optimum on a streamed unit, by branch and bound over mappings and tilings.

Mappings and tilings are visited in the order of floors, which hold for every order of tiles and
number of buffers. Once a floor is not below the best value, all later ones are excluded.

*Of the time.* Products of a tiling always take the same, and its first loads and its last store
pass while nothing else does. Transfers share the port, each takes its latency, and there are at
least as many as :meth:`Tilings.floors_of` counts. The larger of both sums is the floor.

*Of the energy.* Only traffic depends on the schedule. The floor of the product of both is the
product of their floors.

Orders that differ in loops of one tile are one order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np

from amos.machine import Machine
from amos.perfmodel import total_joules
from amos.perfmodel.bound import Optimum
from amos.perfmodel.branch_and_bound import BranchAndBound
from amos.plan import Candidate, Value
from amos.schedule import ScheduleSpace
from amos.streams.model import predict_streams
from amos.streams.schedule import StreamBatch
from amos.streams.tilings import Tilings

#: Schedules that are scored at once.
_ROWS = 16_384
_PICO = 1e-12


def find_optimum(
    spaces: Sequence[ScheduleSpace], machine: Machine, objective: str, limit_seconds: float
) -> Optimum:
    """Find the model's best candidate.

    Args:
        objective: what is minimized: ``"time"``, ``"energy"`` or ``"edp"``.
        limit_seconds: after which the best one so far is returned, with the least floor of what
            was not scored.
    """
    branches = (_Branch(space, machine, objective) for space in spaces)
    return _Search(objective, limit_seconds).find(branches)


class _Search(BranchAndBound["_Branch"]):
    """A search of candidates by an objective."""

    def __init__(self, objective: str, limit_seconds: float) -> None:
        super().__init__(limit_seconds)
        self._objective = objective

    def score(self, branch: _Branch, tilings: np.ndarray) -> None:
        """Score every schedule of some tilings; keep the best feasible ones."""
        batch = branch.schedules(tilings)
        prediction = predict_streams(branch.tilings.structure, branch.machine, batch)
        joules = total_joules(prediction.accesses)
        values = _value(self._objective, prediction.seconds, joules)
        order = np.lexsort((prediction.seconds, values))
        self.keep(values, order, partial(branch.candidate, batch))


def _value(objective: str, seconds: np.ndarray, joules: np.ndarray | None) -> np.ndarray:
    """Return the objective of schedules; infinite where tiles do not fit."""
    if objective == "time":
        return seconds
    assert joules is not None
    product = joules * seconds if objective == "edp" else joules
    return np.where(np.isfinite(seconds), product, np.inf)


class _Branch:
    """The schedules of one mapping on a machine that streams drive."""

    def __init__(self, space: ScheduleSpace, machine: Machine, objective: str) -> None:
        self.space, self.machine, self._objective = space, machine, objective
        structure = space.context
        self._names = [f"tile.{loop.name}" for loop in structure.spatial]
        self._names += [f"step.{loop.name}" for loop in structure.reduce]
        domains = [[int(value) for value in self._select_values(name)] for name in self._names]
        self.tilings = Tilings(space.mapping, machine, domains)

    def _select_values(self, name: str) -> list[Value]:
        """Return the values of a variable that satisfy the constraints on it alone."""
        domain = self.space.variables[name]
        return [domain[at] for at in self.space.csp.allowed[name]]

    @cached_property
    def floor(self) -> float:
        tilings = self.tilings
        joules = None if self._objective == "time" else np.array([tilings.joules_floor])
        return float(_value(self._objective, np.array([tilings.floor_seconds]), joules)[0])

    @cached_property
    def floors(self) -> np.ndarray:
        """Lower bound of each tiling's schedules; infinite where no buffers hold it."""
        tilings = self.tilings
        seconds, joules = self._floor_seconds(), None
        if self._objective != "time":
            amounts = [
                price * tilings.tiles.dram_fragments(op) * op.moved_bytes
                for price, op in zip(tilings.prices, tilings.operands, strict=True)
            ]
            joules = tilings.constant_joules + tilings.floors_of(amounts) * _PICO
        values = np.maximum(_value(self._objective, seconds, joules), self.floor)
        return np.where(tilings.fits, values, np.inf)

    def _floor_seconds(self) -> np.ndarray:
        tiles, unit = self.tilings.tiles, self.machine.stream
        assert unit is not None
        port = self.machine.levels[-1].read_bandwidth / self.machine.clock
        starts = tiles.computes
        if unit.clears:
            starts = starts + tiles.counts[: len(self.tilings.structure.spatial)].prod(axis=0)
        products = self.tilings.seconds * self.machine.clock
        compute = products + starts * float(unit.issue + unit.drain)
        moves = [tiles.dram_fragments(op) * op.moved_bytes / port for op in tiles.operands]
        requests = [tiles.transfers(op) * float(unit.issue + unit.latency) for op in tiles.operands]
        per_load = [a + b for a, b in zip(moves, requests, strict=True)]
        through = self.tilings.floors_of([*per_load[:-1], moves[-1]]) + per_load[-1]
        cycles = np.maximum(compute + np.sum(per_load, axis=0), through)
        return np.asarray(cycles / self.machine.clock)

    @property
    def is_listed(self) -> bool:
        return self.tilings.lengths is not None

    @property
    def chunk(self) -> int:
        """Number of tilings that are scored together."""
        most = len(self._orders[0]) * len(self._orders[1]) * len(self._buffers)
        return max(1, _ROWS // most)

    @cached_property
    def _orders(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Orders of the spatial loops and of the reductions, as numbers of loops."""
        structure, count = self.tilings.structure, len(self.tilings.structure.spatial)
        result = []
        for name, loops, first in (
            ("order", structure.spatial, 0),
            ("reduce", structure.reduce, count),
        ):
            numbers = {loop.name: first + n for n, loop in enumerate(loops)}
            texts = self._select_values(name) if loops else [""]
            result.append([tuple(numbers[each] for each in str(x).split()) for x in texts])
        return result[0], result[1]

    @cached_property
    def _buffers(self) -> list[tuple[int, ...]]:
        """Numbers of tiles on chip of each operand."""
        names = [f"buffers.{op.name}" for op in self.tilings.operands]
        return [
            tuple(int(str(value)) for value in values)
            for values in itertools.product(*map(self._select_values, names))
        ]

    def schedules(self, tilings: np.ndarray) -> StreamBatch:
        """Enumerate orders and numbers of buffers of some tilings, without equal orders."""
        lengths, counts = self.tilings.lengths, self.tilings.tiles.counts
        assert lengths is not None
        columns, orders, reductions = list[int](), list[tuple[int, ...]](), list[tuple[int, ...]]()
        orders_of: dict[bytes, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
        for tiling in tilings:
            moving = counts[:, tiling] > 1
            key = moving.tobytes()
            if key not in orders_of:
                first, second = (_distinct(x, moving) for x in self._orders)
                orders_of[key] = [*itertools.product(first, second)]
            for order, reduction in orders_of[key]:
                columns.append(int(tiling))
                orders.append(order)
                reductions.append(reduction)
        rows, many = len(columns), len(self._buffers)
        spatial = len(self.tilings.structure.spatial)
        return self.tilings.batch(
            np.repeat(lengths[:, columns], many, axis=1),
            np.repeat(np.array(orders, np.int64).reshape(rows, spatial), many, axis=0),
            np.repeat(np.array(reductions, np.int64).reshape(rows, -1), many, axis=0),
            np.tile(np.array(self._buffers, np.int64), (rows, 1)),
        )

    def candidate(self, batch: StreamBatch, row: int) -> Candidate | None:
        structure = self.tilings.structure
        loops = [loop.name for loop in (*structure.spatial, *structure.reduce)]
        lengths = [*batch.tile[row], *batch.steps[row]]
        values: dict[str, Value] = dict(zip(self._names, map(int, lengths), strict=True))
        for name, order in (("order", batch.order[row]), ("reduce", batch.reduce[row])):
            if len(order):
                values[name] = " ".join(loops[n] for n in order)
        buffers = zip(self.tilings.operands, batch.buffers[row], strict=True)
        values |= {f"buffers.{op.name}": int(count) for op, count in buffers}
        positions = {name: self.space.variables[name].index(x) for name, x in values.items()}
        for name in self.space.variables:
            positions.setdefault(name, 0)
        if self.space.csp.find_violated({name: (at,) for name, at in positions.items()}):
            return None
        return Candidate(self.space.mapping, self.space.schedule(positions))


def _distinct(orders: Sequence[tuple[int, ...]], moving: np.ndarray) -> list[tuple[int, ...]]:
    """Return the first of all orders of loops that agree in those with several tiles."""
    first: dict[tuple[int, ...], tuple[int, ...]] = {}
    for order in orders:
        first.setdefault(tuple(n for n in order if moving[n]), order)
    return [*first.values()]
