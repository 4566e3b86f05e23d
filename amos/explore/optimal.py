"""The model's optimum with a certificate, on targets that can prove one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from amos.errors import ExploreError
from amos.explore.method import Search
from amos.explore.objective import Problem
from amos.plan import Candidate
from amos.plan.target import target_of

#: After so many seconds the best candidate so far is proposed, with the gap that is proven.
_LIMIT_SECONDS = 55.0


class Optimal(Search):
    """The search method ``optimal``: the model's best candidates, then others by chance.

    Raises:
        ExploreError: the machine's target proves none.
    """

    inner: ClassVar[int] = 64

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        super().__init__(problem, rng)
        machine = problem.machine
        target, spaces = target_of(machine), [*problem.spaces.values()]
        optimum = target.find_optimum(spaces, machine, problem.objective, _LIMIT_SECONDS)
        if optimum is None or not optimum.candidates:
            raise ExploreError(
                f"method 'optimal': nothing is proven of schedules on machine {machine.name!r}"
            )
        self.certificate = optimum.certificate
        self._ranked = optimum.candidates

    def propose(self, count: int) -> Iterator[Candidate]:
        """Yield the best ones in order."""
        yield from self._ranked
