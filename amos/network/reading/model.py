"""A model of ONNX as a graph, whose shapes are known and whose constants are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amos.errors import NetworkError
from amos.network.graph import Constant, Graph, GraphBuilder, Node, Operand
from amos.network.reading import (
    elementwise,
    moves,
    norms,
    products,
    qlinear,
    quantization,
    resize,
    windows,
)
from amos.network.reading.node import NodeSource, Read

#: What an operator of ONNX, or of onnxruntime's optimizer, is in a graph.
READERS: Mapping[str, Read] = {
    **elementwise.READERS,
    **moves.READERS,
    **norms.READERS,
    **products.READERS,
    **qlinear.READERS,
    **quantization.READERS,
    **resize.READERS,
    **windows.READERS,
}
#: Domains whose names stand for these operators.
_DOMAINS = ("", "ai.onnx", "com.microsoft")
#: Operators that ONNX and onnxruntime each define, of which onnxruntime's means something else.
_NOT_ONNXRUNTIME = ("Attention", "GroupNorm")
#: dtypes of tensors of a graph, beside weights of 4 bits that are dequantized at once.
DTYPES = frozenset(
    ["bool", "float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64"]
    + ["uint8", "uint16", "uint32"]
)
_PACKED = ("int4", "uint4")


def read_model(model: Any, shapes: Mapping[str, Sequence[int]]) -> Graph:
    """Read a model.

    Args:
        model: an ``onnx.ModelProto``, its own functions written out.
        shapes: extents of each input.

    Raises:
        NetworkError: an operator is not supported, or its shape is known at run time only.
    """
    return _ModelReader(model, shapes).read()


class _ModelReader:
    """One pass over the nodes of a model."""

    def __init__(self, model: Any, shapes: Mapping[str, Sequence[int]]) -> None:
        self.model, self.shapes, self.builder = model, shapes, GraphBuilder()
        versions = [v.version for v in model.opset_import if v.domain in ("", "ai.onnx")]
        self.opset = max(versions, default=1)
        self.tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self.values: dict[str, Operand] = {}

    def read(self) -> Graph:
        graph = self.model.graph
        for port in graph.input:
            if port.name not in self.tensors:
                dtype = _dtype_name(port.type.tensor_type.elem_type)
                shape = self.shapes[port.name]
                if 0 in shape:
                    raise NetworkError(f"input {port.name!r} is empty, of shape {tuple(shape)}")
                self.values[port.name] = self.builder.add_input(
                    port.name, shape, _checked(dtype, f"input {port.name!r}")
                )
        read = {name for node in graph.node for name in node.input}
        read |= {port.name for port in graph.output}
        for node in graph.node:
            self.read_node(node, read)
        outputs = [self.value(port.name) for port in graph.output]
        for port, value in zip(graph.output, outputs, strict=True):
            _check_result(port, value)
        return self.builder.finish(outputs, single=len(outputs) == 1)

    def value(self, name: str) -> Operand:
        """Return a value by its name; weights are unpacked when they are read first."""
        if name not in self.values:
            if name not in self.tensors:
                raise NetworkError(f"value {name!r} is no dense tensor, which is not supported")
            self.values[name] = Constant(_array(self.tensors[name]))
        return self.values[name]

    def read_node(self, node: Any, read: set[str]) -> None:
        """Append what a node stands for."""
        reader = READERS.get(node.op_type)
        known = node.domain in _DOMAINS and not (
            node.domain == "com.microsoft" and node.op_type in _NOT_ONNXRUNTIME
        )
        if reader is None or not known:
            of = f" of domain {node.domain!r}" if node.domain not in ("", "ai.onnx") else ""
            raise NetworkError(f"{node.op_type}{of} is not supported")
        source = NodeSource(
            operation=node.op_type,
            inputs=tuple(self.value(name) if name else None for name in node.input),
            attributes={each.name: _attribute(each) for each in node.attribute},
            opset=self.opset,
            builder=self.builder,
            outputs=tuple(name in read for name in node.output),
        )
        try:
            results = reader(source)
        except NetworkError as error:
            if str(error).startswith(node.op_type):
                raise
            raise NetworkError(f"{node.op_type}: {error}") from error
        except (AssertionError, IndexError, KeyError, TypeError, ValueError) as error:
            raise NetworkError(
                f"{node.op_type} ({node.name!r}) contradicts itself: {error!r}"
            ) from error
        values = results if isinstance(results, tuple) else (results,)
        for name, value in zip(node.output, values, strict=False):
            if name and value is not None:
                self.values[name] = _checked_value(value, node.op_type)


def _checked_value(value: Operand, operation: str) -> Operand:
    if isinstance(value, Node):
        if not all(size > 0 for size in value.shape):
            raise NetworkError(f"{operation}: an empty result is not supported")
        _checked(value.dtype, operation)
    return value


def _checked(dtype: str, what: str) -> str:
    if dtype not in DTYPES:
        raise NetworkError(f"{what}: dtype {dtype} is not supported")
    return dtype


def _check_result(port: Any, value: Operand) -> None:
    """Hold a result against what the model says of it.

    Raises:
        NetworkError: shape or dtype contradict it.
    """
    kind = port.type.tensor_type
    dtype = _dtype_name(kind.elem_type) if kind.elem_type else value.dtype
    sizes: list[int] = []
    if kind.HasField("shape"):
        sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim]
    # Some writers state no extents at all.
    fits = not sizes or (
        len(sizes) == len(value.shape)
        and all(stated in (-1, 0, size) for stated, size in zip(sizes, value.shape, strict=True))
    )
    if dtype != value.dtype or not fits:
        raise NetworkError(
            f"result {port.name!r} is {value.dtype}{list(value.shape)}; the model says "
            f"{dtype}{sizes}"
        )


def _dtype_name(number: int) -> str:
    """The name of a dtype by its number in ONNX."""
    from onnx import TensorProto

    name = TensorProto.DataType.Name(number).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def _array(tensor: Any) -> np.ndarray:
    from onnx import numpy_helper

    dtype = _dtype_name(tensor.data_type)
    if dtype not in _PACKED:
        _checked(dtype, f"weight {tensor.name!r}")
    return np.asarray(numpy_helper.to_array(tensor))


def _attribute(attribute: Any) -> Any:
    """The value of an attribute in Python's types; dtypes by name."""
    from onnx import AttributeProto, helper, numpy_helper

    if attribute.name in ("to", "output_dtype") and attribute.type == AttributeProto.INT:
        return _dtype_name(attribute.i) if attribute.i else ""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if attribute.type == AttributeProto.TENSOR:
        return numpy_helper.to_array(value)
    if attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS):
        return tuple(value)
    return value
