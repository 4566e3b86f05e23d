"""Schedules and the spaces they come from."""

from amos.schedule.schedule import Schedule, Value
from amos.schedule.space import ScheduleSpace

__all__ = ["Schedule", "ScheduleSpace", "Value"]
