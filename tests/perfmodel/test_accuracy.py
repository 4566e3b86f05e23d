"""Metrics of a ranking, on rankings whose value is known."""

from __future__ import annotations

import numpy as np
import pytest

from amos.perfmodel.accuracy import best_of_first, pairwise, recall, trials_until

MEASURED = np.array([5.0, 1.0, 4.0, 2.0, 3.0, 8.0, 7.0, 6.0, 10.0, 9.0])


def test_a_perfect_prediction() -> None:
    assert pairwise(MEASURED * 3, MEASURED) == 1.0
    assert recall(MEASURED * 3, MEASURED, 0.4) == 1.0
    assert best_of_first(MEASURED * 3, MEASURED, 1) == 1.0
    assert trials_until(MEASURED * 3, MEASURED, 0.05) == 1


def test_a_reversed_prediction() -> None:
    assert pairwise(-MEASURED, MEASURED) == 0.0
    assert recall(-MEASURED, MEASURED, 0.4) == 0.0
    assert best_of_first(-MEASURED, MEASURED, 1) == 10.0
    assert trials_until(-MEASURED, MEASURED, 0.05) == 10


def test_a_prediction_that_tells_nothing_apart() -> None:
    assert pairwise(np.ones(10), MEASURED) == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_pairwise_counts_every_pair(seed: int) -> None:
    guess = np.random.default_rng(seed).random(10)
    pairs = [(i, j) for i in range(10) for j in range(i)]
    right = sum((guess[i] < guess[j]) == (MEASURED[i] < MEASURED[j]) for i, j in pairs)
    assert pairwise(guess, MEASURED) == pytest.approx(right / len(pairs))
