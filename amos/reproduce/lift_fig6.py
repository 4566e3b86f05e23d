"""Lift, Figure 6: throughput by number of candidates, with sequential loops fused or not.

Fused loops and sequential loops compile to the same code here. So all strategies reach the same
kernels, and differ only in how often they draw each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

import amos
from amos.chains.measuring import ChainTask
from amos.chains.parallel import FUSED, FUSIONS, SEQUENTIAL, ParallelSpace
from amos.measure.runner import measurement_of
from amos.opencl.chains.candidate import ParallelCandidate
from amos.opencl.executor import OpenClExecutor, find_device

#: Candidates after which the expected best is shown, and samples of its median.
SHOWN, _SAMPLES = (1, 10, 30, 70, 140, 250), 100
#: Share of the best rate that counts as the best; timings of a kernel, and seconds for all.
_REACHED, _REPEAT, _SECONDS = 0.99, 3, 20.0
#: Candidates after which the paper's strategies yield their best, where it says so.
PAPER_REACHED = {"always": 70, "random": 140}


@dataclass(frozen=True)
class FusionRates:
    """Candidates of one strategy.

    Attributes:
        fusion: whether sequential loops are fused, one of ``FUSIONS``.
        candidates: valid mappings that were drawn, all different.
        failed: mappings whose kernel was too slow, crashed or was wrong.
        gflops: 10^9 operations per second of the fastest.
        gflops_after: median of the best of that many candidates, drawn 100 times.
        reached_after: candidates after which that median is within 1 % of the fastest, 0 if all
            failed.
        paper_reached_after: the same in the paper, if it says so.
    """

    layer: str
    fusion: str
    candidates: int
    kernels: int
    failed: int
    gflops: float
    gflops_after: Mapping[int, float]
    reached_after: int
    paper_reached_after: int | None


def compare_fusions(
    frame: ParallelCandidate, layer: str, candidates: int, seed: int, timeout: float = _SECONDS
) -> tuple[FusionRates, ...]:
    """Measure mappings of each strategy on the first OpenCL device, in these tiles and memories."""
    machine = amos.machines.get("pocl")
    spaces = {
        fusion: ParallelSpace(frame.nest, limits=frame.limits_on(machine), fusion=fusion)
        for fusion in FUSIONS
    }
    drawn = {
        fusion: [
            fuse_sequential(frame, choices)
            for choices in space.draw(candidates, np.random.default_rng(seed))
        ]
        for fusion, space in spaces.items()
    }
    rates: dict[str, float] = {}
    device = find_device()
    with OpenClExecutor(machine, device, timeout=timeout) as executor:
        for candidate in (each for own in drawn.values() for each in own):
            if (key := str(candidate)) not in rates:
                rates[key] = _measure(executor, candidate, timeout)
    return tuple(
        _summarize(layer, fusion, [rates[str(each)] for each in own], len({*map(str, own)}), seed)
        for fusion, own in drawn.items()
    )


def fuse_sequential(frame: ParallelCandidate, choices: Mapping[str, str]) -> ParallelCandidate:
    """Return the mapping of the same code that keeps rule 8."""
    fused = dict(choices)
    runs = (SEQUENTIAL, FUSED)
    sequential: set[str] = set()
    parents = {x.name: loop for loop in frame.nest.loops if (x := loop.perfectly_nested)}
    for loop in frame.nest.loops:
        if choices[loop.name] in runs:
            outer = parents.get(loop.name)
            joins = outer is not None and outer.name in sequential
            fused[loop.name] = FUSED if joins else SEQUENTIAL
            sequential.add(loop.name)
    return replace(frame, choices=fused)


def _measure(executor: OpenClExecutor, candidate: ParallelCandidate, timeout: float) -> float:
    """Return 10^9 operations per second; 0 if it failed."""
    task = executor.place(ChainTask(candidate, repeat=_REPEAT))
    measurement = measurement_of(executor.runner.request(task, timeout))
    if measurement.failure:
        return 0.0
    return float(candidate.chain.operations / min(measurement.times) / 1e9)


def _summarize(
    layer: str, fusion: str, rates: Sequence[float], kernels: int, seed: int
) -> FusionRates:
    count, best = len(rates), max(rates)
    rng = np.random.default_rng(seed)
    draws = np.stack([rng.permutation(rates) for _ in range(_SAMPLES)])
    expected = np.median(np.maximum.accumulate(draws, axis=1), axis=0)
    return FusionRates(
        layer=layer,
        fusion=fusion,
        candidates=count,
        kernels=kernels,
        failed=sum(rate == 0 for rate in rates),
        gflops=best,
        gflops_after={n: float(expected[n - 1]) for n in SHOWN if n <= count},
        reached_after=int(np.argmax(expected >= _REACHED * best)) + 1 if best else 0,
        paper_reached_after=PAPER_REACHED.get(fusion),
    )
