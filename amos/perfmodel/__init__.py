"""Machines and the hierarchical performance model."""

from amos.perfmodel import catalogue
from amos.perfmodel.batch import MODELS, BatchPrediction, evaluate
from amos.perfmodel.machine import Costs, Level, Machine, Peak
from amos.perfmodel.model import LevelTime, LoopSchedule, Prediction, predict, prediction_of
from amos.perfmodel.structure import LoopBatch, Structure

__all__ = [
    "MODELS",
    "BatchPrediction",
    "Costs",
    "Level",
    "LevelTime",
    "LoopBatch",
    "LoopSchedule",
    "Machine",
    "Peak",
    "Prediction",
    "Structure",
    "catalogue",
    "evaluate",
    "predict",
    "prediction_of",
]
