"""A learned correction of the analytic model (optional, needs xgboost).

Trained on measured candidates, it predicts log(measured / predicted) from the
model's own terms: what share of the prediction each level, the copies and the
overheads have. It is reported beside the analytic model, never instead of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from amos.errors import MachineError
from amos.perfmodel.batch import evaluate
from amos.perfmodel.machine import Machine
from amos.perfmodel.structure import LoopBatch, Structure
from amos.perfmodel.terms import BatchPrediction

__all__ = ["Residual", "features"]

_ROUNDS, _DEPTH, _RATE = 200, 4, 0.05
_SMALLEST = 1e-12


def features(structure: Structure, machine: Machine, batch: LoopBatch) -> np.ndarray:
    """Terms of the analytic model, as logarithms of their share of the whole.

    Returns:
        float array, rows × terms; the last column is the logarithm of the
        predicted seconds themselves.
    """
    found = evaluate(structure, machine, batch)
    terms = [found.compute, found.staging, found.launch]
    for level in machine.levels:
        terms += [found.read[level.name], found.write[level.name]]
    shares = np.log(np.maximum(np.stack(terms, axis=1), _SMALLEST) / found.seconds[:, None])
    return np.concatenate([shares, _shape(found, batch)], axis=1)


def _shape(found: BatchPrediction, batch: LoopBatch) -> np.ndarray:
    """What the terms no longer show: the register tile, unrolling, parallel loops."""
    tile = np.log(np.maximum(batch.tile, 1)).sum(axis=1)
    return np.stack([tile, batch.unroll, batch.parallel, np.log(found.seconds)], axis=1)


@dataclass(frozen=True)
class Residual:
    """A trained correction for one machine."""

    model: Any

    @staticmethod
    def train(rows: np.ndarray, predicted: np.ndarray, measured: np.ndarray) -> Residual:
        """Fit to measured candidates.

        Args:
            rows: what :func:`features` gives.
            predicted: seconds by the analytic model.
            measured: seconds.

        Raises:
            MachineError: xgboost is not installed.
        """
        try:
            import xgboost
        except ImportError as error:
            raise MachineError(
                "the learned correction needs xgboost: pip install 'amos-mapper[learned]'"
            ) from error
        settings = {"max_depth": _DEPTH, "eta": _RATE, "nthread": 1, "seed": 0}
        table = xgboost.DMatrix(rows, label=np.log(measured / predicted))
        return Residual(xgboost.train(settings, table, num_boost_round=_ROUNDS))

    def correct(self, rows: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Corrected seconds."""
        import xgboost

        seconds: np.ndarray = predicted * np.exp(self.model.predict(xgboost.DMatrix(rows)))
        return seconds
