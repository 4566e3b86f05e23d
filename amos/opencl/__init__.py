"""OpenCL devices: work-groups whose work-items multiply vectors in registers."""

from amos.opencl.plan import OpenClPlan
from amos.opencl.schedule import OpenClSchedule

__all__ = ["OpenClPlan", "OpenClSchedule"]
