"""How tensors of PyTorch lie in memory: the order of their axes, and views of other tensors.

A program that goes on behind a graph may rely on both, by ``view`` or by changes in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from amos.errors import NetworkError
from amos.network.packages import torch

#: Axes from the outermost in memory to the innermost.
Order: TypeAlias = tuple[int, ...]


def order_of_axes(tensor: Any) -> Order | None:
    """Return the order in memory of a tensor's axes; the tensor may be a fake one.

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
    """Return the permutation that brings axes in this order back into that of the shape."""
    return tuple(order.index(axis) for axis in range(len(order)))


def permute(tensor: Any, order: Order | None) -> Any:
    """Permute the axes of a tensor, or of a node of a graph; without an order return it."""
    if order is None:
        return tensor
    graph = getattr(tensor, "graph", None)
    return graph.call_method("permute", (tensor, order)) if graph else tensor.permute(order)


def _number(size: Any) -> int:
    """Return a size or stride, a symbol's for the call; refuse what values of tensors decide."""
    number = size if isinstance(size, int) else size.node.hint
    if number is None:
        raise NetworkError("a size that values of tensors decide")
    return int(number)


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
        """Return the view of the base among these tensors."""
        base = tensors[self.base]
        return base.as_strided(self.shape, self.strides, base.storage_offset() + self.offset)


def find_views(values: Sequence[Any], results: Sequence[Any]) -> tuple[View | None, ...]:
    """Find the results that share memory with a tensor of the call, or with an earlier result.

    Args:
        values: of the call, of which no two share memory.
        results: of the same call; those that have no element in common are no views of another.
    """
    tensors, views = list(values), list[View | None]()
    for result in results:
        address = _address(result) or None  # without elements there is none
        shared = [n for n, each in enumerate(tensors) if _address(each) == address]
        bases = [n for n in shared if n < len(values) or _overlaps(tensors[n], result)]
        tensors.append(result)
        if not bases:
            views.append(None)
            continue
        base = tensors[bases[0]]
        is_whole = base.numel() * base.element_size() == base.untyped_storage().nbytes()
        if base.dtype != result.dtype or not (is_whole or bases[0] < len(values)):
            raise NetworkError("its results share memory")
        offset = result.storage_offset() - base.storage_offset()
        views.append(View(bases[0], tuple(result.shape), result.stride(), offset))
    return tuple(views)


def separate(values: Sequence[Any]) -> list[Any]:
    """Copy the values of a call that share memory with an earlier one, together with it."""
    seen, separated = set[int](), list[Any]()
    for value in values:
        address = _address(value)
        if address in seen:
            memory = value.untyped_storage().clone()
            place = value.storage_offset(), value.shape, value.stride()
            value = value.new_empty(0).set_(memory, *place)
        seen |= {address} - {0}
        separated.append(value)
    return separated


def _address(value: Any) -> int:
    """Return the address of the memory that a tensor lies in; 0 for numbers."""
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


def _overlaps(first: Any, second: Any) -> bool:
    """Return whether tensors in one memory share elements; those of two dtypes may."""
    if first.dtype != second.dtype:
        return True
    places = torch.arange(first.untyped_storage().nbytes() // first.element_size())
    is_first = torch.zeros(len(places), dtype=torch.bool)
    of_first, of_second = (
        places.as_strided(each.shape, each.stride(), each.storage_offset())
        for each in (first, second)
    )
    is_first[of_first] = True
    return bool(is_first[of_second].any())
