"""CUDA machines: everything about kernels for Tensor Cores, behind one target.

It imports the core, which knows it by its line in :data:`amos.plan.target.TARGETS` alone.
"""

from amos.cuda.plan import GpuPlan
from amos.cuda.schedule import GpuSchedule

__all__ = ["GpuPlan", "GpuSchedule"]
