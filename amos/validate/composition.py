"""An elementwise operator as one expression of its input tensors.

The arithmetic of expressions is that of :mod:`amos.ir.epilogue`: ``int32``, which wraps
around as sums of operators do, or ``float32``. Where an operator computes in other
arithmetic there is no such expression, and a reason says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

from amos.ir import BufferLoad, Operator, dtype
from amos.ir.epilogue import ACC, Epilogue
from amos.ir.expression import ACCUMULATORS, CASTS, FLOATS, INTEGERS, SIGNS, Node
from amos.ir.limits import DEPTH

#: Functions of expressions that join sources.
_JOINS = {sign: name for name, sign in SIGNS.items()}


class Unfusable(Exception):
    """The reason why two operators cannot be fused."""


@dataclass(frozen=True)
class Value:
    """An element as an expression, and its stored form.

    Attributes:
        node: the expression.
        dtype: dtype of the element; ``None`` while that is open.
        accumulator: kind of ``acc`` in the expression.
        rounded: whether the expression still has to be rounded to ``dtype``.
    """

    node: Node
    dtype: str | None
    accumulator: str = "float32"
    rounded: bool = False

    @property
    def kind(self) -> str:
        """Dtype in which the expression is computed."""
        return self.node.kind({ACC: self.accumulator})

    def as_term(self) -> Value:
        """Convert the element to a term of a larger expression, or raise Unfusable."""
        if self.dtype not in (None, *INTEGERS, *FLOATS):
            raise Unfusable(f"expressions are of int32 and float32, which do not hold {self.dtype}")
        if not self.rounded or self.dtype is None:
            return self
        node = Node(dtype(self.dtype).short, (self.node,))
        return replace(self, node=node, rounded=False)

    def with_node(self, node: Node, into: str | None) -> Value:
        """Replace the expression, and store it in a dtype; its own kind if that is open."""
        if node.depth > DEPTH:
            raise Unfusable(f"expressions would be nested deeper than {DEPTH}")
        value = replace(self, node=node, dtype=into, rounded=False)
        return replace(value, rounded=into not in (None, value.kind))

    def as_dtype(self, into: str | None) -> Value:
        """Store the expression in a dtype to which an operator converts it, or raise Unfusable."""
        if into == self.dtype or (into is None and self.rounded):
            return self
        if into is None:
            return replace(self, dtype=None)
        value = self.as_term()
        node, is_integer = value.node, value.kind == "int32"
        exact = self.dtype is not None and dtype(into).represents(dtype(self.dtype))
        if into not in CASTS.values():
            raise Unfusable(f"no expression gives {into}")
        if dtype(into).is_integer and not exact and (into, is_integer) != ("int32", True):
            raise Unfusable(
                f"{into} is wrapped around by an operator, and clamped by an expression"
            )
        if is_integer and not dtype(into).is_integer:
            node = Node("f32", (node,))
        return self.with_node(node, into)

    def epilogue(self) -> Epilogue | None:
        """Return the epilogue that stores the value; ``None`` for the accumulator itself."""
        if self.node.name == ACC and not self.rounded:
            return None
        return Epilogue(self.node, self.dtype if self.rounded else None)


def stored_value(op: Operator) -> Value:
    """Return the value that an operator stores, as an expression of ``acc``."""
    accumulator = op.output.tensor.dtype
    wide = ACCUMULATORS.get(accumulator or "float32", str(accumulator))
    if op.epilogue is None:
        return Value(Node(ACC), accumulator, wide)
    value = Value(op.epilogue.expression, None, wide)
    kind = value.kind if accumulator else None
    return value.with_node(value.node, op.epilogue.dtype or kind)


#: The value of an access.
Read = Callable[[BufferLoad], Value]


def accesses(op: Operator) -> list[BufferLoad]:
    """List every read of an input by the operator's iterations, also those of prologues."""
    reads: list[BufferLoad] = []
    for load in op.sources:
        prologue = op.prologue(load.tensor.name)
        if prologue is None:
            reads.append(load)
        else:
            by = dict(zip(prologue.dimensions, load.indices, strict=True))
            reads += [replace(each.substitute(by), padded=load.padded) for each in prologue.loads]
    return [*reads, *(op.epilogue.loads if op.epilogue is not None else ())]


def elementwise_value(op: Operator, read: Read) -> Value:
    """Return the value that an operator without a reduction stores, or raise Unfusable."""
    values = [_source(op, load, read) for load in op.sources]
    value = values[0] if len(values) == 1 else _join(values, op)
    value = value.as_dtype(op.output.tensor.dtype)
    if op.epilogue is None:
        return value
    node = substitute(op.epilogue.expression, read, value.as_term().node)
    kind = value.with_node(node, None).kind if value.dtype else None
    return value.with_node(node, op.epilogue.dtype or kind)


def substitute(node: Node, read: Read, accumulator: Node | None = None) -> Node:
    """Replace the accesses of an expression, and ``acc``, by their values."""
    if node.name == ACC and accumulator is not None:
        return accumulator
    if node.load is not None:
        return read(node.load).as_term().node
    arguments = (substitute(each, read, accumulator) for each in node.arguments)
    return replace(node, arguments=tuple(arguments))


def _source(op: Operator, load: BufferLoad, read: Read) -> Value:
    """Return a source of the statement: an input, or the value of its prologue."""
    prologue = op.prologue(load.tensor.name)
    if prologue is None:
        return read(load)
    by = dict(zip(prologue.dimensions, load.indices, strict=True))
    node = substitute(
        prologue.expression, lambda access: read(replace(access.substitute(by), padded=load.padded))
    )
    return Value(node, None).with_node(node, prologue.dtype)


def _join(values: list[Value], op: Operator) -> Value:
    """Join the sources as the statement does; integers are converted to floats first."""
    into = op.output.tensor.dtype
    terms = [value.as_term() for value in values]
    nodes = [value.node for value in terms]
    if into is not None and not dtype(into).is_integer:
        nodes = [
            Node("f32", (node,)) if value.kind == "int32" else node
            for node, value in zip(nodes, terms, strict=True)
        ]
    name = _JOINS.get(op.compute.join, op.compute.join)
    joined = reduce(lambda first, second: Node(name, (first, second)), nodes)
    value = replace(values[0], node=joined)
    return value.with_node(joined, value.kind if into else None)
