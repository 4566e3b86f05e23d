"""Branch and bound over mappings and their tilings, in the order of floors of the model."""

from __future__ import annotations

import heapq
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

import numpy as np

from amos.perfmodel.bound import Certificate, Optimum
from amos.plan import Candidate

#: Candidates that are returned.
_RETURNED = 16


class Branch(Protocol):
    """The schedules of one mapping."""

    @property
    def floor(self) -> float:
        """Lower bound of all schedules of the mapping."""

    @property
    def is_listed(self) -> bool:
        """Whether its tilings are few enough to be listed."""

    @property
    def floors(self) -> np.ndarray:
        """Lower bounds of all schedules of each tiling; infinite where it does not fit."""

    @property
    def chunk(self) -> int:
        """Number of tilings that are scored together."""


_Branch = TypeVar("_Branch", bound=Branch)


class BranchAndBound(ABC, Generic[_Branch]):
    """State of a search, which scores nothing more after ``limit_seconds``."""

    def __init__(self, limit_seconds: float) -> None:
        self._end = time.monotonic() + limit_seconds
        #: Candidates by value, negated, the worst first.
        self._best: list[tuple[float, int, Candidate]] = []
        #: Least floor of the candidates that were neither scored nor excluded.
        self._unscored = math.inf
        self._mappings = self._pruned_mappings = 0
        self._tilings = self._overfull_tilings = self._pruned_tilings = 0
        self._scored = 0

    @abstractmethod
    def score(self, branch: _Branch, tilings: np.ndarray) -> None:
        """Score the schedules of some tilings, by number, and keep the best ones."""

    @property
    def value(self) -> float:
        """Of the best candidate."""
        return min((-value for value, _, _ in self._best), default=math.inf)

    def find(self, branches: Iterable[_Branch]) -> Optimum:
        """Visit branches in the order of their floors."""
        for branch in sorted(branches, key=lambda branch: branch.floor):
            self._visit(branch)
        ranked = sorted(self._best, key=lambda entry: (-entry[0], -entry[1]))
        certificate = Certificate(
            value=self.value,
            least=min(self.value, self._unscored),
            mappings=self._mappings,
            pruned_mappings=self._pruned_mappings,
            tilings=self._tilings,
            overfull_tilings=self._overfull_tilings,
            pruned_tilings=self._pruned_tilings,
            scored=self._scored,
        )
        return Optimum(tuple(candidate for _, _, candidate in ranked), certificate)

    def _visit(self, branch: _Branch) -> None:
        """Score the schedules of a mapping whose floors are below the best value."""
        self._mappings += 1
        if branch.floor >= self.value:
            self._pruned_mappings += 1
            return
        if time.monotonic() > self._end or not branch.is_listed:
            self._unscored = min(self._unscored, branch.floor)
            return
        floors = branch.floors
        order = np.argsort(floors, kind="stable")[: int(np.isfinite(floors).sum())]
        self._tilings += len(floors)
        self._overfull_tilings += len(floors) - len(order)
        for start in range(0, len(order), branch.chunk):
            floor = float(floors[order[start]])
            if floor >= self.value:
                self._pruned_tilings += len(order) - start
                return
            if time.monotonic() > self._end and self._best:
                self._unscored = min(self._unscored, floor)
                return
            self.score(branch, order[start : start + branch.chunk])

    def keep(
        self, values: np.ndarray, order: np.ndarray, candidate: Callable[[int], Candidate | None]
    ) -> None:
        """Keep the best of some values, in ``order``; constraints exclude a ``None`` candidate."""
        self._scored += len(values)
        for row in order:
            value, is_full = float(values[row]), len(self._best) >= _RETURNED
            if not math.isfinite(value) or (is_full and value >= -self._best[0][0]):
                return
            feasible = candidate(int(row))
            if feasible is not None:
                push = heapq.heappushpop if is_full else heapq.heappush
                push(self._best, (-value, -self._scored - int(row), feasible))
