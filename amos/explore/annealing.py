"""Simulated annealing, as AutoTVM's tuners do it: chains that walk by single changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from amos.explore.method import Key, Search
from amos.explore.objective import Problem
from amos.plan import Candidate

_CHAINS = 8
#: Temperature at first, in units of log seconds, and its factor for each score.
_HOT, _COOLING = 0.5, 0.99


class Annealing(Search):
    """The search method ``sa``."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        super().__init__(problem, rng)
        self._chains: list[tuple[Candidate, float]] = []
        self._walker: dict[Key, int] = {}
        self._temperature = _HOT

    def propose(self, count: int) -> Iterator[Candidate]:
        """Yield drawn starting points, then one step of each chain in turn."""
        yield from self.draw_seeds(_CHAINS - len(self._chains))
        turn = int(self.rng.integers(_CHAINS))
        while self._chains:
            turn = (turn + 1) % len(self._chains)
            moved = self.mutate(self._chains[turn][0])
            self._walker[moved.key] = turn
            yield moved

    def tell(self, results: Sequence[tuple[Candidate, float]]) -> None:
        """Accept better steps, and worse ones at random."""
        super().tell(results)
        for candidate, seconds in results:
            if not math.isfinite(seconds):
                continue
            self._temperature *= _COOLING
            if len(self._chains) < _CHAINS:
                self._chains.append((candidate, seconds))
                continue
            chain = self._walker.get(candidate.key, 0)
            worse = math.log(seconds / self._chains[chain][1])
            if worse <= 0 or self.rng.random() < math.exp(-worse / self._temperature):
                self._chains[chain] = (candidate, seconds)
        self._walker.clear()
