"""Measuring one candidate: build it, hold it against NumPy, time it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amos.errors import AmosError
from amos.intrinsics import Intrinsic
from amos.ir import Operator, dtype
from amos.measure.limits import lacks_memory
from amos.measure.messages import Context, Failure
from amos.plan import Candidate
from amos.records.measurement import Measurement, noise_of

__all__ = ["GpuTarget", "Task"]

#: Elements that are compared at a time.
_BLOCK = 1 << 20
#: A measurement noisier than this is prolonged, at most so many times.
_NOISE, _ROUNDS_OF_REPEATS = 0.02, 3
#: Share of the limit that timing may take, and repeats that there are whatever they take.
_SHARE, _FEWEST = 0.25, 3


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
            would take much of the limit is shortened.
        implementation: ``"native"`` or ``"generic"``; by default what there is.
        flush: bytes of cache to overwrite before each timing.
        predicted: seconds of one run by the model, which the time limit allows for.
        gpu: where to run it; by default on this CPU.
        board: address of one behind TVM's RPC tracker that runs it instead.
    """

    candidate: Candidate
    repeat: int = 10
    implementation: str | None = None
    flush: int = 0
    predicted: float = 0.0
    gpu: GpuTarget | None = None
    board: str = ""

    @property
    def operator(self) -> Operator:
        """What the candidate computes."""
        return self.candidate.mapping.operator

    @property
    def intrinsics(self) -> tuple[Intrinsic, ...]:
        """The candidate's intrinsic."""
        return (self.candidate.mapping.intrinsic,)

    @property
    def needs(self) -> frozenset[Operator | str]:
        """Code for the device, and the operator's reference result."""
        return frozenset({"gpu" if self.gpu else "cpu", self.operator})

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
            judged = self._judged(kernel.result(arguments), expected, kernel.implementation)
            if not judged.ok:
                return judged
            return replace(judged, times=self._times(kernel, inputs, once, context.limit))
        finally:
            if self.gpu:  # the driver keeps what is not given back
                kernel.close()

    def _built(self) -> Any:
        """The candidate's kernel: on the GPU that is named, or on this CPU."""
        if self.gpu is not None:
            from amos.runtime.cuda.gpu_kernel import GpuKernel

            return GpuKernel(self.candidate, self.gpu.architecture, self.gpu.library)
        from amos.runtime import build

        return build(self.candidate, implementation=self.implementation)

    def _judged(self, got: np.ndarray, expected: np.ndarray, implementation: str) -> Measurement:
        """What a kernel has computed, held against the reference."""
        difference, strange = _compared(got, expected)
        judged = Measurement((), int(expected.size), difference, implementation)
        if strange:
            message = f"{strange} of {expected.size} elements are not a number"
            return replace(judged, failure="nan", message=message)
        # An infinite difference of infinities is NaN and must count as wrong, hence "not <=".
        if not difference <= _tolerance(self.operator, expected):
            return replace(judged, failure="wrong", message=f"largest difference {difference:g}")
        return judged

    def _times(
        self, kernel: Any, inputs: dict[str, np.ndarray], once: float, limit: float
    ) -> tuple[float, ...]:
        """Seconds of a run, repeated as often as asked for or as the limit has room for.

        Args:
            kernel: a kernel that was verified.
            inputs: what it runs on.
            once: seconds of its first run.
            limit: seconds that the task may take.
        """
        repeat, room = self.repeat, _SHARE * limit
        if repeat * once > room:
            repeat = min(repeat, max(_FEWEST, int(room / once)))
        times: tuple[float, ...] = kernel.times(inputs, repeat=repeat, flush=self.flush)
        for _ in range(1, _ROUNDS_OF_REPEATS):
            if noise_of(times) <= _NOISE or (len(times) + repeat) * once > room:
                break
            times += kernel.times(inputs, repeat=repeat, flush=self.flush)
        return times


def _compared(got: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Largest difference, and how many elements are not a number though they should be.

    In blocks: as floats and differences the whole would take many times its memory.
    """
    difference, strange = 0.0, 0
    for one, other in zip(_blocks(got), _blocks(expected), strict=True):
        difference = max(difference, _difference(one, other))
        strange += int(np.count_nonzero(_not_numbers(one) & ~_not_numbers(other)))
    return difference, strange


def _blocks(values: np.ndarray) -> Iterator[np.ndarray]:
    flat = values.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK]


def _not_numbers(values: np.ndarray) -> np.ndarray:
    if np.issubdtype(values.dtype, np.integer):
        return np.zeros(values.shape, dtype=bool)
    return np.isnan(values.astype(np.float64))


def _difference(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest absolute difference; NaN against a number counts as infinite."""
    if got.size == 0:
        return 0.0
    apart = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    return float(np.where(np.isnan(apart), np.inf, apart).max())


def _tolerance(operator: Operator, expected: np.ndarray) -> float:
    """Zero for integers; for floats, rounding of a sum as long as the reduction.

    Integers that an epilogue makes of float sums may round to a neighbour.
    """
    if np.issubdtype(expected.dtype, np.integer):
        return 0.0 if dtype(operator.output.tensor.dtype or "int32").is_integer else 1.0
    length = operator.points / max(1, expected.size)
    largest = (float(np.abs(x.astype(np.float64)).max(initial=0.0)) for x in _blocks(expected))
    scale = max(1.0, *largest)
    step = np.finfo(expected.dtype).eps
    if operator.result_dtype == "bfloat16":
        step = np.float32(2.0**-8)
    return float(step * scale * max(8.0, length))
