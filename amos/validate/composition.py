"""What an elementwise operator computes, as one expression of what its tensors are.

The arithmetic of expressions is that of :mod:`amos.ir.epilogue`: ``int32``, which wraps
around as sums of operators do, or ``float32``. Where an operator computes something else,
there is no such expression, and a reason says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from amos.ir import Affine, BufferLoad, Operator, dtype
from amos.ir.epilogue import ACC, CASTS, Epilogue, Node

__all__ = ["Apart", "Read", "Value", "accesses", "at", "elementwise", "stored", "substituted"]


class Apart(Exception):
    """Why two operators cannot be one."""


@dataclass(frozen=True)
class Value:
    """An element as an expression, and what is stored of it.

    Attributes:
        node: the expression.
        dtype: dtype of the element; ``None`` while that is open.
        accumulator: dtype of ``acc`` in the expression.
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

    def inside(self) -> Node:
        """The expression as a term of a larger one.

        Raises:
            Apart: it is rounded where it is stored, and would not be there.
        """
        if self.rounded:
            raise Apart(
                f"{_short(self.dtype)}({self.node}) is rounded as it is stored, "
                "and an expression rounds only at its end"
            )
        return self.node

    def as_dtype(self, into: str | None) -> Value:
        """The same expression, stored in a dtype that an operator converts it to.

        Raises:
            Apart: an expression converts to it in another way, or not at all.
        """
        if into is None or into == self.dtype:
            return replace(self, dtype=self.dtype if into else None)
        node, whole = self.inside(), self.kind == "int32"
        exact = self.dtype is not None and dtype(into).represents(dtype(self.dtype))
        if into not in CASTS.values():
            raise Apart(f"no expression gives {into}")
        if dtype(into).is_integer and not exact and (into, whole) != ("int32", True):
            raise Apart(f"{into} is wrapped around by an operator, and clamped by an expression")
        if whole and not dtype(into).is_integer:
            node = Node("f32", (node,))
        made = replace(self, node=node, dtype=into)
        return replace(made, rounded=into != made.kind)

    def epilogue(self) -> Epilogue | None:
        """What stores it; nothing if it is the accumulator itself."""
        if self.node.name == ACC and not self.rounded:
            return None
        return Epilogue(self.node, self.dtype if self.rounded else None)


def stored(op: Operator) -> Value:
    """What an operator stores, of ``acc``."""
    accumulator = op.output.tensor.dtype
    if op.epilogue is None:
        return Value(Node(ACC), accumulator, accumulator or "float32")
    value = Value(op.epilogue.expression, None, accumulator or "float32")
    kind = op.epilogue.dtype or (value.kind if accumulator else None)
    return replace(value, dtype=kind, rounded=kind not in (None, value.kind))


#: The value of an access.
Read = Callable[[BufferLoad], Value]


def accesses(op: Operator) -> list[BufferLoad]:
    """Every read of an input by the operator's iterations, also those of its prologues."""
    reads: list[BufferLoad] = []
    for load in op.sources:
        prologue = op.prologue(load.tensor.name)
        if prologue is None:
            reads.append(load)
        else:
            by = dict(zip(prologue.dimensions, load.indices, strict=True))
            reads += [replace(at(each, by), padded=load.padded) for each in prologue.loads]
    return [*reads, *(op.epilogue.loads if op.epilogue is not None else ())]


def at(load: BufferLoad, by: Mapping[str, Affine]) -> BufferLoad:
    """The access with what indexes it replaced by other indices."""
    indices = []
    for index in load.indices:
        total = Affine(constant=index.constant)
        for name, c in index.terms:
            total += by[name] * c
        indices.append(total)
    return replace(load, indices=tuple(indices))


def elementwise(op: Operator, read: Read) -> Value:
    """What an operator that sums over nothing stores.

    Args:
        op: the operator.
        read: the value of each access.

    Raises:
        Apart: no expression computes the same.
    """
    values = [_source(op, load, read) for load in op.sources]
    value = values[0] if len(values) == 1 else _product(values, op)
    value = value.as_dtype(op.output.tensor.dtype)
    if op.epilogue is None:
        return value
    node = substituted(op.epilogue.expression, read, value.inside())
    made = replace(value, node=node)
    kind = op.epilogue.dtype or (made.kind if value.dtype else None)
    return replace(made, dtype=kind, rounded=kind not in (None, made.kind))


def substituted(node: Node, read: Read, accumulator: Node | None = None) -> Node:
    """An expression with its accesses, and ``acc``, replaced by what they are."""
    if node.name == ACC and accumulator is not None:
        return accumulator
    if node.load is not None:
        return read(node.load).inside()
    arguments = (substituted(each, read, accumulator) for each in node.arguments)
    return replace(node, arguments=tuple(arguments))


def _source(op: Operator, load: BufferLoad, read: Read) -> Value:
    """A source of the statement: an input, or what its prologue computes."""
    prologue = op.prologue(load.tensor.name)
    if prologue is None:
        return read(load)
    by = dict(zip(prologue.dimensions, load.indices, strict=True))
    node = substituted(
        prologue.expression, lambda each: read(replace(at(each, by), padded=load.padded))
    )
    value = Value(node, prologue.dtype)
    return replace(value, rounded=prologue.dtype != value.kind)


def _product(values: list[Value], op: Operator) -> Value:
    """The product of sources; integers of a float product are converted first."""
    into = op.output.tensor.dtype
    nodes = [value.inside() for value in values]
    if into is not None and not dtype(into).is_integer:
        nodes = [
            Node("f32", (node,)) if value.kind == "int32" else node
            for node, value in zip(nodes, values, strict=True)
        ]
    product = reduce(lambda left, right: Node("multiply", (left, right)), nodes)
    value = Value(product, None, values[0].accumulator)
    return replace(value, dtype=value.kind if into else None)


def _short(kind: str | None) -> str:
    return dtype(kind).short if kind is not None else ""
