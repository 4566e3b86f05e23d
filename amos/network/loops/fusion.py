"""Fusion of operators that no kernel computes into functions of loops.

Elementwise operators and moves are inlined where they are read, also behind sums, norms and
products; ahead of a sum only elementwise ones are.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from math import prod

import numpy as np

from amos.network.graph import Constant, Graph, Node, Operand
from amos.network.operations import Kind
from amos.network.shapes import count_bytes

#: Results of these are their operand's memory, where they are not computed with others.
VIEWS = ("Identity", "Reshape")
#: Moves that cost no more in each of several readers than in one of them.
_REPEATED = ("Expand", "Slice")
#: Least steps of a loop that runs in parallel.
PARALLEL_STEPS = 16384
#: Operators that read their numbers from memory.
_ARITHMETIC = ("Add", "Div", "Mul", "Sub")
#: Operators of a function at most: TVM takes minutes to simplify expressions without end.
_MOST = 40
#: Parts of a concatenation at most that is computed where it is read, by a condition for each.
_JOINED = 8


def is_immediate(node: Node, constant: Constant) -> bool:
    """Return whether the loops of a node hold a constant as a number: one of a single element.

    Summands and factors are read: layers differ in them, as in the scales of quantized ones, and
    share their loops. TVM would take the larger of NaN and a number to be the number.
    """
    array = constant.array
    return array.size == 1 and node.operation not in _ARITHMETIC and bool((array == array).all())


@dataclass(frozen=True, eq=False)
class Fused:
    """Operators that one function computes, in order, the last one the result."""

    nodes: tuple[Node, ...]

    @property
    def result(self) -> Node:
        """The node that the function computes."""
        return self.nodes[-1]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The values that it reads, each once: results of others, and constants in memory."""
        own = {node.number for node in self.nodes}
        read: dict[int, Operand] = {}
        for node in self.nodes:
            for operand in node.operands:
                if isinstance(operand, Constant):
                    computed = is_immediate(node, operand)
                else:
                    computed = operand.number in own
                if not computed:
                    read[id(operand)] = operand
        return tuple(read.values())

    @property
    def copied_parts(self) -> tuple[Operand, ...]:
        """Operands of a small concatenation whose elements stay together, so that it only copies.

        Larger ones are parallel loops.
        """
        (node, *more), shape = self.nodes, self.result.shape
        if more or node.operation != "Concat" or prod(shape) >= PARALLEL_STEPS:
            return ()
        stays_together = all(size == 1 for size in shape[: node.attributes["axis"]])
        return tuple(each for each in node.operands if stays_together and 0 not in each.shape)

    @property
    def begin_bytes(self) -> int:
        """Byte of its operand at which it begins: slices that differ in it share a function."""
        node, attributes = self.nodes[0], self.nodes[0].attributes
        if len(self.nodes) > 1 or node.operation != "Slice" or min(attributes["steps"]) < 0:
            return 0
        (source,) = node.operands
        places = np.ravel_multi_index(attributes["starts"], source.shape)
        return int(places) * count_bytes(source) // prod(source.shape)


@dataclass(eq=False)
class _Function:
    """A function while it grows, from its result on.

    Attributes:
        nodes: the result first.
        heavy: the one that is neither elementwise nor a move, if there is one.
        ahead: numbers of that one and of what is computed ahead of it.
    """

    nodes: list[Node] = field(default_factory=list)
    heavy: Node | None = None
    ahead: set[int] = field(default_factory=set)

    def add(self, node: Node, *, ahead: bool) -> None:
        self.nodes.append(node)
        if _is_heavy(node):
            self.heavy = node
        if ahead or _is_heavy(node):
            self.ahead.add(node.number)


def fuse(graph: Graph, called: Set[int], read: Set[int]) -> tuple[Fused, ...]:
    """Divide nodes into functions, in an order of computation; kernels compute and read others."""
    return _Fusion(graph, called, graph.returned | read).functions()


class _Fusion:
    """One pass over a graph, from its results on.

    Attributes:
        stored: numbers of the nodes whose results are tensors, whoever computes them.
        homes: functions that compute each node; none of a view.
    """

    def __init__(self, graph: Graph, called: Set[int], stored: Set[int]) -> None:
        self.graph, self.called, self.stored = graph, called, stored
        self.homes: dict[int, list[_Function]] = {}

    def functions(self) -> tuple[Fused, ...]:
        functions = []
        for node in reversed(self.graph.nodes):
            if node.operation == "input" or node.number in self.called:
                continue
            readers = self.readers(node)
            if not readers and node.number not in self.stored:
                continue  # nobody needs it
            homes = self.join(node, readers)
            if not homes and node.operation not in VIEWS:
                homes = [_Function()]
                functions += homes
            self.homes[node.number] = homes
            for function in homes:
                ahead = any(each.number in function.ahead for each in readers)
                function.add(node, ahead=ahead)
        functions.sort(key=lambda function: function.nodes[0].number)
        return tuple(Fused(tuple(reversed(each.nodes))) for each in functions)

    def readers(self, node: Node) -> list[Node]:
        """List the nodes of this function that read a node."""
        return [each for each in self.graph.users[node.number] if each.number in self.homes]

    def join(self, node: Node, readers: list[Node]) -> list[_Function]:
        """Return the functions that a node joins; none if it begins its own, or is a view."""
        if node.number in self.stored or not all(self.homes[each.number] for each in readers):
            return []
        if node.operation == "Concat" and len(node.operands) > _JOINED:
            return []
        functions = list({id(f): f for each in readers for f in self.homes[each.number]}.values())
        several = len(functions) > 1 and node.operation not in _REPEATED
        if several or (node.operation in VIEWS and not self.is_inner_view(node)):
            return []
        fits = all(_joins(node, function, readers) for function in functions)
        return functions if fits else []

    def is_inner_view(self, node: Node) -> bool:
        """Return whether this function computes the operand of a view; otherwise a view is free."""
        (operand,) = node.operands
        return (
            isinstance(operand, Node)
            and operand.operation not in ("input", *VIEWS)
            and operand.number not in self.called
            and operand.number not in self.stored
            and not _is_heavy(operand)
            and len(self.graph.users[operand.number]) == 1
        )


def _is_heavy(node: Node) -> bool:
    return node.kind not in (Kind.ELEMENTWISE, Kind.MOVE)


def _joins(node: Node, function: _Function, readers: list[Node]) -> bool:
    """Return whether a node can be computed by the function that computes its readers."""
    own = [each for each in readers if each in function.nodes]
    ahead = {each.number in function.ahead for each in own}
    if len(function.nodes) >= _MOST or len(ahead) > 1:
        return False
    if _is_heavy(node):
        # What follows is computed beside the sums, element by element.
        follows = all(each.kind is Kind.ELEMENTWISE and each.shape == node.shape for each in own)
        return function.heavy is None and follows
    if True in ahead:
        assert function.heavy is not None
        sums = function.heavy.operation.startswith("Reduce")
        return sums and node.kind is Kind.ELEMENTWISE
    return True
