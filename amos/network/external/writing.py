"""Graphs as functions of ONNX, which onnxruntime runs and Netron shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from amos.network.graph import Constant, Graph, Node, Operand
from amos.network.groups import CallSite
from amos.network.operations import declare_value, numpy_dtype
from amos.network.packages import helper, numpy_helper
from amos.network.shapes import BYTES

#: Domain of the functions.
DOMAIN = "amos"
#: Version of ONNX's operators that are written.
OPSET = 21
#: Version of ONNX's format that has functions, and operators of the version that is written.
IR_VERSION = 10
#: Attributes that are inputs in ONNX, by operator, in the order of its inputs behind the first.
_AS_INPUTS = {
    **dict.fromkeys(("Expand", "Reshape"), ("shape",)),
    **{f"Reduce{name}": ("axes",) for name in ("Max", "Mean", "Min", "Prod", "Sum")},
    "Tile": ("repeats",),
}
#: ONNX counts from the end what is below 0: this lies ahead of the first element.
_AHEAD = -(2**62)


def write_function(graph: Graph, name: str, outputs: Sequence[str]) -> Any:
    """Write a graph as a function whose results have other names."""
    writer = _Writer(graph.inputs, outputs)
    for node in graph.computing():
        writer.write(node)
    return writer.function(name, [node.name for node in graph.inputs], graph.outputs, outputs)


def write_group_functions(
    graph: Graph, groups: Sequence[CallSite], name: str, outputs: Sequence[str]
) -> list[Any]:
    """Write a graph as a function that calls one for each group; these functions come first."""
    owners = {node.number: group for group in groups for node in group.nodes}
    writer, functions = _Writer(graph.inputs, outputs), list[Any]()
    for node in graph.computing():
        group = owners.get(node.number)
        if group is None:
            writer.write(node)
        elif node is group.result:
            functions.append(_write_group(group, f"{name}_{len(functions)}"))
            operands = map(writer.name_of, values_read(group.nodes))
            writer.node(functions[-1].name, [*operands], writer.name_of(node), domain=DOMAIN)
    main = writer.function(name, [n.name for n in graph.inputs], graph.outputs, outputs)
    return [*functions, main]


def write_nodes(
    nodes: Sequence[Node], names: Mapping[int, str], results: Mapping[str, Node]
) -> Any:
    """Write some nodes as a model.

    Args:
        names: of their values and of those that they read, by number.
        results: nodes whose values the model returns, by the names that they get.
    """
    writer, own = _Writer(reserved=(*names.values(), *results)), {node.number for node in nodes}
    read = {each.number: each for each in (*values_read(nodes), *results.values())}
    inputs = [node for number, node in read.items() if number not in own]
    for node in (*inputs, *nodes):
        writer.names[id(node)] = names[node.number]
    for node in nodes:
        writer.write(node)
    for name, node in results.items():
        if name != names[node.number]:
            writer.node("Identity", [names[node.number]], name)
    declared = [declare_value(names[node.number], node) for node in inputs]
    returned = [declare_value(name, node) for name, node in results.items()]
    graph = helper.make_graph(writer.nodes, "host", declared, returned)
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def values_read(nodes: Sequence[Node]) -> list[Node]:
    """List values of other nodes that some nodes read, each once."""
    own = {node.number for node in nodes}
    read = (each for node in nodes for each in node.operands)
    values = {each.number: each for each in read if isinstance(each, Node)}
    return [node for number, node in values.items() if number not in own]


def _write_group(group: CallSite, name: str) -> Any:
    writer, inputs = _Writer(), list[str]()
    for node in values_read(group.nodes):
        inputs.append(writer.name_of(node))
    for node in sorted(group.nodes, key=lambda node: node.number):
        writer.write(node)
    return writer.function(name, inputs, [group.result], ["result"])


class _Writer:
    """Writes the nodes of a function.

    Args:
        inputs: whose names the function takes over.
        reserved: further names that no value gets.

    Attributes:
        names: of values, by their identity.
    """

    def __init__(self, inputs: Sequence[Node] = (), reserved: Iterable[str] = ()) -> None:
        self.names = {id(node): node.name for node in inputs}
        self.nodes = list[Any]()
        self._reserved = {*self.names.values(), *reserved}

    def name_of(self, operand: Operand) -> str:
        """Return the name of a value; constants are written when they are read first."""
        if id(operand) not in self.names:
            if isinstance(operand, Constant):
                self.names[id(operand)] = self.constant(operand.array)
            else:
                self.names[id(operand)] = self._name_unused(f"v{operand.number}")
        return self.names[id(operand)]

    def _name_unused(self, name: str) -> str:
        """Return a name of this kind that the model itself does not use."""
        while name in self._reserved:
            name += "_"
        return name

    def constant(self, array: Any, dtype: Any = None) -> str:
        values = np.ascontiguousarray(array, dtype).reshape(np.shape(array))
        return self.node("Constant", [], value=numpy_helper.from_array(values))

    def node(self, operation: str, inputs: Sequence[str], name: str = "", **attributes: Any) -> str:
        """Append a node; return the name of its result."""
        name = name or self._name_unused(f"t{len(self.nodes)}")
        self.nodes.append(helper.make_node(operation, inputs, [name], **attributes))
        return name

    def function(
        self, name: str, inputs: Sequence[str], results: Sequence[Operand], outputs: Sequence[str]
    ) -> Any:
        for result, output in zip(results, outputs, strict=True):
            self.node("Identity", [self.name_of(result)], output)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_function(DOMAIN, name, inputs, outputs, self.nodes, opsets)

    def write(self, node: Node) -> None:
        """Append the ONNX operators of a node."""
        operands, name = [*map(self.name_of, node.operands)], self.name_of(node)
        special = _SPECIAL.get(node.operation)
        if special is not None:
            special(self, node, operands, name)
            return
        attributes = {
            key: value for key, value in node.attributes.items() if key != "channels_last"
        }
        for key in _AS_INPUTS.get(node.operation, ()):
            operands.append(self.constant(attributes.pop(key), np.int64))
        if node.attributes.get("channels_last", False):
            operands[0] = self.move_channels(operands[0], len(node.shape), last=False)
            result = self.node(node.operation, operands, **_onnx(attributes))
            self.move_channels(result, len(node.shape), last=True, name=name)
        else:
            self.node(node.operation, operands, name, **_onnx(attributes))

    def move_channels(self, value: str, rank: int, *, last: bool, name: str = "") -> str:
        """Append a transpose of channels to the last axis, or back to the second one."""
        perm = [0, *range(2, rank), 1] if last else [0, rank - 1, *range(1, rank - 1)]
        return self.node("Transpose", [value], name, perm=perm)

    def cast(self, value: str, dtype: str, name: str = "") -> str:
        number = helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype))
        return self.node("Cast", [value], name, to=number)


def _onnx(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert attributes to ONNX's: numbers for truth values."""
    return {key: int(v) if isinstance(v, bool) else v for key, v in attributes.items()}


