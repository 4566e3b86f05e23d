"""Hidet, Figure 19: matrix products of consecutive sizes, by the model.

The paper measured an RTX 3090; here a described machine is predicted, and its rivals are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from amos import intrinsics, operators
from amos.explore.few import list_candidates
from amos.explore.genetic import GeneticSearch
from amos.explore.objective import Problem
from amos.explore.ranking import rank_candidates
from amos.machine import catalogue
from amos.mapping import enumerate_mappings
from amos.plan.target import target_of
from amos.schedule.few import templates

_INTRINSIC = "wmma_m16n16k16_f16_f32"
#: Around the prime of the paper's text, up to the power of two.
SIZES = tuple(range(2033, 2049))


class _Search(GeneticSearch):
    """A search of about a second."""

    inner = 1024


@dataclass(frozen=True)
class Fig19Row:
    """A product of square matrices.

    Attributes:
        size: of each side.
        listed: schedules of ``tiling="few"``.
        seconds: predicted for the best of these.
        search_seconds: for listing and ranking them on this computer.
        large_space: predicted seconds of the best that a search of the large space comes to.
    """

    size: int
    listed: int
    seconds: float
    search_seconds: float
    large_space: float


def hidet_fig19(machine: str = "a100", sizes: Sequence[int] = SIZES) -> list[Fig19Row]:
    """Compare searches on square matrix products in half precision, a row a size."""
    return [_row(machine, size) for size in sizes]


def _row(machine: str, size: int) -> Fig19Row:
    op = operators.get("gemm", m=size, n=size, k=size)
    unit = intrinsics.get(_INTRINSIC)
    target = catalogue.get(machine, [unit])
    start = time.perf_counter()
    problem = Problem(list(enumerate_mappings(op, unit)), target)
    listed = list_candidates(problem, templates(target_of(target)))
    seconds = float(problem.seconds(listed).min())
    searched = time.perf_counter() - start
    large = problem.seconds(rank_candidates(problem, 1, _Search))
    return Fig19Row(size, len(listed), seconds, searched, float(large.min()))
