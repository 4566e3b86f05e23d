"""Unions are counted by kinds of iterations; the filter over all assignments agrees."""

from __future__ import annotations

import numpy as np
import pytest

from amos.mapping.spaces import ProductSet
from amos.mapping.unions import UnionSet


@pytest.mark.parametrize("seed", range(60))
def test_counts_and_indices_agree_with_the_filter(seed: int) -> None:
    """Few kinds of iterations, so that many are twins; some may go to two places."""
    rng = np.random.default_rng(seed)
    number, kinds = int(rng.integers(2, 8)), int(rng.integers(1, 5))
    kind = rng.integers(0, kinds, number)
    sets = [(0,), (1,), (2,), (0, 1), (1, 2)]
    options = [sets[rng.integers(len(sets))] for _ in range(kinds)]
    between = np.triu(rng.random((kinds, kinds)) < 0.6)
    between |= between.T
    conflicts = [
        sum(1 << b for b in range(number) if a == b or between[kind[a], kind[b]])
        for a in range(number)
    ]
    choices = [options[k] for k in kind]
    rank = int(rng.integers(1, 1 + len({t for targets in choices for t in targets})))
    unions = UnionSet(choices, conflicts, rank)
    expected = [one for one in ProductSet(choices, rank) if one in unions]
    assert unions.count == len(expected)
    assert list(unions) == [unions.at(n) for n in range(unions.count)] == expected
