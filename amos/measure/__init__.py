"""Building and timing candidates in processes that may crash or hang."""

from amos.measure.host import host_machine
from amos.measure.runner import Runner
from amos.measure.task import Task

__all__ = ["Runner", "Task", "host_machine"]
