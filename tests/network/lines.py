"""Graphs run by their loops, call by call, on arrays of NumPy."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from amos._toolchain import load_tvm
from amos.network.engine import scheduled_loops
from amos.network.external.library import calls_of
from amos.network.external.straight_line import COPY, Buffer, Place, StraightLine, straight_line
from amos.network.graph import Graph
from amos.network.loops.functions import LoopFunctions


def line_of(graph: Graph) -> tuple[StraightLine, dict[str, Any]]:
    """The calls of a graph that no kernel computes, and the scheduled functions of its loops."""
    loops = LoopFunctions()
    region: Any = SimpleNamespace(network=SimpleNamespace(graph=graph), kernels={})
    line = straight_line("main", graph, calls_of(region, loops))
    return line, scheduled_loops(loops.functions)


def text_of(graph: Graph) -> str:
    """The scheduled functions of a graph's loops as text."""
    return "\n".join(map(str, line_of(graph)[1].values()))


def compile_loops(functions: dict[str, Any]) -> Any:
    """Compile scheduled functions into this process."""
    load_tvm()
    import tvm

    from amos.codegen.tir.memory import pipeline_with
    from amos.codegen.tir.rounding import fenced, round_in_vectors
    from amos.codegen.tir.target import host_target

    round_in_vectors()
    pipeline = pipeline_with("amos_engine", fenced)
    return tvm.tirx.build(tvm.IRModule(functions), target=host_target(), pipeline=pipeline)


def run_graph(graph: Graph, *arrays: np.ndarray) -> list[np.ndarray]:
    """Results of a graph, with its tensors where its memory is planned."""
    line, functions = line_of(graph)
    library = compile_loops(functions) if functions else {}
    outputs = [np.full(node.shape, 77, _numpy(node.dtype)) for node in graph.outputs]
    memory = {
        Place.INPUT: [np.ascontiguousarray(each).reshape(each.shape) for each in arrays],
        Place.OUTPUT: outputs,
        Place.CONSTANT: [np.ascontiguousarray(a).reshape(a.shape) for a in line.constants],
    }
    arena = np.full(line.arena_bytes + 64, 255, np.uint8)
    arena = arena[-arena.ctypes.data % 64 :]

    def bytes_of(buffer: Buffer) -> np.ndarray:
        count = prod(buffer.shape) * _numpy(buffer.dtype).itemsize
        if buffer.place is Place.ARENA:
            return arena[buffer.index : buffer.index + count]
        whole = memory[buffer.place][buffer.index].reshape(-1).view(np.uint8)
        assert len(whole) == count
        return whole

    for step in line.steps:
        *sources, target = step.buffers
        if step.function == COPY:
            bytes_of(target)[:] = bytes_of(sources[0])
            continue
        tensors = [_tensor(bytes_of(each), each) for each in step.buffers]
        library[step.function](*tensors)
        bytes_of(target)[:] = tensors[-1].numpy().reshape(-1).view(np.uint8)
    return outputs


def _numpy(kind: str) -> np.dtype[Any]:
    if kind == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(kind)


def _tensor(values: np.ndarray, buffer: Buffer) -> Any:
    """A copy as TVM's tensor."""
    import tvm

    tensor = tvm.runtime.empty(buffer.shape, buffer.dtype)
    tensor.copyfrom(values.view(_numpy(buffer.dtype)).reshape(buffer.shape))
    return tensor
