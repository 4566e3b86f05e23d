"""Graphs run by their loops, call by call, on arrays of NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from amos.network.external.library import calls_of
from amos.network.external.straight_line import COPY, Buffer, Place, StraightLine, straight_line
from amos.network.graph import Graph, GraphBuilder, Operand
from amos.network.loops.functions import LoopFunctions
from amos.network.loops.scheduling import needs_exact_rounding, schedule_loops
from amos.network.operations import numpy_dtype


def graph_of(make: Callable[..., Any], *ports: tuple[Sequence[int], str]) -> Graph:
    """A graph of what a function emits, of a builder and inputs of these shapes and dtypes."""
    builder = GraphBuilder()
    inputs = [builder.add_input(f"x{n}", *port) for n, port in enumerate(ports)]
    results: Operand | list[Operand] = make(builder, *inputs)
    return builder.finish(results if isinstance(results, list) else [results])


def line_of(graph: Graph) -> tuple[StraightLine, dict[str, Any]]:
    """The calls of a graph that no kernel computes, and the scheduled functions of its loops."""
    line, functions = unscheduled_line_of(graph)
    return line, schedule_loops(functions, needs_exact_rounding(functions.values()))


def unscheduled_line_of(graph: Graph) -> tuple[StraightLine, dict[str, Any]]:
    """The calls of a graph that no kernel computes, and the functions of its loops."""
    loops = LoopFunctions()
    region: Any = SimpleNamespace(network=SimpleNamespace(graph=graph), kernels={})
    line = straight_line("main", graph, calls_of(region, loops))
    return line, loops.functions


def text_of(graph: Graph) -> str:
    """The scheduled functions of a graph's loops as text."""
    return "\n".join(map(str, line_of(graph)[1].values()))


def compile_loops(functions: Mapping[str, Any]) -> Any:
    """Compile scheduled functions into this process."""
    import tvm

    from amos.codegen.tir.memory import register_pipeline
    from amos.codegen.tir.rounding import fence_products, round_in_vectors
    from amos.codegen.tir.target import host_target

    round_in_vectors()
    pipeline = register_pipeline("amos_engine", fence_products)
    return tvm.tirx.build(tvm.IRModule(functions), target=host_target(), pipeline=pipeline)


def run_graph(graph: Graph, *arrays: np.ndarray) -> list[np.ndarray]:
    """Results of a graph, with its tensors where its memory is planned."""
    line, functions = line_of(graph)
    library = compile_loops(functions) if functions else {}
    arena = np.full(line.arena_bytes, 255, np.uint8)
    memory = {
        Place.INPUT: [*arrays],
        Place.OUTPUT: [np.zeros(node.shape, numpy_dtype(node.dtype)) for node in graph.outputs],
        Place.CONSTANT: [*line.constants],
    }

    def bytes_of(buffer: Buffer) -> np.ndarray:
        """The memory of a tensor; where a slice begins late, up to the end of what it reads."""
        count = prod(buffer.shape) * numpy_dtype(buffer.dtype).itemsize
        if buffer.place is Place.ARENA:
            return arena[buffer.index + buffer.begin :][:count]
        whole = np.ascontiguousarray(memory[buffer.place][buffer.index])
        return whole.reshape(-1).view(np.uint8)[buffer.begin :][:count]

    for step in line.steps:
        *sources, target = step.buffers
        if step.function == COPY:
            bytes_of(target)[:] = bytes_of(sources[0])
            continue
        tensors = [_tensor(bytes_of(each), each) for each in step.buffers]
        library[step.function](*tensors)
        bytes_of(target)[:] = tensors[-1].numpy().reshape(-1).view(np.uint8)
    return memory[Place.OUTPUT]


def _tensor(values: np.ndarray, buffer: Buffer) -> Any:
    """A copy as TVM's tensor."""
    import tvm

    tensor, whole = tvm.runtime.empty(buffer.shape, buffer.dtype), np.zeros(buffer.shape)
    whole = whole.astype(numpy_dtype(buffer.dtype))
    whole.reshape(-1).view(np.uint8)[: values.size] = values
    return tensor.copyfrom(whole)
