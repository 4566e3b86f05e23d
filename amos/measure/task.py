"""Measuring one candidate: build it, hold it against NumPy, time it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amos.errors import AmosError
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine
from amos.measure.limits import lacks_memory
from amos.measure.messages import Context, Failure
from amos.measure.reference import compared, several, tolerance
from amos.plan import Candidate
from amos.records.measurement import Measurement, noise_of

#: A measurement noisier than this is prolonged, at most so many times.
_NOISE, _ROUNDS_OF_REPEATS = 0.02, 3
#: Seconds of timing after which there are no more repeats, and share of the limit.
TIMING, _SHARE = 7.5, 0.25


def repeats(count: int, seconds: float, limit: float = math.inf) -> int:
    """Number of timings of a kernel: as requested, or as many as there is time for.

    Args:
        count: timings of a quick kernel.
        seconds: of a run.
        limit: seconds that the task may take.
    """
    return max(1, min(count, int(min(TIMING, _SHARE * limit) / seconds)))


@dataclass(frozen=True)
class GpuTarget:
    """A GPU to measure on.

    Attributes:
        architecture: that the kernel keeps to, ``"sm_90"``.
        library: the driver.
    """

    architecture: str
    library: str


@dataclass(frozen=True)
class Task:
    """One measurement that is asked for.

    Attributes:
        candidate: mapping and schedule.
        repeat: timings of a quiet measurement; a noisy one is prolonged, one that
            would take long is shortened.
        implementation: ``"native"`` or ``"generic"``; by default what there is.
        flush: bytes of cache to overwrite before each timing.
        predicted: seconds of one run by the model, which the time limit allows for.
        gpu: where to run it; by default on this CPU.
        board: address of one behind TVM's RPC tracker that runs it instead.
        unit: machine with a stream unit that is simulated instead.
    """

    candidate: Candidate
    repeat: int = 10
    implementation: str | None = None
    flush: int = 0
    predicted: float = 0.0
    gpu: GpuTarget | None = None
    board: str = ""
    unit: Machine | None = None

    @property
    def operator(self) -> Operator:
        """The result of the candidate."""
        return self.candidate.mapping.operator

    @property
    def intrinsics(self) -> tuple[Intrinsic, ...]:
        """The candidate's intrinsic."""
        return (self.candidate.mapping.intrinsic,)

    @property
    def needs(self) -> frozenset[Operator | str]:
        """Code for the device, and the operator's reference result."""
        device = {"gpu" if self.gpu else "cpu"} if self.unit is None else set()
        return frozenset({*device, self.operator})

    def run(self, context: Context) -> Measurement | Failure:
        """Build, verify, then time it; nothing runs before the cores are ours."""
        kernel: Any
        try:
            kernel = self._built()
        except AmosError as error:
            if lacks_memory(error):
                raise MemoryError(str(error)) from error
            return Failure("build", str(error))
        inputs, expected = context.references.get(self.operator)
        if self.board:
            from amos.runtime.remote import RemoteKernel

            try:
                kernel = RemoteKernel(kernel, self.board)
            except AmosError as error:
                return Failure("unreachable", str(error))
        try:
            arguments = kernel.prepare(inputs)
            context.wait()
            start = time.perf_counter()
            kernel.run(arguments)
            once = time.perf_counter() - start
            got = several(kernel.result(arguments))
            judged = self._judged(got, expected, kernel.implementation)
            if not judged.ok:
                return judged
            return replace(judged, times=self._times(kernel, inputs, once, context.limit))
        finally:
            if self.gpu:  # the driver keeps what is not given back
                kernel.close()

    def _built(self) -> Any:
        """The candidate's kernel: on the GPU or unit that is named, or on this CPU."""
        if self.unit is not None:
            from amos.runtime.stream import StreamKernel

            return StreamKernel(self.candidate, self.unit)
        if self.gpu is not None:
            from amos.runtime.cuda.gpu_kernel import GpuKernel

            return GpuKernel(self.candidate, self.gpu.architecture, self.gpu.library)
        from amos.runtime import build

        return build(self.candidate, implementation=self.implementation)

    def _judged(
        self, got: Sequence[np.ndarray], expected: Sequence[np.ndarray], implementation: str
    ) -> Measurement:
        """Compare a kernel's result with the reference."""
        size, largest = sum(x.size for x in expected), 0.0
        for number, (actual, reference) in enumerate(zip(got, expected, strict=True)):
            difference, strange = compared(actual, reference)
            largest = max(largest, difference)
            judged = Measurement((), size, largest, implementation)
            if strange:
                message = f"{strange} of {reference.size} elements are not a number"
                return replace(judged, failure="nan", message=message)
            # An infinite difference of infinities is NaN and must count as wrong, hence "not <=".
            if not difference <= tolerance(self.operator, reference, number):
                message = f"largest difference {difference:g}"
                return replace(judged, failure="wrong", message=message)
        return judged

    def _times(
        self, kernel: Any, inputs: dict[str, np.ndarray], once: float, limit: float
    ) -> tuple[float, ...]:
        """Seconds of a run of a kernel whose first run took ``once``, as often as there is time."""
        most = repeats(_ROUNDS_OF_REPEATS * self.repeat, once, limit)
        repeat = min(self.repeat, most)
        times: tuple[float, ...] = ()
        while not times or (noise_of(times) > _NOISE and len(times) + repeat <= most):
            times += tuple(kernel.times(inputs, repeat=repeat, flush=self.flush))
        return times
