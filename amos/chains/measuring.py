"""Measuring one kernel of a chain in the process that may be lost."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from amos.intrinsics import Intrinsic
from amos.ir import Chain, Operator, dtype
from amos.ir.transforms import transforms_of
from amos.measure.reference import STEPS
from amos.measure.task import Task, repeat_count


@dataclass(frozen=True)
class ChainTask(Task):
    """One requested measurement of a kernel, such as a :class:`~amos.chains.ChainCandidate`."""

    candidate: Any

    @property
    def operator(self) -> Any:
        """The chain."""
        return self.candidate.chain

    @property
    def intrinsics(self) -> tuple[Intrinsic, ...]:
        """Those of its products."""
        intrinsics: tuple[Intrinsic, ...] = self.candidate.intrinsics
        return intrinsics

    @property
    def needs(self) -> frozenset[Operator | str]:
        """What loads code for the device."""
        return super().needs - {self.operator}

    def _build(self) -> Any:
        if self.place is not None:
            return self.place.build(self.candidate)
        from amos.chains.kernel import ChainKernel

        return ChainKernel(self.candidate, self.implementation)

    def _tolerance(self, reference: np.ndarray, number: int) -> float:
        return chain_tolerance(self.operator, reference)

    def _times(
        self, kernel: Any, inputs: dict[str, np.ndarray], once: float, limit: float
    ) -> tuple[float, ...]:
        count = repeat_count(self.repeat, once, limit)
        return tuple(kernel.times(inputs, repeat=count, flush=self.flush))


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
