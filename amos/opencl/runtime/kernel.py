"""A candidate on an OpenCL device."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from amos.errors import BuildError
from amos.machine.machine import Machine
from amos.opencl.chains.candidate import ParallelCandidate
from amos.opencl.codegen.kernel import KernelText, launch_of
from amos.opencl.codegen.parallel import ParallelKernel
from amos.opencl.plan import OpenClPlan
from amos.opencl.runtime.loader import Device, Kernel, KernelError, ResourceError
from amos.plan import Candidate
from amos.runtime.device_kernel import DeviceKernel


@lru_cache(maxsize=1)
def _device(words: str) -> Device:
    return Device(words)


class OpenClKernel(DeviceKernel):
    """One candidate, compiled and loaded.

    Raises:
        BuildError: it cannot be written, compiled or loaded.
        MemoryError: the device is out of resources.
    """

    def __init__(
        self, candidate: Candidate | ParallelCandidate, machine: Machine, words: str
    ) -> None:
        if isinstance(candidate, ParallelCandidate):
            text, name = ParallelKernel(candidate, machine=machine), candidate.chain.name
            inputs, results = candidate.chain.inputs, candidate.chain.results
            launch, source = text.launch, text.source
        else:
            plan = OpenClPlan.of(candidate.mapping, candidate.schedule, machine)
            inputs, results = candidate.mapping.operator.inputs, plan.results
            name, source = KernelText.name_of(plan), KernelText(plan).source
            launch = launch_of(plan, name)
        try:
            kernel = Kernel(name, _device(words), launch=launch, source=source)
        except ResourceError as error:
            raise MemoryError(str(error)) from error
        except KernelError as error:
            raise BuildError(str(error)) from error
        super().__init__(kernel, inputs, results)

    def run(self, arguments: list[np.ndarray]) -> None:
        """Run once, or raise MemoryError if the device is out of resources."""
        try:
            super().run(arguments)
        except ResourceError as error:
            raise MemoryError(str(error)) from error
