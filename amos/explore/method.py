"""The interface of a search method."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from amos.explore.objective import Problem
from amos.schedule import Candidate

__all__ = ["Method"]


class Method(Protocol):
    """A search method proposes candidates; the exploration tells the problem results.

    A method draws random numbers from the given generator alone, and never
    proposes a candidate twice.
    """

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        """Prepare to search ``problem``."""
        ...

    def ask(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` new candidates; fewer, or none, if the space is used up."""
        ...
