"""A model of ONNX as a graph, whose shapes are known and whose constants are computed.

Nodes that have no form there are *external*: they stay with onnxruntime. What follows them is
read as well, where their results have a shape that is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from amos.errors import NetworkError
from amos.network.graph import Constant, GraphBuilder, Node, Operand
from amos.network.operations import declare_value
from amos.network.packages import helper, numpy_helper, onnx
from amos.network.reading import (
    attention,
    classical,
    elementwise,
    moves,
    norms,
    products,
    quantization,
    resize,
    windows,
)
from amos.network.reading.branches import names_of, names_read
from amos.network.reading.control_flow import CONTROL_FLOW
from amos.network.reading.node import NodeSource, Read
from amos.network.reading.onnx_graph import OnnxGraph
from amos.network.reading.validity import InvalidModel
from amos.network.sessions import infer_by_onnxruntime

#: Readers of operators of ONNX and of onnxruntime's optimizer.
READERS: Mapping[str, Read] = {
    **attention.READERS,
    **classical.READERS,
    **elementwise.READERS,
    **moves.READERS,
    **norms.READERS,
    **products.READERS,
    **quantization.READERS,
    **resize.READERS,
    **windows.READERS,
}
#: Why others stay with onnxruntime, where that says more than that they are not supported.
_EXTERNAL = {
    **dict.fromkeys(("If", "Loop", "Scan"), "control flow"),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), "recurrent layer, which onnxruntime runs as a whole"),
    **dict.fromkeys(("NonZero", "NonMaxSuppression", "Unique", "Compress"), "shape by values"),
    **dict.fromkeys(("TopK", "CumSum"), "sorts or sums up in order"),
}
#: Domains whose names stand for these operators.
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
#: Operators that ONNX and onnxruntime each define, of which onnxruntime's means something else.
_NOT_ONNXRUNTIME = ("Attention", "GroupNorm")
#: dtypes of tensors of a graph, beside weights of 4 bits that are dequantized at once.
DTYPES = frozenset(
    ["bool", "float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64"]
    + ["uint8", "uint16", "uint32"]
)
_PACKED = frozenset(["int4", "uint4"])
#: Elements of the largest constant that shapes of external results are inferred from.
_MOST_ELEMENTS = 1024
#: Bytes of the largest node whose results are inferred: trees of scikit-learn take seconds.
_LARGEST_NODE = 1 << 20
_UNKNOWN = "a shape that is known at run time only"


def read_model(model: Any, shapes: Mapping[str, Sequence[int]]) -> OnnxGraph:
    """Read the nodes of a model that a graph can express; others are external.

    Args:
        model: an ``onnx.ModelProto``, its own functions written out.

    Raises:
        NetworkError: an input is empty, or a result has another dtype than the model states.
    """
    return _ModelReader(model, shapes).read_model()


class _ModelReader:
    """One pass over the nodes of a model.

    Attributes:
        nodes: that were read; bodies of branches and loops stand in place of their nodes.
        weights: constants of such bodies.
        read: names of values that nodes read, or that are results.
        is_rewritten: whether a body stands in place of a node.
    """

    def __init__(self, model: Any, shapes: Mapping[str, Sequence[int]]) -> None:
        self.model, self.shapes, self.builder = model, shapes, GraphBuilder()
        versions = [v.version for v in model.opset_import if v.domain in ("", "ai.onnx")]
        self.opset = max(versions, default=1)
        self.tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self.values: dict[str, Operand] = {}
        graph = model.graph
        ports = (*graph.input, *graph.value_info, *graph.output)
        self.declared = {each.name: each for each in ports if each.type.tensor_type.elem_type}
        self.external: dict[int, str] = {}
        self.nodes, self.weights = list[Any](), list[Any]()
        self.names, self.read, self.is_rewritten = names_of(graph), set[str](), False

    def read_model(self) -> OnnxGraph:
        graph, inputs = self.model.graph, dict[str, str]()
        for port in graph.input:
            if port.name not in self.tensors:
                dtype = inputs[port.name] = dtype_name(port.type.tensor_type.elem_type)
                self.add_input(port.name, self.shapes[port.name], dtype)
        self.read_nodes(graph.node, [port.name for port in graph.output])
        for port in graph.output:
            if (value := self.value(port.name)) is not None:
                _check_result(port, value)
        return OnnxGraph(
            self.written_model(),
            self.builder.nodes,
            self.values,
            self.external,
            inputs,
            self.shapes,
        )

    def add_input(self, name: str, shape: Sequence[int], dtype: str) -> None:
        """Append an input that a graph may have; nodes that read others stay with onnxruntime."""
        if dtype in DTYPES and 0 not in shape:
            self.values[name] = self.builder.add_input(name, shape, dtype)

    def value(self, name: str) -> Operand | None:
        """Return a value by its name; weights are unpacked when they are read first."""
        if name not in self.values and name in self.tensors:
            tensor = self.tensors[name]
            if dtype_name(tensor.data_type) in DTYPES | _PACKED:
                self.values[name] = Constant(_array(tensor))
        return self.values.get(name)

    def add_weight(self, name: str, values: Any) -> None:
        """Add a constant to the model: a tensor of ONNX, or an array."""
        tensor = onnx.TensorProto()
        tensor.CopyFrom(
            numpy_helper.from_array(values) if isinstance(values, np.ndarray) else values
        )
        tensor.name = name
        self.names.add(name)
        self.weights.append(tensor)
        self.tensors[name] = tensor

    def unused_prefix(self, node: Any) -> str:
        """Return how names can begin that no value of the model has."""
        prefix = f"{next(filter(None, node.output), node.op_type)}/"
        while any(name.startswith(prefix) for name in self.names):
            prefix = f"{prefix[:-1]}_/"
        return prefix

    def read_nodes(self, nodes: Sequence[Any], results: Iterable[str]) -> None:
        """Read nodes, of branches and loops the contents; others read some of the results."""
        self.names.update(name for node in nodes for name in node.output)
        self.read.update(results, *map(names_read, nodes))
        for node in nodes:
            if node.op_type in CONTROL_FLOW and self.replace_node(node):
                continue
            self.nodes.append(node)
            try:
                self.read_node(node)
            except InvalidModel:
                raise
            except NetworkError as error:
                self.leave_node(node, str(error).splitlines()[0])

    def replace_node(self, node: Any) -> bool:
        """Read the contents of a branch or a loop in place of its node, if its course is known."""
        trial = copy(self)
        trial.builder, trial.is_rewritten = self.builder.fork(), True
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(trial, name, copy(value))
        try:
            is_replaced = CONTROL_FLOW[node.op_type](trial, node)
        except (IndexError, KeyError, StopIteration, ValueError):  # of a node that is not valid
            return False
        if is_replaced:
            vars(self).update(vars(trial))
        return is_replaced

    def written_model(self) -> Any:
        """Return the model with the nodes that were read."""
        if not self.is_rewritten:
            return self.model
        model = type(self.model)()
        model.CopyFrom(self.model)
        del model.graph.node[:]
        model.graph.node.extend(self.nodes)
        model.graph.initializer.extend(self.weights)
        return model

    def read_node(self, node: Any) -> None:
        """Append the operators of a node, or raise NetworkError if it stays with onnxruntime."""
        reader = READERS.get(node.op_type)
        is_known = node.domain in _DOMAINS and not (
            node.domain == "com.microsoft" and node.op_type in _NOT_ONNXRUNTIME
        )
        if reader is None or not is_known:
            of = f" of domain {node.domain!r}" if node.domain not in ("", "ai.onnx") else ""
            plain = f"{node.op_type}{of} is not supported"
            raise NetworkError(plain if of else _EXTERNAL.get(node.op_type, plain))
        inputs = [self.value(name) if name else None for name in node.input]
        if any(name and value is None for name, value in zip(node.input, inputs, strict=True)):
            raise NetworkError(_UNKNOWN)
        source = NodeSource(
            operation=node.op_type,
            inputs=tuple(inputs),
            attributes={each.name: _attribute(each) for each in node.attribute},
            opset=self.opset,
            builder=self.builder,
            outputs=tuple(name in self.read for name in node.output),
        )
        values = _results(source, reader)
        for name, value in zip(node.output, values, strict=False):
            if name and value is not None:
                self.values[name] = value

    def leave_node(self, node: Any, why: str) -> None:
        """Leave a node to onnxruntime: its results are inputs of the graph."""
        self.external[len(self.nodes) - 1] = why
        for port in self.infer(node):
            kind = port.type.tensor_type
            sizes = [each.dim_value for each in kind.shape.dim]
            if kind.elem_type:
                self.declared[port.name] = port
                if kind.HasField("shape") and all(size > 0 for size in sizes):
                    self.add_input(port.name, sizes, dtype_name(kind.elem_type))

    def infer(self, node: Any) -> list[Any]:
        """Declarations of the results of a node, as far as ONNX can tell."""
        ports, tensors = list[Any](), list[Any]()
        declared = [self.declared[name] for name in node.output if name in self.declared]
        for name in dict.fromkeys(names_read(node)):
            value = self.value(name)
            if isinstance(value, Constant) and value.array.size <= _MOST_ELEMENTS:
                tensors.append(numpy_helper.from_array(value.array, name))
            elif value is not None:
                ports.append(declare_value(name, value))
            elif name in self.declared:
                ports.append(self.declared[name])
            else:  # of which onnx may crash where it does not even know the type
                return declared
        if node.ByteSize() > _LARGEST_NODE:
            return declared
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "node", ports, outputs, tensors)
        single = helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version
        )
        if node.domain == "com.microsoft":
            return infer_by_onnxruntime(single) or declared
        try:
            return list(onnx.shape_inference.infer_shapes(single, data_prop=True).graph.output)
        except Exception:  # onnx raises errors of its own types
            return declared


def _results(source: NodeSource, reader: Read) -> tuple[Operand | None, ...]:
    """Read the results of a node; raise NetworkError if it contradicts itself."""
    operation = source.operation
    try:
        results = reader(source)
    except NetworkError as error:
        if str(error).startswith(operation):
            raise
        raise NetworkError(f"{operation}: {error}") from error
    except (AssertionError, IndexError, KeyError, TypeError, ValueError) as error:
        raise NetworkError(f"{operation} contradicts itself: {error!r}") from error
    values = results if isinstance(results, tuple) else (results,)
    for place, is_read in enumerate(source.outputs):
        if is_read and values[place : place + 1] in ((), (None,)):
            raise source.refuse(f"output {place} is not supported")
    for value in values:
        if isinstance(value, Node):
            if value.dtype not in DTYPES:
                raise NetworkError(f"{operation}: dtype {value.dtype} is not supported")
            if not all(size > 0 for size in value.shape):
                raise NetworkError(f"{operation}: an empty result is not supported")
    return values


def _check_result(port: Any, value: Operand) -> None:
    """Raise InvalidModel unless a result has the dtype that the model states.

    A stated shape that contradicts the operators is a warning in onnxruntime, and wrong in
    models that people have: the operators decide.
    """
    stated = port.type.tensor_type.elem_type
    if stated and dtype_name(stated) != value.dtype:
        raise InvalidModel(
            f"result {port.name!r} is {value.dtype}; the model says {dtype_name(stated)}"
        )


def dtype_name(number: int) -> str:
    """Return the name of a dtype by its number in ONNX."""
    name = str(onnx.TensorProto.DataType.Name(number)).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def _array(tensor: Any) -> np.ndarray:
    return np.asarray(numpy_helper.to_array(tensor))


def _attribute(attribute: Any) -> Any:
    """Return the value of an attribute in Python's types; dtypes by name."""
    if attribute.name in ("to", "output_dtype") and attribute.type == onnx.AttributeProto.INT:
        return dtype_name(attribute.i) if attribute.i else ""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if attribute.type == onnx.AttributeProto.TENSOR:
        return numpy_helper.to_array(value)
    if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return tuple(value)
    return value
