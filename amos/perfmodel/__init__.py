"""The hierarchical performance model: plans to seconds, level by level."""

from amos.perfmodel.batch import MODELS, evaluate
from amos.perfmodel.model import LevelTime, Prediction, predict, prediction_of
from amos.perfmodel.terms import BatchPrediction

__all__ = [
    "MODELS",
    "BatchPrediction",
    "LevelTime",
    "Prediction",
    "evaluate",
    "predict",
    "prediction_of",
]
