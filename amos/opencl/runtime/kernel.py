"""A candidate on an OpenCL device, with the calls that measuring makes of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from amos.errors import BuildError
from amos.ir import Chain, Operator, Tensor
from amos.ir.floats import pack, quantize, unpack
from amos.machine.machine import Machine
from amos.opencl.chains.candidate import ParallelCandidate
from amos.opencl.codegen import KernelText
from amos.opencl.codegen.kernel import launch_of
from amos.opencl.codegen.parallel import ParallelKernel
from amos.opencl.plan import OpenClPlan
from amos.opencl.runtime.loader import Device, Kernel, KernelError, ResourceError
from amos.plan import Candidate


@lru_cache(maxsize=1)
def _device(words: str) -> Device:
    return Device(words)


class OpenClKernel:
    """One candidate, compiled and loaded.

    Raises:
        BuildError: it cannot be written, compiled or loaded.
        MemoryError: the device is out of resources.
    """

    implementation = "native"

    def __init__(
        self, candidate: Candidate | ParallelCandidate, machine: Machine, words: str
    ) -> None:
        self._operator: Operator | Chain
        self._results: tuple[Tensor, ...]
        if isinstance(candidate, ParallelCandidate):
            kernel, name = ParallelKernel(candidate, machine=machine), candidate.chain.name
            self._operator, self._results = candidate.chain, (candidate.chain.result,)
            launch, source = kernel.launch, kernel.source
        else:
            plan = OpenClPlan.of(candidate.mapping, candidate.schedule, machine)
            name, self._operator = KernelText.name_of(plan), candidate.mapping.operator
            self._results = plan.results
            launch, source = launch_of(plan, name), KernelText(plan).source
        try:
            self._kernel = Kernel(name, _device(words), launch=launch, source=source)
        except ResourceError as error:
            raise MemoryError(str(error)) from error
        except KernelError as error:
            raise BuildError(str(error)) from error

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return bit patterns of the inputs, in the kernel's order, and buffers for the outputs."""
        kinds = {tensor.name: tensor.dtype or "float32" for tensor in self._operator.inputs}
        return [pack(quantize(inputs[name], kind), kind) for name, kind in kinds.items()]

    def run(self, arguments: list[np.ndarray]) -> None:
        """Run once; the bytes of each result become the last of the arguments.

        Raises:
            MemoryError: the device is out of resources.
        """
        inputs = len(self._operator.inputs)
        try:
            arguments[inputs:] = self._kernel.compute(arguments[:inputs])
        except ResourceError as error:
            raise MemoryError(str(error)) from error

    def result(self, arguments: list[np.ndarray]) -> np.ndarray | tuple[np.ndarray, ...]:
        """Return the output of :meth:`run`; a tuple of several results."""
        written = zip(arguments[-len(self._results) :], self._results, strict=True)
        results = tuple(unpack(data, str(x.dtype), x.shape) for data, x in written)
        return results[0] if len(results) == 1 else results

    def times(
        self, inputs: Mapping[str, np.ndarray], *, repeat: int = 10, flush: int = 0
    ) -> list[float]:
        """Return seconds of one launch; see :meth:`amos.opencl.runtime.loader.Kernel.times`."""
        return self._kernel.times(repeat, flush, self.prepare(inputs))
