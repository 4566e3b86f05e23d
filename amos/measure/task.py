"""Measuring one candidate: build it, compare it with NumPy, time it."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from amos.errors import AmosError
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.measure.limits import lacks_memory
from amos.measure.messages import LOADER, Context, Failure
from amos.measure.reference import as_tuple, compare_arrays, tolerance
from amos.plan import Candidate
from amos.records.measurement import Measurement, noise_of

#: A measurement noisier than this is prolonged, to at most this many rounds of repeats.
_NOISE, _ROUNDS_OF_REPEATS = 0.02, 3
#: Seconds of timing after which there are no more repeats, and share of the limit.
TIMING, _SHARE = 1.0, 0.25
#: Seconds of a run of a slow kernel, how often it is timed at first, and times its rival's time
#: beyond which that is enough.
_SLOW, _FIRST, _HOPELESS = 0.02, 3, 1.25


def repeat_count(count: int, seconds: float, limit: float = math.inf) -> int:
    """Return the number of timings of a kernel: as requested, or as many as time allows.

    A slow kernel is timed three times, unless that takes too large a share of the limit.

    Args:
        seconds: of one timing; 0 if it is less than a tick of a device's clock.
    """
    if not seconds:
        return count
    usual, most = int(TIMING / seconds), _SHARE * limit / seconds
    return max(1, int(min(count, max(usual, _FIRST), most)))


class Place(ABC):
    """The device on which a target's candidates run, if not this CPU; it travels pickled.

    Attributes:
        loader: function, by its module, that loads what building needs; it is called
            outside of the limits of a candidate. Empty if there is little to load.
    """

    loader: ClassVar[str] = ""

    @abstractmethod
    def build(self, candidate: Any) -> Any:
        """Build the kernel of a candidate, with ``prepare``, ``run``, ``result`` and ``times``."""

    def release(self, kernel: Any) -> None:  # noqa: B027 - most kernels hold nothing
        """Give back what a kernel holds outside of its process."""


@dataclass(frozen=True)
class Task:
    """One requested measurement.

    Attributes:
        repeat: timings of a quiet measurement; a noisy one is prolonged, one that
            would take long is shortened.
        implementation: ``"native"`` or ``"generic"``; by default the one that exists.
        predicted: seconds of one run by the model, which the time limit allows for.
        rival: seconds of the fastest kernel so far; a far slower one is timed less often.
        place: where to run it; by default on this CPU.
        board: address of one behind TVM's RPC tracker that runs it instead.
    """

    candidate: Candidate
    repeat: int = 10
    implementation: str | None = None
    flush: int = 0
    predicted: float = 0.0
    rival: float = math.inf
    place: Place | None = None
    board: str = ""

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
        """The loader of code for the device, and the operator's reference result."""
        loader = LOADER if self.place is None else self.place.loader
        return frozenset({*filter(None, [loader]), self.operator})

    def run(self, context: Context) -> Measurement | Failure:
        """Build, verify, then time it; nothing runs before the cores are ours."""
        kernel: Any
        try:
            kernel = self._build()
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
            got = as_tuple(kernel.result(arguments))
            judged = self._judge(got, expected, kernel.implementation)
            if not judged.ok:
                return judged
            return replace(judged, times=self._times(kernel, inputs, once, context.limit))
        finally:
            if self.place is not None:
                self.place.release(kernel)

    def _build(self) -> Any:
        if self.place is not None:
            return self.place.build(self.candidate)
        from amos.runtime import build

        return build(self.candidate, implementation=self.implementation)

    def _judge(
        self, got: Sequence[np.ndarray], expected: Sequence[np.ndarray], implementation: str
    ) -> Measurement:
        size, largest = sum(x.size for x in expected), 0.0
        for number, (actual, reference) in enumerate(zip(got, expected, strict=True)):
            difference, nan_count = compare_arrays(actual, reference)
            largest = max(largest, difference)
            judged = Measurement((), size, largest, implementation)
            if nan_count:
                message = f"{nan_count} of {reference.size} elements are not a number"
                return replace(judged, failure="nan", message=message)
            # An infinite difference of infinities is NaN and must count as wrong, hence "not <=".
            if not difference <= self._tolerance(reference, number):
                message = f"largest difference {difference:g}"
                return replace(judged, failure="wrong", message=message)
        return judged

    def _tolerance(self, reference: np.ndarray, number: int) -> float:
        return tolerance(self.operator, reference, number)

    def _times(
        self, kernel: Any, inputs: dict[str, np.ndarray], once: float, limit: float
    ) -> tuple[float, ...]:
        """Time runs of a kernel whose first run took ``once``, as often as time allows; seconds."""
        first = repeat_count(self.repeat, once, limit) if once < _SLOW else 1
        times = tuple(kernel.times(inputs, repeat=first, flush=self.flush))
        # The first run may have compiled something.
        most = repeat_count(_ROUNDS_OF_REPEATS * self.repeat, min(times), limit)
        repeat = min(self.repeat, most)
        if first < min(repeat, _FIRST):
            more = min(repeat, _FIRST) - first
            times += tuple(kernel.times(inputs, repeat=more, flush=self.flush))
        if len(times) < repeat and min(times) > _HOPELESS * self.rival:
            return times
        while len(times) < repeat or (noise_of(times) > _NOISE and len(times) + repeat <= most):
            more = repeat - len(times) % repeat
            times += tuple(kernel.times(inputs, repeat=more, flush=self.flush))
        return times
