"""A network as a list of nodes: Relax's dataflow without Relax.

What decides about groups reads nothing else, so that it needs no TVM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor whose values do not change from call to call.

    Attributes:
        tensor: the engine's, or an array.
        shape: its extents.
        dtype: of its elements.
    """

    tensor: Any
    shape: tuple[int, ...]
    dtype: str

    @property
    def array(self) -> np.ndarray:
        """Its values: the engine's themselves, or a copy where NumPy lacks the dtype."""
        tensor = self.tensor
        if isinstance(tensor, np.ndarray):
            return tensor
        values: np.ndarray = np.from_dlpack(tensor) if hasattr(np, self.dtype) else tensor.numpy()
        return values


@dataclass(frozen=True, eq=False)
class Node:
    """One operation of a network, or one of its inputs.

    Attributes:
        number: position; a node reads only nodes before it.
        operation: the engine's name for it, for example ``"nn.conv2d"``; ``"input"``;
            ``"tuple"`` and ``"item"`` where several values are put together and taken apart.
        operands: what it reads, tuples taken apart.
        shape: extents of its result; empty where that is no single tensor.
        dtype: of its result; empty where that is no single tensor.
        attributes: how the engine was told to do it.
        expression: the engine's, over the engine's variables of other nodes.
        name: of an input.
    """

    number: int
    operation: str
    operands: tuple[Operand, ...]
    shape: tuple[int, ...]
    dtype: str
    attributes: Any = None
    expression: Any = None
    name: str = ""

    def integers(self, attribute: str) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        return tuple(int(value) for value in getattr(self.attributes, attribute))


#: What a node reads.
Operand = Node | Constant


@dataclass(frozen=True, eq=False)
class Graph:
    """The nodes of a network, in an order in which they can be computed.

    Attributes:
        nodes: inputs first.
        outputs: nodes whose results are the network's.
        single: whether the network's result is one array, rather than a tuple of them.
        functions: the engine's functions that nodes call, by its names.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]
    single: bool = True
    functions: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The inputs, in order."""
        return tuple(node for node in self.nodes if node.operation == "input")

    @cached_property
    def users(self) -> dict[int, tuple[Node, ...]]:
        """Who reads each node, by its number; the network itself is not among them."""
        users: dict[int, dict[int, Node]] = {node.number: {} for node in self.nodes}
        for node in self.nodes:
            for operand in node.operands:
                if isinstance(operand, Node):
                    users[operand.number][node.number] = node
        return {number: tuple(readers.values()) for number, readers in users.items()}

    @cached_property
    def kept(self) -> frozenset[int]:
        """Numbers of the nodes that the network returns."""
        return frozenset(node.number for node in self.outputs)

    def computing(self) -> Iterator[Node]:
        """Nodes other than inputs."""
        return (node for node in self.nodes if node.operation != "input")
