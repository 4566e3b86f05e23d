"""What a mapping, a schedule and a machine decide about a kernel, as named numbers."""

from amos.plan.candidate import Candidate
from amos.plan.schedule import Schedule, Value, batch_of
from amos.plan.structure import LoopBatch, Structure

__all__ = ["Candidate", "LoopBatch", "Schedule", "Structure", "Value", "batch_of"]
