"""Uniform random search, the baseline of every comparison."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from amos.explore.method import Search
from amos.plan import Candidate

__all__ = ["RandomSearch"]


class RandomSearch(Search):
    """The search method ``random``: a mapping, then a feasible schedule, both by chance."""

    inner: ClassVar[int] = 0

    def propose(self, count: int) -> Iterable[Candidate]:
        """Nothing but chance, which the base class adds."""
        return ()
