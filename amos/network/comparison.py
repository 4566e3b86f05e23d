"""Kernels of a task in turns: beside plain loops, and then inside the network."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from amos.network.external.compiled import CompiledNetwork
from amos.network.external.linking import link_trials
from amos.network.graph import Graph, Node
from amos.network.groups import CallSite, Grouping, Job
from amos.network.kernels import TaskKernel
from amos.network.model import CompiledRegion, random_arrays
from amos.network.network import Network
from amos.network.profile import observed

#: Rounds in which all are timed in turn, and seconds of a turn. The fastest call counts: the
#: others were disturbed.
_ROUNDS, _SECONDS = 4, 0.01
#: What is so much slower in its first call is not timed again.
_HOPELESS = 5.0
#: Runs in a row inside a network, of which the first fetches the weights; rounds of them, at the
#: most and at the least, and seconds after which there is no other round.
_RUNS, _MOST, _LEAST, _SPAN = 2, 16, 3, 10.0


@dataclass(frozen=True)
class Comparison:
    """Kernels of a task, timed where they stand in the network.

    Attributes:
        operator: of the task.
        count: how often it occurs.
        seconds: of all occurrences, for each kernel: in order of what they take alone.
    """

    operator: str
    count: int
    seconds: tuple[float, ...]

    @property
    def chosen(self) -> int:
        """The fastest."""
        return self.seconds.index(min(self.seconds))

    def __str__(self) -> str:
        times = ", ".join(f"{each * 1e6:.1f}" for each in self.seconds)
        return f"{times} us in the network, of {self.count} x {self.operator}"


def compare(kernels: Sequence[TaskKernel], task: Job) -> list[float]:
    """Seconds of each kernel for one group of a task, and at last of plain loops.

    All are operators of onnxruntime, and take turns.
    """
    group = task.groups[0]
    network = Network(task.operator.name, _alone(group), Grouping((), ()))
    single = Job(task.operator, (group,))
    lineups = [*({single: each} for each in kernels), dict[Job, TaskKernel]()]
    models = link_trials(CompiledRegion(network, lineup) for lineup in lineups)
    arrays = random_arrays(network, integers=(0, 2))
    best = []
    for model in models:
        model.outputs_of(arrays)
        best.append(_least(model, arrays, 0))
    hopeless = _HOPELESS * min(best)
    for _ in range(_ROUNDS):
        for n, model in enumerate(models):
            if best[n] <= hopeless:
                best[n] = min(best[n], _least(model, arrays, _SECONDS))
    return best


def compare_inside(
    models: Sequence[CompiledNetwork], kernels: Mapping[Job, Sequence[TaskKernel]]
) -> dict[Job, Comparison]:
    """Time kernels in the network.

    What is fast alone may be slow there, where weights come from memory.

    Args:
        models: a network with the first kernel of each task, with the second, and so on.
        kernels: of each task, under one name; with fewer than models, the last stands in.
    """
    runs = observed(models, random_arrays(models[0].network), _turns(len(models)))

    return {
        task: Comparison(
            str(task.operator),
            task.weight,
            tuple(sum(_least_of_calls(runs[n], kernel)) for n, kernel in enumerate(each)),
        )
        for task, each in kernels.items()
    }


def faster_inside(
    models: Sequence[CompiledNetwork],
    kernels: Mapping[Job, TaskKernel],
    cascades: Mapping[Job, TaskKernel],
) -> dict[Job, TaskKernel]:
    """The cascades that are no slower in the network than their convolutions one by one.

    Args:
        models: the network without cascades, and with all of them.
        kernels: of all tasks but those that the engine computes faster.
        cascades: with their kernels.
    """
    runs = observed(models, random_arrays(models[0].network), _turns(len(models)))
    alone: dict[int, float] = {}
    for task, kernel in kernels.items():
        for group, seconds in zip(task.groups, _least_of_calls(runs[0], kernel), strict=False):
            alone |= {node.number: 0.0 for node in group.nodes} | {group.result.number: seconds}

    def fast(job: Job, kernel: TaskKernel) -> bool:
        inside = [node.number for place in job.groups for node in place.nodes]
        # Where plain loops were faster than a kernel, the cascade is not tried against it.
        if not alone.keys() >= {*inside}:
            return False
        return sum(_least_of_calls(runs[1], kernel)) <= sum(alone[number] for number in inside)

    return {job: kernel for job, kernel in cascades.items() if fast(job, kernel)}


def _least_of_calls(
    runs: Sequence[Mapping[str, Sequence[float]]], kernel: TaskKernel
) -> list[float]:
    """Seconds of each call of a kernel in the network, in the order of its groups."""
    calls = zip(*(run.get(kernel.symbol, ()) for run in runs), strict=True)
    return [min(each) for each in calls]


def _turns(count: int) -> Iterator[int]:
    """Who of so many runs next."""
    end = time.perf_counter() + _SPAN
    for turn in range(_MOST):
        if turn < _LEAST or time.perf_counter() < end:
            yield from (n for n in range(count) for _ in range(_RUNS))


def _alone(group: CallSite) -> Graph:
    """A graph of a group, whose inputs are what it reads of others."""
    inside = {node.number: node for node in group.nodes}
    outside = {
        operand.number: operand
        for node in group.nodes
        for operand in node.operands
        if isinstance(operand, Node) and operand.number not in inside
    }
    inputs = [
        replace(node, operation="input", operands=(), attributes={}, name=f"input{number}")
        for number, node in sorted(outside.items())
    ]
    nodes = (*inputs, *(inside[number] for number in sorted(inside)))
    return Graph(nodes, (group.result,))


def _least(model: CompiledNetwork, arrays: Sequence[Any], span: float) -> float:
    """Seconds of the fastest of the calls that some time has room for, at least one."""
    least, end = math.inf, time.perf_counter() + span
    while True:
        start = time.perf_counter()
        model.outputs_of(arrays)
        now = time.perf_counter()
        least = min(least, max(now - start, math.ulp(1.0)))
        if now >= end:
            return least
