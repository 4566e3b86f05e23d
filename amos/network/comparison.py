"""Kernels held against the engine's own code for the same group, each called by the engine."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from amos.network import engine
from amos.network.graph import Graph, Node
from amos.network.groups import Group
from amos.network.kernels import TaskKernel
from amos.network.program import rebuilt

__all__ = ["compare"]

#: Rounds in which all are timed in turn, and seconds of a turn. The fastest call counts: the
#: others were disturbed.
_ROUNDS, _SECONDS = 7, 0.02
#: What is so much slower in its first call is not timed again.
_HOPELESS = 5.0


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
