"""Schedules, the spaces they come from, and candidates made with them."""

from amos.schedule.candidate import Candidate
from amos.schedule.schedule import Schedule, Value, batch_of
from amos.schedule.space import ScheduleSpace

__all__ = ["Candidate", "Schedule", "ScheduleSpace", "Value", "batch_of"]
