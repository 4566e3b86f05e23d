"""Kernels of a task in turns: beside the engine's own code, and then inside the network."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amos.network import engine
from amos.network.cascades import CascadeTask
from amos.network.graph import Graph, Node
from amos.network.groups import Group, Task
from amos.network.kernels import TaskKernel
from amos.network.model import CompiledNetwork, random_arrays
from amos.network.profile import observed
from amos.network.program import rebuilt

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


def compare(kernels: Sequence[TaskKernel], group: Group) -> list[float]:
    """Seconds of each kernel for one group of a network, and at last of the engine's own code.

    All are compiled with the rest of the engine around them, and take turns.
    """
    graph = _alone(group)
    modules = [*(_calling(kernel, group, graph) for kernel in kernels), rebuilt(graph, {})]
    calls = [engine.machine_of(engine.executable(each))["main"] for each in modules]
    arrays = _arrays(graph)
    best = []
    for call in calls:
        call(*arrays)
        best.append(_least(call, arrays, 0))
    hopeless = _HOPELESS * min(best)
    for _ in range(_ROUNDS):
        for n, call in enumerate(calls):
            if best[n] <= hopeless:
                best[n] = min(best[n], _least(call, arrays, _SECONDS))
    return best


def compare_inside(
    models: Sequence[CompiledNetwork], kernels: Mapping[Task, Sequence[TaskKernel]]
) -> dict[Task, Comparison]:
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
    kernels: Mapping[Task, TaskKernel],
    cascades: Mapping[CascadeTask, TaskKernel],
) -> dict[CascadeTask, TaskKernel]:
    """The cascades that are no slower in the network than their convolutions one by one.

    Args:
        models: the network without cascades, and with all of them.
        kernels: of all tasks but those that the engine computes faster.
        cascades: with their kernels.
    """
    runs = observed(models, random_arrays(models[0].network), _turns(len(models)))
    alone: dict[Group, float] = {}
    for task, kernel in kernels.items():
        alone |= zip(task.groups, _least_of_calls(runs[0], kernel), strict=False)

    def fast(task: CascadeTask, kernel: TaskKernel) -> bool:
        groups = [group for place in task.groups for group in place.groups]
        # Where the engine's own code was faster than a kernel, the cascade is not tried against it.
        if not alone.keys() >= {*groups}:
            return False
        return sum(_least_of_calls(runs[1], kernel)) <= sum(alone[group] for group in groups)

    return {task: kernel for task, kernel in cascades.items() if fast(task, kernel)}


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


def _calling(kernel: TaskKernel, group: Group, graph: Graph) -> Any:
    """A module in which a kernel stands for a group."""
    number = group.result.number
    skip = frozenset(node.number for node in group.nodes if node.number != number)
    module = rebuilt(graph, {number: lambda writer: kernel.call(group, writer)}, skip)
    return module.with_attr("external_mods", [kernel.library.mod])


def _alone(group: Group) -> Graph:
    """A graph of a group, whose inputs are what it reads of others."""
    inside = {node.number: node for node in group.nodes}
    outside = {
        operand.number: operand
        for node in group.nodes
        for operand in node.operands
        if isinstance(operand, Node) and operand.number not in inside
    }
    inputs = [
        replace(node, operation="input", operands=(), expression=None, name=f"input{number}")
        for number, node in sorted(outside.items())
    ]
    nodes = (*inputs, *(inside[number] for number in sorted(inside)))
    return Graph(nodes, (group.result,))


def _arrays(graph: Graph) -> list[Any]:
    import tvm

    rng = np.random.default_rng(0)
    values = (rng.integers(0, 3, node.shape).astype(node.dtype) for node in graph.inputs)
    return [tvm.runtime.tensor(each) for each in values]


def _least(call: Any, arrays: list[Any], span: float) -> float:
    """Seconds of the fastest of the calls that some time has room for, at least one."""
    least, end = math.inf, time.perf_counter() + span
    while True:
        start = time.perf_counter()
        call(*arrays)
        now = time.perf_counter()
        least = min(least, max(now - start, math.ulp(1.0)))
        if now >= end:
            return least
