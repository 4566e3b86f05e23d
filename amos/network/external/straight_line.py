"""A compiled network as a straight line of calls on buffers whose places are decided.

Shapes are static: which function runs when, and where each tensor lies, is decided once. C prints
it as tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from amos.errors import NetworkError
from amos.network.graph import Graph, Node, Operand
from amos.network.loops.fusion import VIEWS
from amos.network.shapes import count_bytes

#: Offsets are multiples of a cache line.
ALIGNMENT_BYTES = 64


#: Copies the first buffer to the second one.
COPY = ""


class Place(Enum):
    """Where a buffer lies."""

    INPUT = 0
    OUTPUT = 1
    ARENA = 2
    CONSTANT = 3


@dataclass(frozen=True)
class Buffer:
    """A tensor of a program.

    Attributes:
        place: the memory that holds it.
        index: number of the input or output, offset in bytes in the arena, number of the constant.
        begin: byte at which it begins in the memory of a value.
    """

    place: Place
    index: int
    shape: tuple[int, ...]
    dtype: str
    begin: int = 0


@dataclass(frozen=True)
class Step:
    """A call of a function.

    Attributes:
        function: its name, or :data:`COPY`.
        node: number of the node that it computes.
    """

    function: str
    buffers: tuple[Buffer, ...]
    node: int


@dataclass(frozen=True, eq=False)
class StraightLine:
    """The calls of a network, in order.

    Attributes:
        inputs, outputs: of the network.
        arena_bytes: size of the memory of intermediate tensors.
        constants: arrays, by their number.
    """

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    steps: tuple[Step, ...]
    arena_bytes: int
    constants: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a function that computes a node.

    Attributes:
        arguments: values that it reads, with the shapes under which it does.
        shape: under which it writes that.
        holds: the dtype by which it calls elements of another one.
        begin: byte at which it begins to read its first argument.
        result_begin: byte at which it begins to write its result.
    """

    function: str
    arguments: tuple[tuple[Operand, tuple[int, ...]], ...]
    result: Node
    shape: tuple[int, ...]
    holds: Callable[[str], str] = str
    begin: int = 0
    result_begin: int = 0


def straight_line(name: str, graph: Graph, calls: Sequence[Call]) -> StraightLine:
    """Decide where the tensors of a network lie that functions compute, in any order.

    Results of the network are written to its outputs. A view shares the memory of its operand.
    """
    # Operands of a call have lower numbers than its result.
    ordered = sorted(calls, key=lambda call: call.result.number)
    return _Line(name, graph, ordered).write()


class _Line:
    """The places of the values of one network."""

    def __init__(self, name: str, graph: Graph, calls: Sequence[Call]) -> None:
        self.name, self.graph, self.calls = name, graph, calls
        self.computed = {call.result.number for call in calls}
        self.inputs = {node.number for node in graph.inputs}
        self.constants: dict[int, tuple[int, np.ndarray]] = {}
        self.places = {
            node.number: (Place.INPUT, number) for number, node in enumerate(graph.inputs)
        }

    def write(self) -> StraightLine:
        copied = self.place_outputs()
        arena_bytes = self.place_others()
        steps = [
            Step(call.function, self.buffers_of(call), call.result.number) for call in self.calls
        ]
        for number, node in copied:
            target = Buffer(Place.OUTPUT, number, node.shape, node.dtype)
            buffers = self.buffer(node, node.shape), target
            steps.append(Step(COPY, buffers, node.number))
        arrays = tuple(array for _, array in self.constants.values())
        return StraightLine(
            self.name, self.graph.inputs, self.graph.outputs, tuple(steps), arena_bytes, arrays
        )

    def place_outputs(self) -> list[tuple[int, Node]]:
        """Compute outputs in their buffers where possible; return the outputs that are copied."""
        copied = []
        for number, node in enumerate(self.graph.outputs):
            owner = self.owner(node)
            if isinstance(owner, Node) and owner.number not in self.places:
                self.places[owner.number] = Place.OUTPUT, number
            else:
                copied.append((number, node))
        return copied

    def place_others(self) -> int:
        """Place all other results in the arena; return its size."""
        steps: dict[int, tuple[int, int]] = {}
        for step, call in enumerate(self.calls):
            owners = [self.owner(operand) for operand, _ in call.arguments]
            for owner in (*owners, call.result):
                if isinstance(owner, Node) and owner.number not in self.places:
                    steps[owner.number] = steps.get(owner.number, (step, step))[0], step
        sizes = {call.result.number: count_bytes(call.result) for call in self.calls}
        offsets, size = plan_offsets([Span(sizes[n], *steps[n]) for n in steps])
        for number, offset in zip(steps, offsets, strict=True):
            self.places[number] = Place.ARENA, offset
        return size

    def owner(self, operand: Operand) -> Operand:
        """Return the value whose memory a value occupies."""
        while isinstance(operand, Node) and operand.number not in self.computed | self.inputs:
            if operand.operation not in VIEWS:
                raise NetworkError(f"{self.name}: nothing computes {operand.operation}")
            (operand,) = operand.operands
        return operand

    def buffers_of(self, call: Call) -> tuple[Buffer, ...]:
        """List the buffers that a call takes."""
        values = [*call.arguments, (call.result, call.shape)]
        buffers = [self.buffer(value, shape, call.holds) for value, shape in values]
        buffers[0] = replace(buffers[0], begin=call.begin)
        buffers[-1] = replace(buffers[-1], begin=call.result_begin)
        return tuple(buffers)

    def buffer(
        self, operand: Operand, shape: tuple[int, ...], holds: Callable[[str], str] = str
    ) -> Buffer:
        """Return a value as the tensor that a call takes."""
        owner, kind = self.owner(operand), holds(operand.dtype)
        if isinstance(owner, Node):
            return Buffer(*self.places[owner.number], shape, kind)
        array = owner.array
        number, _ = self.constants.setdefault(id(array), (len(self.constants), array))
        return Buffer(Place.CONSTANT, number, shape, kind)


@dataclass(frozen=True)
class Span:
    """The lifetime of a tensor.

    Attributes:
        first: step that writes it.
        last: the last step that reads it.
    """

    size: int
    first: int
    last: int


def plan_offsets(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Return the offset of each tensor, and how much memory all of them take.

    The largest come first, each to the lowest gap that is free for all of its steps.
    """
    offsets, total = [0] * len(spans), 0
    placed: list[tuple[int, int, Span]] = []  # offset, end, span; by offset
    order = sorted(range(len(spans)), key=lambda number: (-spans[number].size, number))
    for number in order:
        span = spans[number]
        size = -(-span.size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        offset = 0
        for begin, end, neighbour in placed:
            if neighbour.first > span.last or neighbour.last < span.first:
                continue
            if begin - offset >= size:
                break
            offset = max(offset, end)
        offsets[number] = offset
        placed.append((offset, offset + size, span))
        placed.sort(key=lambda entry: entry[:2])
        total = max(total, offset + size)
    return offsets, total
