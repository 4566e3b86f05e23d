"""Machines and the hierarchical performance model."""

from amos.perfmodel import catalogue
from amos.perfmodel.batch import MODELS, evaluate
from amos.perfmodel.gpu_costs import GpuCosts
from amos.perfmodel.machine import Costs, Level, Machine, Peak
from amos.perfmodel.makers import fitted
from amos.perfmodel.model import LevelTime, LoopSchedule, Prediction, predict, prediction_of
from amos.perfmodel.structure import LoopBatch, Structure
from amos.perfmodel.terms import BatchPrediction

__all__ = [
    "MODELS",
    "BatchPrediction",
    "Costs",
    "GpuCosts",
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
    "fitted",
    "predict",
    "prediction_of",
]
