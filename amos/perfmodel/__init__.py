"""The hierarchical performance model: plans to seconds, level by level."""

from amos.perfmodel.batch import MODELS, evaluate
from amos.perfmodel.energy import EnergyRow, check_energies, missing_energies, total_joules
from amos.perfmodel.model import LevelTime, Prediction, predict, prediction_of
from amos.perfmodel.terms import BatchPrediction

__all__ = [
    "MODELS",
    "BatchPrediction",
    "EnergyRow",
    "LevelTime",
    "Prediction",
    "check_energies",
    "evaluate",
    "missing_energies",
    "predict",
    "prediction_of",
    "total_joules",
]
