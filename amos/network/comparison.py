"""Kernels held against the engine's own code for the same group, each called by the engine."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np

from amos.network import engine
from amos.network.graph import Graph, Node
from amos.network.groups import Group
from amos.network.kernels import TaskKernel
from amos.network.program import rebuilt

__all__ = ["compare"]

#: Rounds in which both are timed in turn, and seconds that all runs of a round may take.
_ROUNDS, _SECONDS = 7, 0.05
#: What is so much slower in its first run is not timed again.
_HOPELESS = 5.0


def compare(kernel: TaskKernel, group: Group) -> tuple[float, float]:
    """Seconds of a kernel, and of the engine's code, for one group of a network.

    Both are compiled with the rest of the engine around them, and take turns.
    """
    graph = _alone(group)
    number = group.result.number
    skip = frozenset(node.number for node in group.nodes if node.number != number)
    own = rebuilt(graph, {number: lambda writer: kernel.call(group, writer)}, skip)
    own = own.with_attr("external_mods", [kernel.library.mod])
    calls = [
        engine.machine_of(engine.executable(each))["main"] for each in (own, rebuilt(graph, {}))
    ]
    arrays = _arrays(graph)
    first = []
    for call in calls:
        call(*arrays)
        first.append(_seconds(call, arrays, 1))
    if first[1] > _HOPELESS * first[0]:
        return first[0], first[1]
    runs = [max(1, min(100, int(_SECONDS / max(once, 1e-9)))) for once in first]
    times: list[list[float]] = [[], []]
    for _ in range(_ROUNDS):
        for n, call in enumerate(calls):
            times[n].append(_seconds(call, arrays, runs[n]))
    return statistics.median(times[0]), statistics.median(times[1])


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


def _seconds(call: Any, arrays: list[Any], runs: int) -> float:
    """Of one of some runs, one after the other."""
    start = time.perf_counter()
    for _ in range(runs):
        call(*arrays)
    return max((time.perf_counter() - start) / runs, math.ulp(1.0))
