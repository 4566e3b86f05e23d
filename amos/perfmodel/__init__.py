"""Machines and the hierarchical performance model."""

from amos.perfmodel.loops import ScheduledLoop
from amos.perfmodel.machine import Level, Machine, Peak
from amos.perfmodel.model import LevelTime, Prediction, predict

__all__ = ["Level", "LevelTime", "Machine", "Peak", "Prediction", "ScheduledLoop", "predict"]
