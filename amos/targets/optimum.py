"""The model's optimum on a CPU, by branch and bound over mappings, tiles and loops.

A schedule is decided in three steps; each decision has a lower bound of its completions:

1. register tiles, blocks, the order of the spatial loops and the number of parallel ones: calls of
   the busiest core, what it reads into registers, and a parallel region;
2. the order of the reductions and their unrolling: all that the model counts but copies;
3. copies of sources: the model itself.

Rows of a step are visited in the order of these floors, up to the best value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np

from amos.machine import Machine
from amos.perfmodel.batch import evaluate, floor_of_calls, floor_of_loops, floor_of_tiles
from amos.perfmodel.bound import Optimum
from amos.perfmodel.branch_and_bound import BranchAndBound
from amos.plan import Candidate
from amos.plan.structure import LoopBatch
from amos.schedule import ScheduleSpace

#: Most rows of a mapping's first step that are listed, and rows that are evaluated at once.
_MOST_ROWS, _ROWS = 4_000_000, 4096
#: Floors are sums in another order than the model's.
_ROUNDING = 1 - 1e-12


def find_cpu_optimum(
    spaces: Sequence[ScheduleSpace], machine: Machine, limit_seconds: float
) -> Optimum:
    """Find the model's fastest candidate.

    Args:
        limit_seconds: after which the best one so far is returned, with the least floor of the
            unscored schedules.
    """
    return _Search(machine, limit_seconds).find(_Branch(space, machine) for space in spaces)


class _Search(BranchAndBound["_Branch"]):
    """A search of candidates by time."""

    def __init__(self, machine: Machine, limit_seconds: float) -> None:
        super().__init__(limit_seconds)
        self._machine = machine

    def score(self, branch: _Branch, tilings: np.ndarray) -> None:
        """Score the completions of some rows of the first step."""
        loops = branch.complete(branch.tiles[tilings], branch.loop_choices)
        floors = branch.floor_rows(loops)
        order = np.argsort(floors, kind="stable")
        step = max(1, _ROWS // len(branch.copy_choices))
        for start in range(0, len(order), step):
            if floors[order[start]] >= self.value:
                return
            rows = branch.complete(loops[order[start : start + step]], branch.copy_choices)
            seconds = evaluate(branch.structure, self._machine, branch.batch(rows)).seconds
            ranked = np.argsort(seconds, kind="stable")
            self.keep(seconds, ranked, partial(branch.candidate, rows))


class _Branch:
    """The schedules of one mapping on a CPU as rows of positions, a column for each variable."""

    def __init__(self, space: ScheduleSpace, machine: Machine) -> None:
        self.space, self._machine = space, machine
        self.structure = space.context
        self._names = [*space.variables]
        allowed = space.csp.allowed
        early = {"order", "parallel"}
        # Parts depend on the outermost loop and the unrolling.
        if len(allowed.get("split", ())) > 1:
            early |= {"split", "reduce", "unroll"}
        late = {"vector", "copy"}
        loops = {"split", "reduce", "unroll"} - early
        steps = [
            2 if name in late or name.startswith("stage.") else 1 if name in loops else 0
            for name in self._names
        ]
        self._columns = [[n for n, step in enumerate(steps) if step == k] for k in range(3)]
        self._allowed = [np.array(allowed[name], np.int16) for name in self._names]
        self.row_count = math.prod(len(self._allowed[n]) for n in self._columns[0])

    @property
    def is_listed(self) -> bool:
        return self.row_count <= _MOST_ROWS

    @cached_property
    def floor(self) -> float:
        return floor_of_calls(self.structure, self._machine) * _ROUNDING

    @cached_property
    def tiles(self) -> np.ndarray:
        """All rows of the first step; other columns have their first position."""
        first = np.array([[column[0] for column in self._allowed]], np.int16)
        return self.complete(first, self._choices(0))

    @cached_property
    def loop_choices(self) -> np.ndarray:
        """Positions of the second step: choices × variables; -1 for variables of other steps."""
        return self._choices(1)

    @cached_property
    def copy_choices(self) -> np.ndarray:
        """The same of the third step."""
        return self._choices(2)

    @property
    def chunk(self) -> int:
        """Number of rows of the first step that are completed together."""
        return max(1, _ROWS // len(self.loop_choices))

    def _choices(self, step: int) -> np.ndarray:
        columns = self._columns[step]
        grids = np.meshgrid(*(self._allowed[n] for n in columns), indexing="ij")
        rows = math.prod(len(self._allowed[n]) for n in columns)
        choices = np.full((rows, len(self._names)), -1, np.int16)
        for n, grid in zip(columns, grids, strict=True):
            choices[:, n] = grid.reshape(-1)
        return choices

    @staticmethod
    def complete(rows: np.ndarray, choices: np.ndarray) -> np.ndarray:
        """Combine each row with every choice, whose positions of -1 leave the row's."""
        repeated = np.repeat(rows, len(choices), axis=0)
        chosen = np.tile(choices, (len(rows), 1))
        return np.where(chosen < 0, repeated, chosen)

    @cached_property
    def floors(self) -> np.ndarray:
        """Lower bound of all completions of each row of :attr:`tiles`."""
        floors = np.full(self.row_count, np.inf)
        fitting = np.flatnonzero(self._fits)
        for start in range(0, len(fitting), _ROWS):
            which = fitting[start : start + _ROWS]
            batch = self.batch(self.tiles[which])
            floors[which] = floor_of_tiles(self.structure, self._machine, batch)
        return np.where(np.isfinite(floors), np.maximum(floors * _ROUNDING, self.floor), np.inf)

    @property
    def _fits(self) -> np.ndarray:
        """Rows of the first step whose blocks are no longer than their loops."""
        fits = np.ones(self.row_count, dtype=bool)
        for loop in self.structure.spatial:
            tile, block = (self._values(f"{k}.{loop.name}", self.tiles) for k in ("tile", "block"))
            fits &= block <= -(-loop.extent // tile)
        return fits

    def floor_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return a lower bound of all completions of rows of the second step."""
        floors = floor_of_loops(self.structure, self._machine, self.batch(rows))
        return floors * _ROUNDING

    def _values(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return the values of a variable of numbers; 1 if there is none."""
        if name not in self._names:
            return np.ones(len(rows), np.int64)
        domain = np.array(self.space.variables[name], np.int64)
        return np.asarray(domain[rows[:, self._names.index(name)]])

    def _orders(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return the numbers of an order's loops, outermost first: rows × loops."""
        structure = self.structure
        numbers = {x.name: n for n, x in enumerate((*structure.spatial, *structure.reduce))}
        if name not in self._names:
            return np.zeros((len(rows), 0), np.int64)
        texts = self.space.variables[name]
        orders = np.array([[numbers[x] for x in str(text).split()] for text in texts], np.int64)
        return np.asarray(orders[rows[:, self._names.index(name)]])

    def _words(self, name: str, word: str, rows: np.ndarray, default: str) -> np.ndarray:
        """Return whether a variable of words has this one."""
        if name not in self._names:
            return np.full(len(rows), default == word)
        domain = np.array([value == word for value in self.space.variables[name]])
        return np.asarray(domain[rows[:, self._names.index(name)]])

    def batch(self, rows: np.ndarray) -> LoopBatch:
        spatial = [loop.name for loop in self.structure.spatial]
        stages = [f"stage.{name}" for name in self.structure.choices]
        ahead = [self._words(name, "whole", rows, "whole") for name in stages]
        copied = [~self._words(name, "none", rows, "whole") for name in stages]
        none, flags = np.zeros((0, len(rows)), np.int64), np.zeros((0, len(rows)), np.bool_)
        tile, block = ([self._values(f"{k}.{x}", rows) for x in spatial] for k in ("tile", "block"))
        width = "vector" in self._names
        return LoopBatch(
            tile=np.array(tile or none).T,
            order=self._orders("order", rows),
            reduce=self._orders("reduce", rows),
            parallel=np.minimum(self._values("parallel", rows), len(spatial)),
            unroll=self._values("unroll", rows),
            ahead=np.array(ahead or flags).T,
            copied=np.array(copied or flags).T,
            block=np.array(block or none).T,
            copy_width=self._values("vector", rows) if width else None,
            vectors=self._words("copy", "vectors", rows, "elements"),
            split=self._values("split", rows),
        )

    def candidate(self, rows: np.ndarray, row: int) -> Candidate | None:
        positions = {name: int(at) for name, at in zip(self._names, rows[row], strict=True)}
        if self.space.csp.find_violated({name: (at,) for name, at in positions.items()}):
            return None
        return Candidate(self.space.mapping, self.space.schedule(positions))
