"""Units that streams of instructions drive, as VTA and Gemmini, behind one target.

It imports the core, which knows it by its line in :data:`amos.plan.target.TARGETS` alone.
"""

from amos.streams.plan import StreamPlan
from amos.streams.schedule import StreamSchedule

__all__ = ["StreamPlan", "StreamSchedule"]
