"""A candidate on the GPU of this machine."""

from __future__ import annotations

from functools import lru_cache

from amos.cuda.codegen.kernel import KernelText, launch_of
from amos.cuda.codegen.toolchain import image_for
from amos.cuda.plan import GpuPlan
from amos.cuda.runtime.driver import Device, KernelError
from amos.cuda.runtime.loader import Kernel
from amos.errors import BuildError
from amos.plan import Candidate
from amos.runtime.device_kernel import DeviceKernel


@lru_cache(maxsize=1)
def _device(library: str) -> Device:
    return Device(library)


class GpuKernel(DeviceKernel):
    """One candidate, compiled and loaded for an architecture, or a BuildError."""

    def __init__(self, candidate: Candidate, architecture: str, library: str) -> None:
        plan = GpuPlan.of(candidate.mapping, candidate.schedule, architecture)
        text, name = KernelText(plan), KernelText.name_of(plan)
        try:
            device = _device(library)
            image = image_for(text.source, architecture, device.capability, name)
            kernel = Kernel(name, device, launch=launch_of(plan, name), image=image)
        except KernelError as error:
            raise BuildError(str(error)) from error
        super().__init__(kernel, plan.mapping.operator.inputs, plan.results)

    def close(self) -> None:
        """Give the kernel's module back to the driver."""
        self._kernel.close()
