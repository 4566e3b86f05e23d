"""Orders of axes in memory, and operators that read tensors of other orders.

An order names the axes of a tensor as they follow each other in memory, the outermost first. The
axes of ``(n, c, h, w)`` with its channels last are in order ``(0, 2, 3, 1)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from amos.network.graph import Node
from amos.network.operations import Kind
from amos.network.shapes import match_axes

#: Axes of a tensor, outermost first.
Order = tuple[int, ...]

#: Moves and others whose first operand alone has the axes of the result, or those not reduced.
_ALONG_AXES = frozenset(
    ["ArgMax", "ArgMin", "Expand", "GroupNormalization", "LogSoftmax", "Pad", "ReduceMax"]
    + ["ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Slice", "Softmax", "Tile"]
)
#: Attributes that have an entry for each axis.
_OF_EACH_AXIS = frozenset({"after", "before", "repeats", "shape", "sizes", "starts", "steps"})


def original(rank: int) -> Order:
    """Return the order in which ONNX has the axes."""
    return tuple(range(rank))


def with_channels_last(rank: int) -> Order:
    """Return the order with the second axis as the last one."""
    return (0, *range(2, rank), 1) if rank > 2 else original(rank)


def significant(order: Order, shape: Sequence[int]) -> Order:
    """Return an order without the axes of one element, whose places do not matter."""
    return tuple(axis for axis in order if shape[axis] != 1)


def places_of_followed(node: Node) -> tuple[int, ...]:
    """Return which operands a node takes in any order; none if it is of another kind."""
    if node.operation in _ALONG_AXES:
        return (0,)
    if node.operation == "Gather":
        # A lookup in a table has the axes of its index.
        return (1,) if len(node.operands[0].shape) == 1 else (0,)
    if node.operation == "Concat" or node.kind is Kind.ELEMENTWISE:
        return tuple(range(len(node.operands)))
    return ()


def moved_attributes(node: Node, order: Order) -> dict[str, Any]:
    """Return the attributes of a node that reads its operands in an order."""
    if node.operation == "Gather" and places_of_followed(node) == (1,):
        return dict(node.attributes)
    return {name: _reorder(name, value, order) for name, value in node.attributes.items()}


def _reorder(name: str, value: Any, order: Order) -> Any:
    if name == "axis":
        return order.index(value)
    if name == "axes":
        return tuple(sorted(map(order.index, value)))
    return tuple(value[axis] for axis in order) if name in _OF_EACH_AXIS else value


def order_behind(node: Node, order: Order) -> Order | None:
    """Return the order of a result whose operands are read in an order.

    ``None`` if there is none: merged axes are apart, or batches are not outermost.
    """
    if node.operation == "GroupNormalization" and order[0] != 0:
        return None
    if node.operation == "Reshape":
        return reshaped_order(order, node.operands[0].shape, node.shape)
    for axis, count in _replaced_axes(node):
        order = _replace_axis(order, axis, count)
    return order


def order_ahead(node: Node, order: Order) -> Order | None:
    """Return the order of operands that gives the result in an order, where one does."""
    if node.operation == "Reshape":
        return reshaped_order(order, node.shape, node.operands[0].shape)
    return None if _replaced_axes(node) else order


def _replaced_axes(node: Node) -> list[tuple[int, int]]:
    """List the operand's axes that the result replaces, each with the number of its new axes."""
    attributes = node.attributes
    if node.operation == "Gather" and places_of_followed(node) == (0,):
        indices = len(node.operands[1].shape)
        return [] if indices == 1 else [(attributes["axis"], indices)]
    if attributes.get("keepdims") is False:
        gone = attributes["axes"] if "axes" in attributes else (attributes["axis"],)
        return [(axis, 0) for axis in sorted(gone, reverse=True)]
    return []


def _replace_axis(order: Order, axis: int, count: int) -> Order:
    """Replace an axis of an order by others."""

    def rename() -> Iterator[int]:
        for own in order:
            if own == axis:
                yield from range(axis, axis + count)
            else:
                yield own if own < axis else own + count - 1

    return tuple(rename())


def reshaped_order(order: Order, before: Sequence[int], after: Sequence[int]) -> Order | None:
    """Return the order of the axes of a reshaped tensor, for an order of those it had.

    ``None`` if axes that become others together do not follow each other.
    """
    axes = significant(order, before)
    result: list[int] = []
    groups = {old[0]: (old, new) for old, new in _match_factors(before, after)}
    place = 0
    while place < len(axes):
        old, new = groups.get(axes[place], ((), ()))
        if not old or axes[place : place + len(old)] != old:
            return None
        result += new
        place += len(old)
    return _complete(tuple(result), after)


def _match_factors(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[Order, Order]]:
    """Yield the smallest groups of axes that a reshape merges or splits, none of extent 1."""
    olds, news = (significant(original(len(shape)), shape) for shape in (before, after))
    for old, new in match_axes([before[axis] for axis in olds], [after[axis] for axis in news]):
        yield tuple(olds[n] for n in old), tuple(news[n] for n in new)


def _complete(order: Order, shape: Sequence[int]) -> Order:
    """Add the axes of one element to an order."""
    rank = len(shape)
    for whole in (original(rank), with_channels_last(rank)):
        if significant(whole, shape) == order:
            return whole
    return (*(axis for axis in range(rank) if shape[axis] == 1), *order)
