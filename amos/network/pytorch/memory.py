"""How tensors of PyTorch lie in memory: the order of their axes, and views of other tensors.

A program that goes on behind a graph may rely on both, by ``view`` or by changes in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from amos.errors import NetworkError

#: Axes from the outermost in memory to the innermost.
Order: TypeAlias = tuple[int, ...]


def order_of_axes(tensor: Any) -> Order | None:
    """The order in memory of a tensor's axes.

    Args:
        tensor: one of PyTorch, real or fake.

    Returns:
        ``None`` where that is the order of the shape, or elements lie apart.
    """
    strides = [_number(stride) for stride in tensor.stride()]
    sizes = [_number(size) for size in tensor.shape]
    order = sorted(range(len(sizes)), key=lambda axis: (-strides[axis], axis))
    expected = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != expected:
            return None
        expected *= sizes[axis]
    moved = [axis for axis in order if sizes[axis] != 1]
    return None if moved == sorted(moved) else tuple(order)


def invert(order: Order) -> Order:
    """The permutation that brings axes in this order back into that of the shape."""
    return tuple(order.index(axis) for axis in range(len(order)))


def permute(tensor: Any, order: Order | None) -> Any:
    """A tensor, or a node of a graph, with its axes in an order; itself without one."""
    if order is None:
        return tensor
    graph = getattr(tensor, "graph", None)
    return graph.call_method("permute", (tensor, order)) if graph else tensor.permute(order)


def _number(size: Any) -> int:
    """A size or stride; that of the call for a symbol."""
    return size if isinstance(size, int) else int(size.node.hint)


@dataclass(frozen=True)
class View:
    """A result that is a view of another tensor.

    Attributes:
        base: position of that tensor among the values of the call, then the results.
        shape, strides: of the view, in elements.
        offset: of its first element from that of the base, in elements.
    """

    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, tensors: Sequence[Any]) -> Any:
        """The view of the base among these tensors."""
        base = tensors[self.base]
        return base.as_strided(self.shape, self.strides, base.storage_offset() + self.offset)


def find_views(values: Sequence[Any], results: Sequence[Any]) -> tuple[View | None, ...]:
    """Find the results that share memory with a tensor of the call, or with an earlier result.

    Raises:
        NetworkError: such a result is no view of elements of the other one.
    """
    tensors, views = list(values), list[View | None]()
    for result in results:
        memory = result.untyped_storage()
        address = memory.data_ptr() or None  # without elements there is none
        position = next((n for n, each in enumerate(tensors) if _address(each) == address), None)
        tensors.append(result)
        if address is None or position is None:
            views.append(None)
            continue
        base = tensors[position]
        is_whole = base.numel() * base.element_size() == memory.nbytes() or position < len(values)
        if base.dtype != result.dtype or not is_whole:
            raise NetworkError("its results share memory")
        offset = result.storage_offset() - base.storage_offset()
        views.append(View(position, tuple(result.shape), result.stride(), offset))
    return tuple(views)


def _address(value: Any) -> int:
    """The address of the memory that a tensor lies in; 0 for numbers."""
    import torch

    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0