def _write_cast(writer: _Writer, node: Node, operands: list[str], name: str) -> None:
    writer.cast(operands[0], node.dtype, name)


def _write_swish(writer: _Writer, node: Node, operands: list[str], name: str) -> None:
    writer.node("Mul", [operands[0], writer.node("Sigmoid", operands)], name)


def _write_gather(writer: _Writer, node: Node, operands: list[str], name: str) -> None:
    if node.operands[1].dtype not in ("int32", "int64"):  # as tables of bytes are read by bytes
        operands[1] = writer.cast(operands[1], "int32")
    writer.node("Gather", operands, name, axis=node.attributes["axis"])


def _write_slice(writer: _Writer, node: Node, operands: list[str], name: str) -> None:
    attributes = node.attributes
    columns = [*zip(attributes["starts"], attributes["steps"], attributes["sizes"], strict=True)]
    ends = [start + step * size for start, step, size in columns]
    ends = [end if end >= 0 else _AHEAD for end in ends]
    numbers = (attributes["starts"], ends, range(len(ends)), attributes["steps"])
    inputs = [writer.constant(tuple(each), np.int64) for each in numbers]
    writer.node("Slice", [*operands, *inputs], name)


def _write_pad(writer: _Writer, node: Node, operands: list[str], name: str) -> None:
    attributes = node.attributes
    widths = writer.constant((*attributes["before"], *attributes["after"]), np.int64)
    fill = writer.constant(np.asarray(attributes["value"], numpy_dtype(node.dtype)))
    writer.node("Pad", [*operands, widths, fill], name, mode=attributes["mode"])


def _write_product(writer: _Writer, node: Node, operands: list[str], name: str) -> None:
    """Write a product; those of bytes have operators of their own, some for unsigned bytes only."""
    dtype = node.operands[0].dtype
    attributes = _onnx({k: v for k, v in node.attributes.items() if k != "channels_last"})
    operation, zero = node.operation, list[str]()
    if attributes.pop("sums", dtype) != dtype:
        operands = [writer.cast(each, "float32") for each in operands]
    if dtype in BYTES and operation != "ConvTranspose":
        operation = f"{operation}Integer"
        if dtype == "int8" and operation == "ConvInteger":
            wide = writer.node(
                "Add", [writer.cast(operands[0], "int32"), writer.constant(128, np.int32)]
            )
            operands[0], zero = writer.cast(wide, "uint8"), [writer.constant(128, np.uint8)]
    elif dtype in BYTES:
        operands = [writer.cast(each, "float32") for each in operands]
    last = node.attributes.get("channels_last", False)
    if last:
        operands[0] = writer.move_channels(operands[0], len(node.shape), last=False)
    back = dtype in BYTES and operation == "ConvTranspose"
    result = writer.node(operation, [*operands, *zero], "" if last or back else name, **attributes)
    if back:
        result = writer.cast(result, "int32", "" if last else name)
    if last:
        writer.move_channels(result, len(node.shape), last=True, name=name)


def _write_group_norm(writer: _Writer, node: Node, operands: list[str], name: str) -> None:
    rank, axis = len(node.shape), node.attributes["axis"]
    attributes = {key: node.attributes[key] for key in ("epsilon", "num_groups")}
    ahead = [0, axis, *(n for n in range(1, rank) if n != axis)]
    value = writer.node("Transpose", operands[:1], perm=ahead)
    value = writer.node("GroupNormalization", [value, *operands[1:]], **attributes)
    writer.node("Transpose", [value], name, perm=[ahead.index(n) for n in range(rank)])


_SPECIAL: Mapping[str, Callable[[_Writer, Node, list[str], str], None]] = {
    "Cast": _write_cast,
    "Conv": _write_product,
    "ConvTranspose": _write_product,
    "Gather": _write_gather,
    "GroupNormalization": _write_group_norm,
    "MatMul": _write_product,
    "Pad": _write_pad,
    "Slice": _write_slice,
    "Swish": _write_swish,
}
