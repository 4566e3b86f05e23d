"""A candidate on the GPU of this machine, with the calls that measuring makes of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from amos.cuda.codegen.kernel import KernelText, launch_of
from amos.cuda.codegen.toolchain import image_for
from amos.cuda.plan import GpuPlan
from amos.cuda.runtime.driver import Device, KernelError
from amos.cuda.runtime.loader import Kernel
from amos.errors import BuildError
from amos.ir.floats import pack, quantize, unpack
from amos.plan import Candidate


@lru_cache(maxsize=1)
def _device(library: str) -> Device:
    return Device(library)


class GpuKernel:
    """One candidate, compiled and loaded for an architecture, or a BuildError."""

    implementation = "native"

    def __init__(self, candidate: Candidate, architecture: str, library: str) -> None:
        plan = GpuPlan.of(candidate.mapping, candidate.schedule, architecture)
        text, name = KernelText(plan), KernelText.name_of(plan)
        self._operator = candidate.mapping.operator
        self._results = plan.results
        try:
            device = _device(library)
            image = image_for(text.source, architecture, device.capability, name)
            launch = launch_of(plan, name)
            self._kernel = Kernel(name, device, launch=launch, image=image)
        except KernelError as error:
            raise BuildError(str(error)) from error

    def close(self) -> None:
        """Give the kernel's module back to the driver."""
        self._kernel.close()

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return bit patterns of the inputs, in the kernel's order, and buffers for the outputs."""
        kinds = {tensor.name: tensor.dtype or "float32" for tensor in self._operator.inputs}
        return [pack(quantize(inputs[name], kind), kind) for name, kind in kinds.items()]

    def run(self, arguments: list[np.ndarray]) -> None:
        """Run once; the bytes of each result become the last of the arguments."""
        inputs = len(self._operator.inputs)
        arguments[inputs:] = self._kernel.compute(arguments[:inputs])

    def result(self, arguments: list[np.ndarray]) -> np.ndarray | tuple[np.ndarray, ...]:
        """Return the output of :meth:`run`; a tuple of several results."""
        written = zip(arguments[-len(self._results) :], self._results, strict=True)
        results = tuple(unpack(data, str(x.dtype), x.shape) for data, x in written)
        return results[0] if len(results) == 1 else results

    def times(
        self, inputs: Mapping[str, np.ndarray], *, repeat: int = 10, flush: int = 0
    ) -> list[float]:
        """Return seconds of one launch; see :meth:`amos.cuda.runtime.loader.Kernel.times`."""
        return self._kernel.times(repeat, flush, self.prepare(inputs))
