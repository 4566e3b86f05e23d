"""Fitting the constants of the model to measured samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from amos.machine import Costs
from amos.reproduce.samples import Dataset

__all__ = ["error", "fit"]

#: Logarithm by which two predictions must differ to count as well apart while fitting:
#: about what two measurements of one candidate differ by.
_APART = 0.06
#: Share of a layer's candidates, fastest first, whose times count while fitting, and the
#: logarithm from which the error of one counts no longer as its square.
_FAST, _LARGE = 0.7, 0.08


def fit(dataset: Dataset, layers: Sequence[str], rounds: int = 4) -> Costs:
    """Fit the constants of the model: coordinate descent over powers of two, refined.

    What is minimized is the mean over layers of two sums: the share of pairs in the wrong
    order, smoothed, in which a pair whose predictions hardly differ counts half, and the
    error of the times. Order alone says nothing of pairs far apart, so that terms which
    only slow candidates have could be wrong by any factor.

    Args:
        dataset: measured samples; the search begins at the constants of the CPU's maker.
        layers: those to fit on.
        rounds: turns over all constants, with steps of 2, 1.41, 1.19, ….
    """
    samples = dataset.of(layers)
    best = dataset.machine_with(None).costs

    def loss(costs: Costs) -> float:
        machine = dataset.machine_with(costs)
        pairs = [(x.predict(machine, "amos+"), x.measured) for x in samples]
        return float(np.mean([_misordered(*pair) + error(*pair) for pair in pairs]))

    least = loss(best)
    for turn in range(rounds):
        factor = 2.0 ** (0.5**turn)
        for field in fields(Costs):
            for step in (factor, 1 / factor):
                while True:
                    trial = replace(best, **{field.name: getattr(best, field.name) * step})
                    if not (reached := loss(trial)) < least * (1 - 1e-4):
                        break
                    best, least = trial, reached
    return best


def _misordered(predicted: np.ndarray, measured: np.ndarray) -> float:
    first, second = np.triu_indices(len(predicted), 1)
    truth = np.sign(measured[first] - measured[second])
    right = np.log(predicted[first] / predicted[second]) * truth
    return float(np.mean(1.0 / (1.0 + np.exp(np.clip(right / _APART, -50.0, 50.0)))))


def error(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Error of the logarithms after Huber, apart from a factor that all of a layer share.

    Candidates count that are among the fastest by either: what is slow by both needs no
    more than to be known as slow.
    """
    last = min(int(_FAST * len(measured)), len(measured) - 1)
    fast = (measured <= np.sort(measured)[last]) | (predicted <= np.sort(predicted)[last])
    # What is predicted not to fit has no time to be wrong about.
    fast &= np.isfinite(predicted)
    off = np.log(predicted[fast] / measured[fast])
    off = np.abs(off - np.median(off))
    return float(np.mean(np.where(off < _LARGE, off * off / (2 * _LARGE), off - _LARGE / 2)))
