"""The plan of a kernel: the decisions of a mapping, a schedule and a machine, as named numbers.

The package can be called: ``amos.plan(candidate, machine)`` is
:func:`amos.plan.planning.plan`.
"""

from amos._callable import make_callable
from amos.plan.schedule import Candidate, CpuSchedule, Schedule, batch_of
from amos.plan.structure import LoopBatch, Structure
from amos.plan.variables import Value

__all__ = ["Candidate", "CpuSchedule", "LoopBatch", "Schedule", "Structure", "Value", "batch_of"]

make_callable(__name__, "amos.plan.planning:plan")
