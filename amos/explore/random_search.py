"""Uniform random search, the baseline of every comparison."""

from __future__ import annotations

import numpy as np

from amos.explore.objective import Problem
from amos.schedule import Candidate

__all__ = ["RandomSearch"]

_ATTEMPTS = 200


class RandomSearch:
    """Draws a mapping, then a feasible schedule, both uniformly."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._problem, self._rng = problem, rng

    def ask(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` new candidates."""
        seen = self._problem.measured()
        found: list[Candidate] = []
        for _ in range(_ATTEMPTS * count):
            if len(found) == count:
                break
            mapping = self._problem.mappings[int(self._rng.integers(len(self._problem.mappings)))]
            candidate = self._problem.sample(mapping, self._rng)
            if candidate.key not in seen:
                seen.add(candidate.key)
                found.append(candidate)
        return found
