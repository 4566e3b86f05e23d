"""Channels of integers that fill whole vectors: convolutions get further ones, of zeros.

A network that was pruned has 61 or 243 channels. Rows of so many bytes begin anywhere, reductions
end within a group of four bytes and results within a vector, so kernels copy what they read and
write. Further weights are zeros, and what reads further channels multiplies them by zeros. So sums
of integers stay the same, whatever an epilogue makes of such a channel.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial

import numpy as np

from amos.network.graph import Constant, Graph, GraphBuilder, Node, Operand, Rewrite, rewrite_graph
from amos.network.shapes import BYTES

#: Channels of which a count becomes a multiple, the first that adds no more than a share of it.
_MULTIPLES, _MOST_ADDED = (64, 32, 16), 1 / 12
#: Operators that keep channels apart: of elements at the same place, and of windows.
_ELEMENTWISE = frozenset({"Add", "Cast", "Div", "Max", "Min", "Mul", "Relu", "Round", "Sub"})
_WINDOWS = frozenset({"AveragePool", "MaxPool", "Pad"})


def fill_channels(graph: Graph) -> Graph:
    """Return a graph, channels second, whose convolutions of integers fill whole vectors.

    They get further channels where convolutions alone read these, behind elementwise operators and
    pools or at once.
    """
    filled = _select_filled(graph)
    rewrites: dict[int, Rewrite] = {
        node.number: partial(_emit_filled, node, filled)
        for node in graph.computing()
        if node.number in filled or _reads_filled(node, filled)
    }
    return rewrite_graph(graph, rewrites)


def count_filled(channels: int) -> int:
    """Return how many channels there are with those that fill vectors."""
    if channels % _MULTIPLES[-1]:
        for multiple in _MULTIPLES:
            more = -channels % multiple
            if more <= _MOST_ADDED * channels:
                return channels + more
    return channels


def _select_filled(graph: Graph) -> set[int]:
    """Select the nodes, by number, whose results get further channels."""
    filled: set[int] = set()
    for node in graph.computing():
        if _can_fill(node) or _keeps_channels(node, filled):
            filled.add(node.number)
    while True:
        hidden = {
            number
            for number in filled
            if number not in graph.returned
            and all(each.number in filled or _is_product(each) for each in graph.users[number])
        }
        own = [node for node in graph.nodes if node.number in hidden]
        still_hidden = {x.number for x in own if _is_product(x) or _keeps_channels(x, hidden)}
        if still_hidden == filled:
            return filled
        filled = still_hidden


def _is_product(node: Node) -> bool:
    """Return whether a node is a convolution of bytes, not grouped, with constant weights."""
    if node.operation != "Conv" or node.attributes["group"] != 1:
        return False
    image, weight = node.operands
    return isinstance(weight, Constant) and {image.dtype, weight.dtype} <= {*BYTES}


def _can_fill(node: Node) -> bool:
    return _is_product(node) and count_filled(node.shape[1]) > node.shape[1]


def _keeps_channels(node: Node, filled: Set[int]) -> bool:
    """Return whether channels added to a node's operand only add channels to its result."""
    if node.operation not in _ELEMENTWISE | _WINDOWS or len(node.shape) < 2:
        return False
    if node.operation == "Pad" and (node.attributes["before"][1] or node.attributes["after"][1]):
        return False
    if node.operation == "Div" and not isinstance(node.operands[1], Constant):
        return False  # by 0 perhaps
    own = [
        x
        for x in node.operands
        if isinstance(x, Node) and (x.number in filled or _channels(x, node) != 1)
    ]
    return bool(own) and all(
        x.number in filled and len(x.shape) == len(node.shape) and x.shape[1] == node.shape[1]
        for x in own
    )


def _channels(operand: Operand, node: Node) -> int:
    """Count the channels of an operand, whose last axis is that of the node's result."""
    axis = len(operand.shape) - len(node.shape) + 1
    return operand.shape[axis] if axis >= 0 else 1


def _reads_filled(node: Node, filled: Set[int]) -> bool:
    return any(isinstance(each, Node) and each.number in filled for each in node.operands)


def _emit_filled(node: Node, filled: Set[int], builder: GraphBuilder) -> Operand:
    """Emit a node whose constants have further channels."""
    operands = [builder.value(each) for each in node.operands]
    more = count_filled(node.shape[1]) - node.shape[1] if node.number in filled else 0
    if _is_product(node):
        image, weight = operands
        assert isinstance(weight, Constant)
        widths = [(0, more), (0, image.shape[1] - weight.shape[1])]
        widths += [(0, 0)] * (weight.array.ndim - 2)
        operands = [image, Constant(np.pad(weight.array, widths))]
    else:
        operands = [
            _repeat_last(each, node, more) if isinstance(each, Constant) else each
            for each in operands
        ]
    return builder.copy(node, operands)


def _repeat_last(constant: Constant, node: Node, more: int) -> Constant:
    """Return a constant whose last channel is repeated, unless it has a single one."""
    if _channels(constant, node) == 1:
        return constant
    axis = constant.array.ndim - len(node.shape) + 1
    widths = [(0, more if each == axis else 0) for each in range(constant.array.ndim)]
    return Constant(np.pad(constant.array, widths, "edge"))
