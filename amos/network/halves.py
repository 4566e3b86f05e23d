"""ONNX models of floats of 16 bits as models that compute in ``float32``.

CPUs add in ``float32``, and onnxruntime converts each result of such a model and back. Here only
inputs and results of the model are converted. What is between is not rounded, so it is closer to
what the model stands for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from amos.network.packages import helper, numpy_helper, onnx
from amos.network.reading.branches import all_graphs
from amos.network.shapes import HALVES

#: Bytes of a model that protobuf cannot hold, with room for what is no weight.
_LARGEST = 15 * 2**27
#: Attributes that name a dtype.
_DTYPES = frozenset(["to", "dtype", "output_dtype", "stash_type", "softmax_precision"])


def find_halves(model: Any) -> frozenset[str]:
    """Return which floats of 16 bits a model has: ``"float16"``, ``"bfloat16"``."""
    codes = _codes()
    dtypes = {tensor.data_type for tensor in _tensors(model.graph)}
    dtypes |= {port.type.tensor_type.elem_type for port in model.graph.input}
    dtypes |= {
        attribute.i
        for graph in all_graphs(model.graph)
        for node in graph.node
        for attribute in node.attribute
        if attribute.name in _DTYPES
    }
    return frozenset(codes[code] for code in dtypes & {*codes})


def find_factors(model: Any) -> str:
    """Return the dtype of 16 bits that all weights of a model have; empty if they have none.

    Vectors do not count: many such models have biases and norms in ``float32``.
    """
    codes = _codes()
    dtypes = {codes.get(t.data_type, "") for t in _tensors(model.graph) if len(t.dims) > 1}
    return dtypes.pop() if len(dtypes) == 1 else ""


def widen_halves(model: Any) -> Any:
    """Return a model whose 16-bit computations are in ``float32``.

    Its inputs and results keep their dtypes. A model that protobuf could not hold is returned as
    it is.
    """
    half_bytes = sum(2 * prod(t.dims) for t in _tensors(model.graph) if t.data_type in _codes())
    if model.ByteSize() + half_bytes > _LARGEST:
        return model
    wide = type(model)()
    wide.CopyFrom(model)
    _state_results(wide)
    ports = _half_ports(wide.graph)
    for graph in all_graphs(wide.graph):
        _widen_graph(graph, ports)
    _convert_ports(wide.graph, ports)
    return wide


def _state_results(model: Any) -> None:
    """State in place the dtypes of results that a model leaves open, as far as ONNX infers them."""
    if all(port.type.tensor_type.elem_type for port in model.graph.output):
        return
    inferred = {port.name: port for port in onnx.shape_inference.infer_shapes(model).graph.output}
    for port in model.graph.output:
        port.CopyFrom(inferred[port.name])


def _codes() -> dict[int, str]:
    """Return ONNX's numbers of floats of 16 bits."""
    return {onnx.TensorProto.DataType.Value(name.upper()): name for name in HALVES}


def _tensors(graph: Any) -> Iterator[Any]:
    """Yield the constants of a graph."""
    for inner in all_graphs(graph):
        yield from inner.initializer
        for node in inner.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t


def _half_ports(graph: Any) -> dict[str, str]:
    """Return the inner names of the inputs and results that are converted."""
    codes, weights = _codes(), {tensor.name for tensor in graph.initializer}
    ports = [port for port in graph.input if port.name not in weights] + [*graph.output]
    used = {name for inner in all_graphs(graph) for node in inner.node for name in node.output}
    used |= {port.name for port in (*graph.input, *graph.output)} | weights
    names: dict[str, str] = {}
    for port in ports:
        if port.type.tensor_type.elem_type in codes:
            name = f"{port.name}_float32"
            while name in used:
                name += "_"
            names[port.name] = name
    return names


def _widen_graph(graph: Any, ports: Mapping[str, str]) -> None:
    """Change dtypes in place, and call ports by other names."""
    codes = _codes()
    for tensor in graph.initializer:
        _widen_tensor(tensor)
        tensor.name = ports.get(tensor.name, tensor.name)
    for port in (*graph.input, *graph.output):
        if port.type.tensor_type.elem_type in codes and port.name not in ports:
            port.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    del graph.value_info[:]
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [ports.get(name, name) for name in names]
        for attribute in node.attribute:
            if attribute.name in _DTYPES and attribute.i in codes:
                attribute.i = onnx.TensorProto.FLOAT
            elif attribute.HasField("t"):
                _widen_tensor(attribute.t)


def _widen_tensor(tensor: Any) -> None:
    if tensor.data_type in _codes():
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _convert_ports(graph: Any, ports: Mapping[str, str]) -> None:
    """Convert inputs ahead of all nodes, and results behind them."""
    inputs = {port.name for port in graph.input if port.name in ports}
    nodes = [
        helper.make_node("Cast", [name], [ports[name]], to=onnx.TensorProto.FLOAT)
        for name in sorted(inputs)
    ]
    nodes += graph.node
    nodes += [
        helper.make_node(
            "Cast", [ports[port.name]], [port.name], to=port.type.tensor_type.elem_type
        )
        for port in graph.output
        if port.name in ports and port.name not in inputs
    ]
    del graph.node[:]
    graph.node.extend(nodes)
