"""Metrics of how well predicted times rank measured ones (AMOS, section 7.2, Figure 5)."""

from __future__ import annotations

import numpy as np


def pairwise(predicted: np.ndarray, measured: np.ndarray, noise: float = 0.0) -> float:
    """Return the share of pairs that the prediction puts in the measured order.

    A pair that the prediction cannot tell apart counts half.

    Args:
        predicted: seconds, or anything of the same order.
        noise: leave out pairs whose measured times differ by no more than this share, because their
            order is unknown.

    >>> pairwise(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    0.6666666666666666
    >>> pairwise(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.1, 2.0]), noise=0.1)
    1.0
    """
    first, second = np.triu_indices(len(measured), 1)
    if noise:
        distinct = np.abs(np.log(measured[first] / measured[second])) > np.log1p(noise)
        first, second = first[distinct], second[distinct]
    guess = np.sign(predicted[first] - predicted[second])
    truth = np.sign(measured[first] - measured[second])
    return float(np.mean(np.where(guess == 0, 0.5, guess == truth)))


def recall(predicted: np.ndarray, measured: np.ndarray, share: float) -> float:
    """Return the share of the fastest ``share`` of candidates that are also predicted to be."""
    count = max(1, round(share * len(measured)))
    # Stable, so that a prediction that cannot tell candidates apart gains nothing
    # from the order in which they are listed: that order is random.
    top = set(np.argsort(predicted, kind="stable")[:count].tolist())
    return len(top & set(np.argsort(measured, kind="stable")[:count].tolist())) / count


def best_of_first(predicted: np.ndarray, measured: np.ndarray, count: int) -> float:
    """Return the best measured time among the ``count`` best predicted, over the best of all."""
    top = np.argsort(predicted, kind="stable")[:count]
    return float(measured[top].min() / measured.min())


def trials_until(predicted: np.ndarray, measured: np.ndarray, within: float) -> int:
    """Count the best predicted that must be measured to come ``within`` of the best."""
    order = np.argsort(predicted, kind="stable")
    good = measured[order] <= measured.min() * (1 + within)
    return int(np.argmax(good)) + 1
