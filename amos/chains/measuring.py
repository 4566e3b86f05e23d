"""Measuring one kernel of a chain in the process that may be lost."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

import numpy as np

from amos.errors import AmosError
from amos.intrinsics import Intrinsic
from amos.ir import Chain, Operator, dtype
from amos.ir.transforms import transforms_of
from amos.measure.limits import lacks_memory
from amos.measure.messages import LOADER, Context, Failure
from amos.measure.reference import STEPS, compare_arrays
from amos.measure.task import Place, repeat_count
from amos.records import Measurement


@dataclass(frozen=True)
class ChainTask:
    """One measurement that is asked for.

    Attributes:
        candidate: the kernel, such as a :class:`~amos.chains.candidate.ChainCandidate`.
        implementation: ``"native"`` or ``"generic"``; by default what there is.
        flush: bytes of cache to overwrite before each timing.
        repeat: timings.
        place: where to run it; by default on this CPU.
    """

    candidate: Any
    implementation: str | None = None
    flush: int = 0
    repeat: int = 10
    place: Place | None = None

    @property
    def intrinsics(self) -> tuple[Intrinsic, ...]:
        """Those of its products."""
        intrinsics: tuple[Intrinsic, ...] = self.candidate.intrinsics
        return intrinsics

    @property
    def needs(self) -> frozenset[Operator | str]:
        """What loads code for the device."""
        loader = LOADER if self.place is None else self.place.loader
        return frozenset(filter(None, [loader]))

    def run(self, context: Context) -> Measurement | Failure:
        """Build, verify, then time it; nothing runs before the cores are ours."""
        kernel: Any
        try:
            kernel = self._build()
        except AmosError as error:
            if lacks_memory(error):
                raise MemoryError(str(error)) from error
            return Failure("build", str(error))
        chain = self.candidate.chain
        inputs, (expected,) = context.references.get(cast(Operator, chain))
        arguments = kernel.prepare(inputs)
        context.wait()
        start = time.perf_counter()
        kernel.run(arguments)
        once = time.perf_counter() - start
        difference, strange = compare_arrays(kernel.result(arguments), expected)
        judged = Measurement((), expected.size, difference, kernel.implementation)
        if strange:
            return replace(judged, failure="nan", message=f"{strange} elements are not a number")
        if not difference <= chain_tolerance(chain, expected):
            return replace(judged, failure="wrong", message=f"largest difference {difference:g}")
        count = repeat_count(self.repeat, once, context.limit)
        return replace(judged, times=tuple(kernel.times(inputs, repeat=count, flush=self.flush)))

    def _build(self) -> Any:
        """Build the kernel where it runs."""
        if self.place is not None:
            return self.place.build(self.candidate)
        from amos.chains.kernel import ChainKernel

        return ChainKernel(self.candidate, self.implementation)


def chain_tolerance(chain: Chain, expected: np.ndarray) -> float:
    """Bound the difference of results: roundings of each statement's longest sums.

    Integers that are made of floats may round to a neighbour; others are exact.
    """
    sums = (step.output.tensor for step in chain.steps)
    kinds = {str(tensor.dtype) for tensor in (*sums, *chain.temporaries, chain.result)}
    kinds |= {step.sum_dtype for step in transforms_of(chain)}
    floats = [kind for kind in kinds if not dtype(kind).is_integer]
    if not floats:
        return 0.0
    if dtype(str(chain.result.dtype)).is_integer:
        return 1.0
    length = max(prod(it.extent for it in step.reduce) for step in chain.steps)
    finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
    scale = max(1.0, float(finite.max(initial=0.0)))
    coarse = max(STEPS.get(kind, STEPS["float32"]) for kind in floats)
    exact = 2.0**-23 * max(8.0, length)
    return scale * max(exact, 4 * coarse) * len(chain.statements)
