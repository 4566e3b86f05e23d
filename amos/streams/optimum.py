"""The model's optimum on a streamed unit, by branch and bound over mappings and tilings.

Mappings and tilings are visited in the order of floors, which hold for every order of tiles and
number of buffers. Once a floor is not below the best value, all that follow are excluded.

*Of the time.* Products of a tiling always take the same, and its first loads and its last store
pass while nothing else does. Transfers share the port, each takes its latency, and there are at
least as many as :meth:`Tilings.floors_of` counts. The larger of both sums is the floor.

*Of the energy.* Only traffic depends on the schedule. The floor of the product of both is the
product of their floors.

Orders that differ in loops of one tile are one order.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from amos.machine import Machine
from amos.perfmodel import total_joules
from amos.perfmodel.bound import Certificate, Optimum
from amos.plan import Candidate, Value
from amos.schedule import ScheduleSpace
from amos.streams.model import predict_streams
from amos.streams.schedule import StreamBatch
from amos.streams.tilings import Tilings

#: Schedules that are scored at once, and candidates that are returned.
_ROWS, _RETURNED = 16_384, 16
_PICO = 1e-12


def find_optimum(
    spaces: Sequence[ScheduleSpace], machine: Machine, objective: str, limit_seconds: float
) -> Optimum:
    """Find the model's best candidate.

    Args:
        spaces: of each mapping.
        machine: that streams drive.
        objective: what is minimized: ``"time"``, ``"energy"`` or ``"edp"``.
        limit_seconds: after which the best one so far is returned, with the least floor of what
            was not scored.
    """
    search = _Search(objective, time.monotonic() + limit_seconds)
    branches = sorted((_Branch(x, machine, objective) for x in spaces), key=lambda x: x.floor)
    for branch in branches:
        search.visit(branch)
    return search.optimum()


@dataclass
class _Search:
    """A search under way.

    Attributes:
        objective: what is minimized.
        end: when it has to stop, by the monotonic clock.
        best: candidates by value, negated, the worst first.
        unscored: least floor of what was neither scored nor excluded.
    """

    objective: str
    end: float
    best: list[tuple[float, int, Candidate]] = field(default_factory=list)
    unscored: float = math.inf
    mappings: int = 0
    pruned_mappings: int = 0
    tilings: int = 0
    overfull_tilings: int = 0
    pruned_tilings: int = 0
    scored: int = 0

    @property
    def value(self) -> float:
        """Of the best candidate."""
        return min((-value for value, _, _ in self.best), default=math.inf)

    def visit(self, branch: _Branch) -> None:
        """Score the schedules of a mapping whose floors are below the best value."""
        self.mappings += 1
        if branch.floor >= self.value:
            self.pruned_mappings += 1
            return
        if time.monotonic() > self.end or branch.tilings.lengths is None:
            self.unscored = min(self.unscored, branch.floor)
            return
        floors, order = branch.floors, branch.order
        self.tilings += len(floors)
        self.overfull_tilings += len(floors) - len(order)
        for which in branch.chunks():
            floor = float(floors[order[which[0]]])
            if floor >= self.value:
                self.pruned_tilings += len(order) - int(which[0])
                return
            if time.monotonic() > self.end and self.best:
                self.unscored = min(self.unscored, floor)
                return
            self._score(branch, order[which])

    def _score(self, branch: _Branch, tilings: np.ndarray) -> None:
        """Score every schedule of some tilings; keep the best feasible ones."""
        batch = branch.schedules(tilings)
        self.scored += len(batch)
        prediction = predict_streams(branch.tilings.structure, branch.machine, batch)
        joules = total_joules(prediction.accesses)
        values = _value(self.objective, prediction.seconds, joules)
        for row in np.lexsort((prediction.seconds, values)):
            value = float(values[row])
            full = len(self.best) >= _RETURNED
            if not math.isfinite(value) or (full and value >= -self.best[0][0]):
                return
            candidate = branch.candidate(batch, int(row))
            if candidate is not None:
                push = heapq.heappushpop if full else heapq.heappush
                push(self.best, (-value, -self.scored - int(row), candidate))

    def optimum(self) -> Optimum:
        """Return the best candidates."""
        ranked = sorted(self.best, key=lambda entry: (-entry[0], -entry[1]))
        value = self.value
        certificate = Certificate(
            value=value,
            least=min(value, self.unscored),
            mappings=self.mappings,
            pruned_mappings=self.pruned_mappings,
            tilings=self.tilings,
            overfull_tilings=self.overfull_tilings,
            pruned_tilings=self.pruned_tilings,
            scored=self.scored,
        )
        return Optimum(tuple(candidate for _, _, candidate in ranked), certificate)


def _value(objective: str, seconds: np.ndarray, joules: np.ndarray | None) -> np.ndarray:
    """Return the objective of schedules; infinite where tiles do not fit."""
    if objective == "time":
        return seconds
    assert joules is not None
    product = joules * seconds if objective == "edp" else joules
    return np.where(np.isfinite(seconds), product, np.inf)


class _Branch:
    """The schedules of one mapping.

    Args:
        space: its schedules.
        machine: that streams drive.
        objective: what is minimized.
    """

    def __init__(self, space: ScheduleSpace, machine: Machine, objective: str) -> None:
        self.space, self.machine, self._objective = space, machine, objective
        structure = space.context
        self._names = [f"tile.{loop.name}" for loop in structure.spatial]
        self._names += [f"step.{loop.name}" for loop in structure.reduce]
        domains = [[int(value) for value in self._allowed(name)] for name in self._names]
        self.tilings = Tilings(space.mapping, machine, domains)

    def _allowed(self, name: str) -> list[Value]:
        """Values of a variable that constraints on it alone leave."""
        domain = self.space.variables[name]
        return [domain[at] for at in self.space.csp.allowed[name]]

    @cached_property
    def floor(self) -> float:
        """What no schedule of the mapping falls below."""
        tilings = self.tilings
        joules = None if self._objective == "time" else np.array([tilings.joules_floor])
        return float(_value(self._objective, np.array([tilings.floor_seconds]), joules)[0])

    @cached_property
    def floors(self) -> np.ndarray:
        """What no schedule of each tiling falls below; infinite where no buffers hold it."""
        tilings = self.tilings
        seconds, joules = self._floor_seconds(), None
        if self._objective != "time":
            moved = [
                price * tilings.tiles.moved(op) * op.moved_bytes
                for price, op in zip(tilings.prices, tilings.operands, strict=True)
            ]
            joules = tilings.constant_joules + tilings.floors_of(moved) * _PICO
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
        moves = [tiles.moved(op) * op.moved_bytes / port for op in tiles.operands]
        requests = [tiles.transfers(op) * float(unit.issue + unit.latency) for op in tiles.operands]
        per_load = [a + b for a, b in zip(moves, requests, strict=True)]
        through = self.tilings.floors_of([*per_load[:-1], moves[-1]]) + per_load[-1]
        cycles = np.maximum(compute + np.sum(per_load, axis=0), through)
        return np.asarray(cycles / self.machine.clock)

    @cached_property
    def order(self) -> np.ndarray:
        """Numbers of the tilings that buffers hold, those of the least floor first."""
        ranked = np.argsort(self.floors, kind="stable")
        return np.asarray(ranked[: int(np.isfinite(self.floors).sum())])

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield places of tilings that are scored together."""
        most = len(self._orders[0]) * len(self._orders[1]) * len(self._buffers)
        step = max(1, _ROWS // most)
        for start in range(0, len(self.order), step):
            yield np.arange(start, min(start + step, len(self.order)))

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
            texts = self._allowed(name) if loops else [""]
            result.append([tuple(numbers[each] for each in str(x).split()) for x in texts])
        return result[0], result[1]

    @cached_property
    def _buffers(self) -> list[tuple[int, ...]]:
        """Numbers of tiles on chip of each operand."""
        names = [f"buffers.{op.name}" for op in self.tilings.operands]
        return [
            tuple(int(str(value)) for value in values)
            for values in itertools.product(*map(self._allowed, names))
        ]

    def schedules(self, tilings: np.ndarray) -> StreamBatch:
        """Every order and number of buffers of some tilings, equal orders once."""
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
        """Return the candidate of a row; ``None`` if a constraint excludes it."""
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
        if self.space.csp.broken({name: (at,) for name, at in positions.items()}):
            return None
        return Candidate(self.space.mapping, self.space.schedule(positions))


def _distinct(orders: Sequence[tuple[int, ...]], moving: np.ndarray) -> list[tuple[int, ...]]:
    """Return the first of all orders of loops that agree in those with several tiles."""
    first: dict[tuple[int, ...], tuple[int, ...]] = {}
    for order in orders:
        first.setdefault(tuple(n for n in order if moving[n]), order)
    return [*first.values()]
