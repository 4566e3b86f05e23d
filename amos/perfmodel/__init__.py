"""Machines and the hierarchical performance model."""

from amos.perfmodel import catalogue
from amos.perfmodel.loops import LoopSchedule, ScheduledLoop
from amos.perfmodel.machine import Level, Machine, Peak
from amos.perfmodel.model import LevelTime, Prediction, predict

__all__ = [
    "Level",
    "LevelTime",
    "LoopSchedule",
    "Machine",
    "Peak",
    "Prediction",
    "ScheduledLoop",
    "catalogue",
    "predict",
]
