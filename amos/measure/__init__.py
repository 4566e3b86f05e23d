"""Building and timing candidates in processes that may crash or hang."""

from amos.measure.host import host_machine
from amos.measure.runner import Runner

__all__ = ["Runner", "host_machine"]
