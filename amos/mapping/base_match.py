"""Base matches: the generators of the paper's mappings (AMOS, section 5.1, Table 6).

A base match sends each intrinsic iteration to exactly one software iteration of
the same kind such that, with every other software iteration set to zero, each
operand's index list becomes the intrinsic's. The order of dimensions, a positive
stride and a constant offset do not matter; a reversed index matches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from amos.validate.candidates import Pairing, choose

__all__ = ["base_matches"]


def base_matches(pairing: Pairing) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every base match, as pairs (intrinsic iteration, software iteration).

    Each fills as many intrinsic iterations as can be filled at once
    (:attr:`Pairing.rank`); those that nothing can go to are dropped from the
    intrinsic's index lists. Built by backtracking on pairs that share an index
    dimension, so no assignment is built in vain but for dead ends.
    """
    options = pairing.candidates("paper")
    reach = [
        [s for s, targets in enumerate(options) if t in targets]
        for t in range(len(pairing.intrinsic.iterations))
    ]
    usable = [t for t, members in enumerate(reach) if members]
    if not pairing.rank:
        return
    for steps in combinations(usable, pairing.rank):
        for chosen in choose([reach[t] for t in steps], pairing.conflicts):
            yield tuple(zip(steps, chosen, strict=True))
