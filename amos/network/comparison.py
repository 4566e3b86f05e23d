"""Timing kernels of a task in turns: alone beside plain loops, then in the network."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from amos.network.external.compiled import CompiledNetwork
from amos.network.external.linking import link_trial
from amos.network.external.writing import values_read
from amos.network.graph import Graph
from amos.network.groups import CallSite, Grouping, Job, drop_fused_groups
from amos.network.inputs import random_arrays
from amos.network.kernels import CompiledRegion, TaskKernel
from amos.network.network import Network
from amos.network.profile import time_calls

#: Rounds in which kernels are timed in turns, and seconds of a turn. The fastest call counts.
_ROUNDS, _SECONDS = 4, 0.01
#: Candidates that are this many times slower than the fastest in their first call are dropped.
_HOPELESS = 5.0
#: Runs of a network in a row, of which the first fetches the weights; rounds of them, at most and
#: at least, and seconds after which no further round begins.
_RUNS, _MOST, _LEAST, _SPAN = 2, 16, 3, 10.0


@dataclass(frozen=True)
class Comparison:
    """Kernels of a task, timed in the network.

    Attributes:
        seconds: of all occurrences, for each kernel; the kernel that is fastest alone first.
    """

    operator: str
    count: int
    seconds: tuple[float, ...]

    @property
    def chosen(self) -> int:
        """Position of the fastest."""
        return self.seconds.index(min(self.seconds))

    def __str__(self) -> str:
        times = ", ".join(f"{each * 1e6:.1f}" for each in self.seconds)
        return f"{times} us in the network, of {self.count} x {self.operator}"


def compare_alone(kernels: Sequence[TaskKernel], task: Job) -> list[float]:
    """Time kernels, and plain loops last, for one group of a task; returns seconds.

    They take turns, each as an operator of onnxruntime.
    """
    group = task.groups[0]
    network = Network(task.operator.name, _extract_group(group), Grouping((), ()))
    single = Job(task.operator, (group,))
    lineups = [*({single: each} for each in kernels), dict[Job, TaskKernel]()]
    models = [link_trial(CompiledRegion(network, lineup)) for lineup in lineups]
    arrays = random_arrays(network, integers=(0, 2))
    best = []
    for model in models:
        model.outputs_of(arrays)
        best.append(_time_fastest_call(model, arrays, 0))
    hopeless = _HOPELESS * min(best)
    for _ in range(_ROUNDS):
        for n, model in enumerate(models):
            if best[n] <= hopeless:
                best[n] = min(best[n], _time_fastest_call(model, arrays, _SECONDS))
    return best


def compare_in_network(
    models: Sequence[CompiledNetwork], kernels: Mapping[Job, Sequence[TaskKernel]]
) -> dict[Job, Comparison]:
    """Time kernels in the network, where weights come from memory.

    Args:
        models: a network with the first kernel of each task, with the second, and so on.
        kernels: of each task; with fewer than models, the last stands in.
    """
    runs = time_calls(models, random_arrays(models[0].network), _turns(len(models)))
    return {
        task: Comparison(
            str(task.operator),
            task.weight,
            tuple(sum(_least(runs[n], kernel.symbol)) for n, kernel in enumerate(each)),
        )
        for task, each in kernels.items()
    }


def select_faster_fused(
    network: Network, kernels: dict[Job, TaskKernel], fused: dict[Job, TaskKernel]
) -> dict[Job, TaskKernel]:
    """Select the cascades and chains that are no slower in the network than separate kernels."""
    lineups = kernels, drop_fused_groups(kernels, fused) | fused
    models = [link_trial(CompiledRegion(network, lineup)) for lineup in lineups]
    runs = time_calls(models, random_arrays(models[0].network), _turns(len(models)))
    separate, joint = (_least_by_node(*each) for each in zip(models, runs, strict=True))

    def total(job: Job, seconds: Mapping[int, float]) -> float:
        return sum(seconds.get(node.number, 0.0) for site in job.groups for node in site.nodes)

    return {job: each for job, each in fused.items() if total(job, joint) <= total(job, separate)}


def _least_by_node(
    model: CompiledNetwork, runs: Sequence[Mapping[str, Sequence[float]]]
) -> dict[int, float]:
    """Return the least seconds of each call, of kernels and of loops, by the node it computes."""
    assert model.library is not None
    (steps,) = model.library.steps.values()
    calls = {name: iter(_least(runs, name)) for name in runs[0]}
    return {step.node: next(calls[step.function or "copy"]) for step in steps}


def _least(runs: Sequence[Mapping[str, Sequence[float]]], function: str) -> list[float]:
    """Return the least seconds of each call of a function, in order."""
    calls = zip(*(run.get(function, ()) for run in runs), strict=True)
    return [min(each) for each in calls]


def _turns(count: int) -> Iterator[int]:
    """Yield the number of the model that runs next."""
    end = time.perf_counter() + _SPAN
    for turn in range(_MOST):
        if turn < _LEAST or time.perf_counter() < end:
            yield from (n for n in range(count) for _ in range(_RUNS))


def _extract_group(group: CallSite) -> Graph:
    """Return a graph of a group, whose inputs are the values that it reads."""
    inputs = [
        replace(node, operation="input", operands=(), attributes={}, name=f"input{node.number}")
        for node in sorted(values_read(group.nodes), key=attrgetter("number"))
    ]
    return Graph((*inputs, *sorted(group.nodes, key=attrgetter("number"))), (group.result,))


def _time_fastest_call(model: CompiledNetwork, arrays: Sequence[Any], span_seconds: float) -> float:
    """Return the seconds of the fastest call within a time, of at least one."""
    least, end = math.inf, time.perf_counter() + span_seconds
    while True:
        start = time.perf_counter()
        model.outputs_of(arrays)
        now = time.perf_counter()
        least = min(least, max(now - start, math.ulp(1.0)))
        if now >= end:
            return least
