"""Branches and loops whose course is known ahead: their bodies stand in place of their nodes.

Functions return whether it is known. If not, the node stays with onnxruntime, and the caller drops
what was read of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from amos.network.graph import Constant, Operand
from amos.network.packages import helper
from amos.network.reading.branches import rename_values

#: Nodes that the trips of a loop may become; a loop of one trip may become any number.
_MOST_NODES = 256
#: Nodes that a loop counts for that stays inside of others: each of its copies was read in vain.
_LOOP_NODES = 16
#: Version of ONNX since which the axes of Unsqueeze are an input.
_AXES_AS_INPUT = 13
#: Version of ONNX since which a Scan has no batch.
_UNBATCHED_SCAN = 9


class ModelReader(Protocol):
    """Reads the nodes of a model one by one."""

    opset: int
    nodes: list[Any]

    def value(self, name: str) -> Operand | None:
        """Return a value by its name; ``None`` where its shape is not known."""

    def add_weight(self, name: str, values: Any) -> None:
        """Add a constant to the model: a tensor of ONNX, or an array."""

    def read_nodes(self, nodes: Sequence[Any], results: Iterable[str]) -> None:
        """Read further nodes, some of whose results others will read."""

    def unused_prefix(self, node: Any) -> str:
        """Return how names can begin that no value of the model has."""


class _Body:
    """A graph inside of a node, which is read once for each trip."""

    def __init__(self, reader: ModelReader, node: Any, attribute: str = "body") -> None:
        self.graph = next(each.g for each in node.attribute if each.name == attribute)
        self.reader, self.trips = reader, 0
        self._prefix, self._begin = reader.unused_prefix(node), len(reader.nodes)
        self._weights = {each.name: self._prefix + each.name for each in self.graph.initializer}
        for weight in self.graph.initializer:
            reader.add_weight(self._weights[weight.name], weight)

    @property
    def is_too_large(self) -> bool:
        """Whether the model has grown too much."""
        sizes = (
            _LOOP_NODES if node.op_type in ("Loop", "Scan") else 1
            for node in self.reader.nodes[self._begin :]
        )
        return self.trips > 1 and sum(sizes) > _MOST_NODES

    def name(self, own: str) -> str:
        """Return the name of a value of this trip."""
        return f"{self._prefix}{self.trips}/{own}"

    def add_number(self, name: str, number: int | bool, rank: int = 0) -> str:
        """Add a constant of this trip; returns its name."""
        self.reader.add_weight(self.name(name), np.full([1] * rank, number))
        return self.name(name)

    def add_node(self, operation: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Add a node of this trip; returns the name of its result."""
        node = helper.make_node(operation, inputs, [self.name(name)], **attributes)
        self.reader.read_nodes([node], node.output)
        return self.name(name)

    def read(self, inputs: Sequence[str] = ()) -> list[str]:
        """Read the nodes once more, with these inputs; returns the names of the results."""
        names = {port.name: v for port, v in zip(self.graph.input, inputs, strict=True)}
        own = (name for node in self.graph.node for name in node.output if name)
        names |= self._weights | {name: self.name(name) for name in own}
        results = [names.get(port.name, port.name) for port in self.graph.output]
        self.reader.read_nodes([*_rename(self.graph.node, names)], results)
        self.trips += 1
        return results


def _rename(nodes: Sequence[Any], names: Mapping[str, str]) -> Iterator[Any]:
    """Copy nodes, with other names of values and none of their own."""
    for node in nodes:
        copy = type(node)()
        copy.CopyFrom(node)
        copy.ClearField("name")
        rename_values([copy], names)
        yield copy


def _name_values(reader: ModelReader, names: Sequence[str], values: Sequence[str]) -> None:
    """Give values second names; an empty one is not needed."""
    pairs = [(name, v) for name, v in zip(names, values, strict=True) if name]
    nodes = [helper.make_node("Identity", [value], [name]) for name, value in pairs]
    reader.read_nodes(nodes, names)


def _stack(body: _Body, number: int, values: Sequence[str], axis: int) -> str:
    """Stack a result of all trips along a new axis; returns the name of the stack."""
    if body.reader.opset < _AXES_AS_INPUT:
        inputs, attributes = list[str](), {"axes": [axis]}
    else:
        inputs, attributes = [body.add_number(f"axes/{number}", axis, rank=1)], {}
    parts = [
        body.add_node("Unsqueeze", [value, *inputs], f"part/{number}/{trip}", **attributes)
        for trip, value in enumerate(values)
    ]
    return body.add_node("Concat", parts, f"stack/{number}", axis=axis)


