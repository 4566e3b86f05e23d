"""A network as a list of nodes: operators of ONNX, each with one result of static shape.

Passes read a graph and write another one through :class:`GraphBuilder`. Nothing here needs TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from amos.network.operations import OPERATIONS, Kind, evaluate


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor whose values do not change from call to call.

    Attributes:
        array: its values; of ``bfloat16`` as ``ml_dtypes`` has it.
    """

    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.array.shape

    @property
    def dtype(self) -> str:
        """Of its elements."""
        return str(self.array.dtype)

    def transpose(self, perm: Sequence[int]) -> Constant:
        """Return it with axes in another order."""
        return Constant(self.array.transpose(perm))


@dataclass(frozen=True, eq=False)
class Node:
    """An operator of a network, or one of its inputs.

    Attributes:
        number: rises from node to node; a node reads only nodes before it.
        operation: ``"input"``, or the name of an operator in
            :data:`amos.network.operations.OPERATIONS`.
        attributes: by name, defaults written out; plain numbers, strings and tuples.
        name: of an input.
    """

    number: int
    operation: str
    operands: tuple[Operand, ...] = field(repr=False)
    shape: tuple[int, ...]
    dtype: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    @property
    def kind(self) -> Kind:
        """Kind of its operator; inputs have none."""
        return OPERATIONS[self.operation].kind


#: A value that a node reads.
Operand = Node | Constant
#: Emits the replacement of a node in another graph; returns its value.
Rewrite = Callable[["GraphBuilder"], Operand]


@dataclass(frozen=True, eq=False)
class Graph:
    """The nodes of a network, in an order in which they can be computed.

    Attributes:
        nodes: inputs first.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The inputs, in order."""
        return tuple(node for node in self.nodes if node.operation == "input")

    @cached_property
    def users(self) -> dict[int, tuple[Node, ...]]:
        """Nodes that read each node, by its number; the network itself is not among them."""
        users: dict[int, dict[int, Node]] = {node.number: {} for node in self.nodes}
        for node in self.nodes:
            for operand in node.operands:
                if isinstance(operand, Node):
                    users[operand.number][node.number] = node
        return {number: tuple(readers.values()) for number, readers in users.items()}

    @cached_property
    def returned(self) -> frozenset[int]:
        """Numbers of the nodes that the network returns."""
        return frozenset(node.number for node in self.outputs)

    def has_one_reader(self, node: Node) -> bool:
        """Return whether a single node reads a value, and the network does not return it."""
        return len(self.users[node.number]) == 1 and node.number not in self.returned

    def computing(self) -> Iterator[Node]:
        """List the nodes other than inputs."""
        return (node for node in self.nodes if node.operation != "input")


class GraphBuilder:
    """Writes a graph node by node.

    Attributes:
        values: that replace the nodes of another graph, by their numbers there.
    """

    def __init__(self) -> None:
        self.values: dict[int, Operand] = {}
        self._nodes: list[Node] = []

    def fork(self) -> GraphBuilder:
        """Return another builder with the nodes so far."""
        fork = GraphBuilder()
        fork.values, fork._nodes = dict(self.values), [*self._nodes]
        return fork

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes so far."""
        return tuple(self._nodes)

    def add_input(self, name: str, shape: Sequence[int], dtype: str) -> Node:
        """Append an input."""
        node = Node(len(self._nodes), "input", (), tuple(shape), dtype, name=name)
        self._nodes.append(node)
        return node

    def emit(self, operation: str, *operands: Operand, **attributes: Any) -> Operand:
        """Append an operator; of constants alone it is computed at once, where NumPy can.

        Raises:
            NetworkError: its operands do not go together.
        """
        result = OPERATIONS[operation].infer(operands, attributes)
        if operation == "Transpose" and isinstance(operands[0], Constant):
            return operands[0].transpose(attributes["perm"])
        if all(isinstance(operand, Constant) for operand in operands):
            arrays = [operand.array for operand in operands if isinstance(operand, Constant)]
            array = evaluate(operation, arrays, attributes, result)
            if array is not None:
                return Constant(array)
        node = Node(len(self._nodes), operation, operands, result.shape, result.dtype, attributes)
        self._nodes.append(node)
        return node

    def cast(self, value: Operand, dtype: str) -> Operand:
        """Append a Cast, unless the dtype stays."""
        return value if value.dtype == dtype else self.emit("Cast", value, to=dtype)

    def reshape(self, value: Operand, shape: Sequence[int]) -> Operand:
        """Append a Reshape, unless the shape stays."""
        shape = tuple(shape)
        return value if value.shape == shape else self.emit("Reshape", value, shape=shape)

    def value(self, operand: Operand) -> Operand:
        """Return the value here of an operand of the other graph; constants are their own."""
        return operand if isinstance(operand, Constant) else self.values[operand.number]

    def copy(self, node: Node, operands: Sequence[Operand] | None = None) -> Operand:
        """Append the operator of a node of the other graph, by default on values of its own."""
        if operands is None:
            operands = [self.value(each) for each in node.operands]
        return self.emit(node.operation, *operands, **node.attributes)

    def finish(self, outputs: Sequence[Operand]) -> Graph:
        """Return the graph of these results, without nodes that none of them needs."""
        results = [x if isinstance(x, Node) else self._emit_constant(x) for x in outputs]
        live = {node.number for node in results}
        for node in reversed(self._nodes):
            if node.number in live:
                live.update(each.number for each in node.operands if isinstance(each, Node))
        nodes = (n for n in self._nodes if n.number in live or n.operation == "input")
        return Graph(tuple(nodes), tuple(results))

    def _emit_constant(self, constant: Constant) -> Node:
        """Return a node for a result that is a constant."""
        node = Node(len(self._nodes), "Identity", (constant,), constant.shape, constant.dtype)
        self._nodes.append(node)
        return node


def divides_integers(nodes: Iterable[Node]) -> bool:
    """Return whether integers are divided by variables: a divisor of 0 would end the process."""
    return any(
        node.operation in ("Div", "Mod")
        and "int" in node.dtype
        and isinstance(node.operands[1], Node)
        for node in nodes
    )


def rewrite_graph(graph: Graph, rewrites: Mapping[int, Rewrite]) -> Graph:
    """Return a graph with other nodes in place of some, and without those that nothing needs.

    Args:
        rewrites: by number of the nodes that they replace.
    """
    if not rewrites:
        return graph
    builder = GraphBuilder()
    for node in graph.nodes:
        if node.operation == "input":
            builder.values[node.number] = builder.add_input(node.name, node.shape, node.dtype)
        elif node.number in rewrites:
            builder.values[node.number] = rewrites[node.number](builder)
        else:
            builder.values[node.number] = builder.copy(node)
    outputs = [builder.values[node.number] for node in graph.outputs]
    return builder.finish(outputs)
