"""Kernels of a device, with the calls that measuring makes of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amos.ir import Tensor
from amos.ir.floats import pack, quantize, unpack


class DeviceKernel:
    """A loaded kernel of ``inputs`` and ``results``, which a device has as bit patterns."""

    implementation = "native"

    def __init__(self, kernel: Any, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        self._kernel, self._inputs, self._results = kernel, inputs, results

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return bit patterns of the inputs, in the kernel's order."""
        kinds = {tensor.name: tensor.dtype or "float32" for tensor in self._inputs}
        return [pack(quantize(inputs[name], kind), kind) for name, kind in kinds.items()]

    def run(self, arguments: list[np.ndarray]) -> None:
        """Run once; the bytes of each result become the last of the arguments."""
        inputs = len(self._inputs)
        arguments[inputs:] = self._kernel.compute(arguments[:inputs])

    def result(self, arguments: list[np.ndarray]) -> np.ndarray | tuple[np.ndarray, ...]:
        """Return the output of :meth:`run`; a tuple of several results."""
        written = zip(arguments[-len(self._results) :], self._results, strict=True)
        results = tuple(unpack(data, str(x.dtype), x.shape) for data, x in written)
        return results[0] if len(results) == 1 else results

    def times(
        self, inputs: Mapping[str, np.ndarray], *, repeat: int = 10, flush: int = 0
    ) -> list[float]:
        """Return seconds of one launch; see the kernel's own ``times``."""
        times: list[float] = self._kernel.times(repeat, flush, self.prepare(inputs))
        return times