def _finish(
    body: _Body,
    node: Any,
    states: Sequence[str],
    rows: Sequence[Sequence[str]],
    scan: Mapping[str, Any] = MappingProxyType({}),
) -> bool:
    """Name the results of a loop: its last states, and those of all trips, a row for each."""
    names, count = [*node.output], len(states)
    stacked = range(len(names) - count)
    if not rows and any(names[count:]):  # tensors without elements
        return False
    axes = scan.get("scan_output_axes", [0] * len(stacked))
    backwards = scan.get("scan_output_directions", [0] * len(stacked))
    values = [*states]
    for number in stacked:
        column = [row[number] for row in rows]
        column = column[::-1] if backwards[number] else column
        values.append(_stack(body, number, column, axes[number]) if names[count + number] else "")
    _name_values(body.reader, names, values[: len(names)])
    return True


def take_branch(reader: ModelReader, node: Any) -> bool:
    """Read the branch of an ``If`` that is always taken."""
    condition = reader.value(node.input[0])
    if not isinstance(condition, Constant):
        return False
    body = _Body(reader, node, "then_branch" if condition.array.all() else "else_branch")
    _name_values(reader, node.output, body.read())
    return True


def unroll_loop(reader: ModelReader, node: Any) -> bool:
    """Read the trips of a ``Loop`` whose number is decided by constants and shapes."""
    limit_name, condition_name, *states = [*node.input, "", ""][: max(len(node.input), 2)]
    limit, condition = reader.value(limit_name), reader.value(condition_name)
    for name, value in ((limit_name, limit), (condition_name, condition)):
        if name and not isinstance(value, Constant):
            return False
    most = limit.array.item() if isinstance(limit, Constant) else None
    continues = bool(condition.array.item()) if isinstance(condition, Constant) else True
    body = _Body(reader, node)
    ranks = [len(port.type.tensor_type.shape.dim) for port in body.graph.input[:2]]
    if not all(each.type.HasField("tensor_type") for each in body.graph.output):
        return False
    rows = []
    while continues and body.trips != most:
        controls = [body.add_number("trip", body.trips, ranks[0])]
        controls.append(body.add_number("condition", True, ranks[1]))
        continuing, *results = body.read([*controls, *states])
        states, row = results[: len(states)], results[len(states) :]
        rows.append(row)
        value = reader.value(continuing)
        if body.is_too_large or not isinstance(value, Constant):
            return False
        continues = bool(value.array.item())
        if not continues and not condition_name:  # which ONNX ignores then, and onnxruntime obeys
            return False
    return _finish(body, node, states, rows)


def unroll_scan(reader: ModelReader, node: Any) -> bool:
    """Read the trips of a ``Scan``."""
    scan = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    count = len(node.input) - scan["num_scan_inputs"]
    names, states = [*node.input[count:]], [*node.input[:count]]
    sources = [*map(reader.value, names)]
    axes = scan.get("scan_input_axes", [0] * len(names))
    backwards = scan.get("scan_input_directions", [0] * len(names))
    sizes = {x.shape[axis] for x, axis in zip(sources, axes, strict=True) if x is not None}
    if reader.opset < _UNBATCHED_SCAN or None in sources or len(sizes) != 1:
        return False
    (most,), body = sizes, _Body(reader, node)
    rows = []
    while body.trips < most:
        slices = []
        for number, (name, axis) in enumerate(zip(names, axes, strict=True)):
            place = most - 1 - body.trips if backwards[number] else body.trips
            index = body.add_number(f"place/{number}", place)
            slices.append(body.add_node("Gather", [name, index], f"slice/{number}", axis=axis))
        results = body.read([*states, *slices])
        states, row = results[:count], results[count:]
        rows.append(row)
        if body.is_too_large:
            return False
    return _finish(body, node, states, rows, scan)


#: By the operator of the node.
CONTROL_FLOW: Mapping[str, Callable[[ModelReader, Any], bool]] = {
    "If": take_branch,
    "Loop": unroll_loop,
    "Scan": unroll_scan,
}
