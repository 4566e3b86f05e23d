"""Transposes that cancel: what stands between two of them is computed with the channels last.

The engine changes the layout of convolutions and of what is elementwise, but not of slices and
channel shuffles, around which it leaves transposes. Here transposes back to channels second
move behind such nodes, until they meet one the other way. The graph with fewer bytes to
transpose is kept.
"""

from __future__ import annotations

from math import prod
from typing import Any

from amos.ir import dtype
from amos.network.followers import ELEMENTWISE
from amos.network.graph import Constant, Graph, Node
from amos.network.program import Rewrite, Writer, read, rebuilt, renewed


def with_fewer_transposes(graph: Graph) -> Graph:
    """The same graph, or one that computes the same and transposes less."""
    moved = _Moved()
    rewrite: dict[int, Rewrite] = {}
    for node in graph.computing():
        if (make := moved.rewritten(node)) is not None:
            rewrite[node.number] = make
    if not rewrite:
        return graph
    other = read(rebuilt(graph, rewrite))
    return other if _transposed(other) < _transposed(graph) else graph


def _transposed(graph: Graph) -> int:
    """Bytes that are transposed."""
    return sum(
        prod(node.shape) * dtype(node.dtype).numpy.itemsize
        for node in graph.nodes
        if node.operation == "permute_dims"
    )


def _axes(node: Node) -> tuple[int, ...]:
    return node.integers("axes") if node.attributes.axes else tuple(range(len(node.shape)))[::-1]


def _second(rank: int) -> list[int]:
    """Axes of a transpose that makes the last one the second."""
    return [0, rank - 1, *range(1, rank - 1)]


def _last(rank: int) -> list[int]:
    """Axes of a transpose that makes the second one the last."""
    return [0, *range(2, rank), 1]


class _Moved:
    """Values with their channels last, of nodes that have them second."""

    def __init__(self) -> None:
        #: What makes them, by number of the node; each is called once.
        self._makers: dict[int, Rewrite] = {}
        self._values: dict[int, Any] = {}

    def rewritten(self, node: Node) -> Rewrite | None:
        """What makes a node from such values."""
        if node.operation == "permute_dims" and len(node.shape) > 2:
            (source,) = node.operands
            if list(_axes(node)) == _last(len(node.shape)) and source in self:
                return lambda writer: self.value(source, writer)
            if list(_axes(node)) == _second(len(node.shape)):
                self._makers[node.number] = lambda writer: writer.value(source)
            return None
        maker = self._maker(node) if len(node.shape) > 2 else None
        if maker is None:
            return None
        self._makers[node.number] = maker
        return lambda writer: _second_again(self.value(node, writer), len(node.shape))

    def __contains__(self, operand: object) -> bool:
        return isinstance(operand, Node) and operand.number in self._makers

    def value(self, operand: Any, writer: Writer) -> Any:
        """Of a node with its channels last, or of a constant for all elements."""
        if isinstance(operand, Constant):
            return writer.value(operand)
        if operand.number not in self._values:
            made = self._makers[operand.number](writer)
            self._values[operand.number] = writer.emit(made)
        return self._values[operand.number]

    def _maker(self, node: Node) -> Rewrite | None:
        if node.operation in ELEMENTWISE and self._same(node):
            return lambda w: renewed(node, [self.value(each, w) for each in node.operands])
        if node.operation == "concat" and all(each in self for each in node.operands):
            return lambda writer: self._concatenated(node, writer)
        if node.operation == "strided_slice" and node.operands[0] in self:
            return lambda writer: self._sliced(node, writer)
        begin = _shuffle(node)
        if begin is not None and begin.operands[0] in self:
            return lambda writer: self._shuffled(node, begin, writer)
        return None

    def _same(self, node: Node) -> bool:
        """Whether a node reads nothing but such values of its shape, and constants for all."""
        return any(each in self for each in node.operands) and all(
            prod(each.shape) == 1
            if isinstance(each, Constant)
            else each in self and each.shape == node.shape
            for each in node.operands
        )

    def _concatenated(self, node: Node, writer: Writer) -> Any:
        from tvm import relax

        rank = len(node.shape)
        axis = _last(rank).index(int(node.attributes.axis) % rank)
        return relax.op.concat([self.value(each, writer) for each in node.operands], axis)

    def _sliced(self, node: Node, writer: Writer) -> Any:
        from tvm import relax

        _, axes, *bounds = node.expression.args
        rank = len(node.shape)
        places = [_last(rank).index(_integer(axis) % rank) for axis in axes]
        numbers = [[_integer(value) for value in each] for each in bounds]
        return relax.op.strided_slice(self.value(node.operands[0], writer), places, *numbers)

    def _shuffled(self, node: Node, begin: Node, writer: Writer) -> Any:
        from tvm import relax

        rank, (n, *split) = len(node.shape), begin.shape[:3]
        value = self.value(begin.operands[0], writer)
        value = writer.emit(relax.op.reshape(value, [n, *node.shape[2:], *split]))
        value = relax.op.permute_dims(value, [*range(rank - 1), rank, rank - 1])
        return relax.op.reshape(writer.emit(value), [n, *node.shape[2:], node.shape[1]])


def _second_again(value: Any, rank: int) -> Any:
    from tvm import relax

    return relax.op.permute_dims(value, _second(rank))


def _integer(value: Any) -> int:
    return int(getattr(value, "value", value))


def _shuffle(node: Node) -> Node | None:
    """The reshape that begins a channel shuffle, which ends with a node."""
    chain = [node]
    for operation in ("permute_dims", "reshape"):
        before = chain[-1].operands[0] if chain[-1].operands else None
        if not isinstance(before, Node) or before.operation != operation:
            return None
        chain.append(before)
    end, move, begin = chain
    image = len(end.shape) - 2
    same = end.operation == "reshape" and begin.operands[0].shape == end.shape
    halves = begin.shape[0] == end.shape[0] and begin.shape[3:] == end.shape[2:]
    exchanged = (0, 2, 1, *range(3, 3 + image))
    return begin if same and halves and _axes(move) == exchanged else None
