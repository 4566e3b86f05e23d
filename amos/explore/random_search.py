"""Uniform random search, the baseline of every comparison."""

from __future__ import annotations

from typing import ClassVar

from amos.explore.method import Search


class RandomSearch(Search):
    """The search method ``random``: a random mapping, then a random feasible schedule."""

    inner: ClassVar[int] = 0
