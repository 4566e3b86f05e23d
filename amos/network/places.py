"""Places of a value's elements in the value that moves made it of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod

from amos.network.graph import Constant, Graph, Node, Operand


@dataclass(frozen=True)
class Place:
    """A dimension, and the iterations that walk it.

    Attributes:
        name: of the iteration; empty for a single place.
        offset: of the first step.
    """

    name: str
    size: int
    offset: int = 0

    def __str__(self) -> str:
        if not self.name:
            return str(self.offset)
        return f"{self.name}+{self.offset}" if self.offset else self.name


#: Dimensions of each axis of a value, the outermost first; none of an axis of a single step.
Axes = tuple[tuple[Place, ...], ...]


@dataclass(frozen=True)
class Traced:
    """A value that another one is made of.

    Attributes:
        factor: by which its elements are multiplied.
        nodes: between both, the one that is read last first.
    """

    operand: Operand
    axes: Axes
    factor: float = 1.0
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Followed:
    """A value that moves make of another one.

    Attributes:
        nodes: between both, in order, the result last.
    """

    result: Node
    axes: Axes
    nodes: tuple[Node, ...] = field(default=())


def trace_source(operand: Operand, axes: Axes, claimed: Collection[int]) -> Traced:
    """Trace a value back through moves, and products with a number.

    Args:
        claimed: numbers of nodes that are in kernels, ahead of which nothing is read.
    """
    traced = Traced(operand, axes)
    while (earlier := _trace_one(traced)) is not None and earlier.nodes[-1].number not in claimed:
        traced = earlier
    return traced


@dataclass(frozen=True)
class Division:
    """A place that a reshape divides into groups, as it does for what groups of heads share."""

    name: str
    outer: int
    inner: int


def find_division(operand: Operand, axes: Axes, claimed: Collection[int]) -> Division | None:
    """Find the place that has to be divided to trace a value back to what is repeated for it."""
    traced = trace_source(operand, axes, claimed)
    node = traced.operand
    if not isinstance(node, Node) or node.operation != "Reshape" or node.number in claimed:
        return None
    repeated = node.operands[0]
    if not isinstance(repeated, Node) or repeated.operation != "Expand":
        return None
    pending = [place for axis in traced.axes for place in axis]
    for extent in repeated.shape:
        size = 1
        while pending and size < extent:
            place = pending.pop(0)
            if extent % size == 0 and size * place.size > extent:
                outer, remainder = extent // size, place.size % (extent // size)
                if remainder or place.offset or not place.name:
                    return None
                return Division(place.name, outer, place.size // outer)
            size *= place.size
    return None


def _trace_one(traced: Traced) -> Traced | None:
    """Trace a value back by one node; ``None`` where that is no move."""
    node, axes = traced.operand, traced.axes
    if not isinstance(node, Node) or not node.operands:
        return None
    source, factor = node.operands[0], traced.factor
    own: Axes | None = None
    if node.operation == "Transpose":
        order = node.attributes["perm"]
        own = tuple(axes[order.index(axis)] for axis in range(len(order)))
    elif node.operation == "Reshape":
        own = _regroup(axes, source.shape)
    elif node.operation == "Slice":
        own = _slice(node, axes)
    elif node.operation == "Expand":
        # A dimension of one element is the same for all steps.
        missing = len(node.shape) - len(source.shape)
        pairs = zip(source.shape, axes[missing:], strict=True)
        own = tuple(axis if extent > 1 else () for extent, axis in pairs)
    elif node.operation == "Mul" and node.dtype == "float32":
        numbers = [x for x in node.operands if isinstance(x, Constant) and x.array.size == 1]
        values = [x for x in node.operands if isinstance(x, Node) and x.shape == node.shape]
        if len(numbers) == len(values) == 1 and isfinite(numbers[0].array.item()):
            (source,), own = values, axes
            factor *= numbers[0].array.item()
    return None if own is None else Traced(source, own, factor, (*traced.nodes, node))


def _regroup(axes: Axes, shape: Sequence[int]) -> Axes | None:
    """Return the dimensions of all axes as those of other axes; ``None`` if one is divided."""
    pending = [place for axis in axes for place in axis]
    own: list[tuple[Place, ...]] = []
    for extent in shape:
        dimensions: list[Place] = []
        while pending and prod(x.size for x in dimensions) < extent:
            dimensions.append(pending.pop(0))
        if prod(x.size for x in dimensions) != extent:
            return None
        own.append(tuple(dimensions))
    return None if pending else tuple(own)


def _slice(node: Node, axes: Axes) -> Axes | None:
    """Return the dimensions of what a slice reads; ``None`` where it has no such dimensions."""
    own: list[tuple[Place, ...]] = []
    attributes, extents = node.attributes, node.operands[0].shape
    steps = zip(axes, attributes["starts"], attributes["steps"], node.shape, extents, strict=True)
    for axis, start, step, size, whole in steps:
        is_plain = step == 1 or size == 1
        if is_plain and size == whole:
            own.append(axis)
            continue
        first, *inner = axis or (Place("", 1),)
        unit = prod(place.size for place in inner)
        if not is_plain or start % unit or whole % unit or first.size * unit != size:
            return None
        moved = replace(first, size=whole // unit, offset=first.offset + start // unit)
        own.append((moved, *inner))
    return tuple(own)


def follow_moves(node: Node, axes: Axes, graph: Graph, stop: Collection[int]) -> Followed:
    """Follow a value through moves up to the last transpose, or to nodes that stay as they are."""
    last, passed = Followed(node, axes), list[Node]()
    while graph.has_one_reader(node):
        (node,) = graph.users[node.number]
        if node.number in stop:
            break
        if node.operation == "Transpose":
            axes = tuple(axes[axis] for axis in node.attributes["perm"])
        elif node.operation == "Reshape" and (own := _regroup(axes, node.shape)) is not None:
            axes = own
        else:
            break
        passed.append(node)
        if node.operation == "Transpose":
            last = Followed(node, axes, tuple(passed))
    return last


def names_of(axes: Iterable[Sequence[Place]]) -> list[str]:
    """Return the iterations of axes, in order."""
    return [place.name for axis in axes for place in axis]
