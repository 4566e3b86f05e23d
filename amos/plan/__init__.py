"""What a mapping, a schedule and a machine decide about a kernel, as named numbers."""

from amos.plan.candidate import Candidate
from amos.plan.schedule import CpuSchedule, GpuSchedule, Schedule, Value, batch_of
from amos.plan.structure import LoopBatch, Structure

__all__ = [
    "Candidate",
    "CpuSchedule",
    "GpuSchedule",
    "LoopBatch",
    "Schedule",
    "Structure",
    "Value",
    "batch_of",
]
