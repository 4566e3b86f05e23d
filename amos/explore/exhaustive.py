"""Every candidate of a small space (Hidet 4.3: simply enumerating is enough)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from amos.errors import ExploreError
from amos.explore.method import Search, enumerate_candidates
from amos.explore.objective import Problem
from amos.plan import Candidate

#: Most assignments, feasible or not, to enumerate.
LARGEST = 5_000_000


class Exhaustive(Search):
    """The search method ``exhaustive``.

    Raises:
        ExploreError: the space is too large.
    """

    inner: ClassVar[int] = LARGEST

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        super().__init__(problem, rng)
        if problem.size > LARGEST:
            raise ExploreError(
                f"method 'exhaustive': {problem.size:,} assignments, at most {LARGEST:,} are "
                "gone through; fix variables or take another method"
            )
        self._all = enumerate_candidates(problem)

    def propose(self, count: int) -> Iterable[Candidate]:
        """Return the remaining candidates in order."""
        return self._all
