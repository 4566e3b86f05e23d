"""Uniform random search, the baseline of every comparison."""

from __future__ import annotations

from typing import ClassVar

from amos.explore.method import Search


class RandomSearch(Search):
    """The search method ``random``: a mapping, then a feasible schedule, both by chance."""

    inner: ClassVar[int] = 0
