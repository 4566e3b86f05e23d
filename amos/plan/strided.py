"""Fragments of strided rows, read in place.

An instruction that loads a fragment as contiguous rows at equal distances, as AMX does, reads a
matrix in place, and the overlapping windows of a convolution from one copy of the image. Such an
operand keeps the tensor's order of dimensions; it is copied only where lanes or windows reach
beyond the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import prod
from typing import TYPE_CHECKING, Any

from amos.ir import Affine, dtype
from amos.plan.nest import Group, Nest
from amos.plan.staging import (
    Guard,
    StagedDim,
    StagedOperand,
    staged_destination,
    staged_sources,
    whole_dim,
)

if TYPE_CHECKING:
    from collections.abc import Mapping as MappingType
    from collections.abc import Sequence


@dataclass(frozen=True)
class StridedOperand(StagedOperand):
    """An operand in its tensor's own order, lanes being steps along its dimensions.

    Attributes:
        sizes: extent of each dimension in the tensor itself, where adjacent dimensions may be
            merged into one.
    """

    sizes: tuple[int, ...] = ()

    @cached_property
    def in_place(self) -> bool:
        """True if no lane or window reaches beyond the tensor."""
        moved = self.copied or self.computed or self.shape != self.sizes
        return not moved and not any(dim.offset for dim in self.dims)

    @property
    def source_shape(self) -> tuple[int, ...]:
        """The tensor's shape with dimensions merged."""
        return self.sizes

    def locate(self, position: Sequence[Any]) -> tuple[list[Any], list[Guard]]:
        """Return the element that belongs at a position; see :meth:`StagedOperand.locate`."""
        indices: list[Any] = []
        guards: list[Guard] = []
        for dim, size, where in zip(self.dims, self.sizes, position, strict=True):
            at = where + dim.offset if dim.offset else where
            if dim.offset < 0 or dim.offset + dim.extent > size:
                guards.append(Guard(at, size, pads=True))
            indices.append(at)
        return indices, guards

    def coordinates(self, indices: Sequence[Any]) -> list[Any]:
        """Return the coordinates of an element, with merged dimensions split."""
        shape, coordinates = list(self.load.tensor.shape), list[Any]()
        for size, at in zip(self.sizes, indices, strict=True):
            inner = size
            while True:
                radix = shape.pop(0)
                digit = at if inner == size else at % inner
                inner //= radix
                coordinates.append(digit // inner if inner > 1 else digit)
                if inner == 1:
                    break
        # Only dimensions of one element may remain.
        return coordinates + [0] * len(shape)


def source_forms(nest: Nest) -> tuple[StagedOperand, ...]:
    """Return each source as its instruction reads it, in the intrinsic's order."""
    staged = staged_sources(nest)
    if not nest.mapping.intrinsic.tile_registers:
        return staged
    # The second source is stored in groups along the reduction, unlike any tensor.
    first = staged[0]
    form = None if first.constant else _strided_form(first)
    return (form or first, *staged[1:])


def destination_form(nest: Nest) -> StagedOperand:
    """Return the destination as its instruction writes it."""
    staged = staged_destination(nest)
    if not nest.mapping.intrinsic.tile_registers:
        return staged
    extents = nest.mapping.operator.extents
    load = staged.load
    whole = all(
        index.names and index == Affine(((index.names[0], 1),)) and extents[index.names[0]] == size
        for index, size in zip(load.indices, load.tensor.shape, strict=True)
    )
    return (_strided_form(staged) if whole else None) or staged


def _walks(index: Affine, name: str) -> bool:
    return index == Affine(((name, 1),))


def _strided_form(op: StagedOperand) -> StridedOperand | None:
    """Return the operand in its tensor's order; ``None`` if its rows are not regular there."""
    nest, load = op.nest, op.load
    row, column = (nest.groups[target] for target in op.fragment)
    if any(not set(g.members) <= load.names or not g.members for g in (row, column)):
        return None
    extents = dict(nest.mapping.operator.extents)
    indices = [_drop_single_steps(index, extents) for index in load.indices]
    for group in nest.groups.values():
        extents |= {group.tile: group.tiles, group.lane: group.lanes}
    dims: list[StagedDim] = []
    sizes: list[int] = []
    d = 0
    while d < len(indices):
        merged = _merge_regular(nest, indices[d:], load.tensor.shape[d:])
        if merged is None:
            return None
        index, count = merged
        moved = {g.target for g in nest.groups.values() if g.lane in index.names}
        if not moved <= {row.target, column.target}:
            return None
        sizes.append(prod(load.tensor.shape[d : d + count]))
        dims.append(whole_dim(index, d, sizes[-1], extents))
        d += count
    rows = [dim for dim in dims if row.lane in dim.index.names]
    columns = [dim for dim in dims if column.lane in dim.index.names]
    if len(rows) != 1 or columns != dims[-1:] or dims[-1].index.coefficient(column.lane) != 1:
        return None
    if rows[0].index.coefficient(row.lane) < 0 or _is_disturbed(op, dims[-1], sizes[-1], column):
        return None
    return StridedOperand(op.name, load, tuple(dims), nest, op.fragment, tuple(sizes))


def _drop_single_steps(index: Affine, extents: MappingType[str, int]) -> Affine:
    """Drop the loops of a single step from an index, unless there are no others."""
    moving = [name for name in index.names if extents[name] > 1]
    return index.restrict(moving) if moving else index


def _merge_regular(
    nest: Nest, indices: list[Affine], shape: tuple[int, ...]
) -> tuple[Affine, int] | None:
    """Merge the first dimensions of a tensor so that every fused index takes even steps.

    Channels after a window's columns are an example: ``image[…, q * 2 + s, c]`` with ``s`` and
    ``c`` fused is ``q * 6 + (s * 3 + c)`` for three channels.

    Returns:
        the index as tiles and lanes, and how many dimensions it merges; ``None`` if there is none.
    """
    extents = nest.mapping.operator.extents
    owner = {name: g for g in nest.groups.values() for name in g.members}
    flat = Affine(())
    for count, (index, size) in enumerate(zip(indices, shape, strict=True), 1):
        low, high = index.bounds(extents)
        if count > 1 and (low < 0 or high >= size):
            return None  # A step beyond this dimension would end in the one before it.
        flat = flat * size + index
        groups = {owner[n].target: owner[n] for n in flat.names if n in owner}
        if all(_step(flat, group) is not None for group in groups.values()):
            # Dimensions of one element after these can be merged as well.
            still = (x.bounds(extents) == (0, 0) for x in indices[count:])
            unit_dims = takewhile(all, zip((n == 1 for n in shape[count:]), still, strict=True))
            return _substitute(flat, groups), count + len(list(unit_dims))
    return None


def _step(index: Affine, group: Group) -> int | None:
    """Return the distance that one step of a fused index moves; ``None`` if steps differ."""
    steps: set[tuple[int, int]] = set()
    weight = group.size
    for name, radix in zip(group.members, group.radices, strict=True):
        weight //= radix
        if radix > 1 or group.size == 1:
            steps.add(divmod(index.coefficient(name), weight))
    if len(steps) != 1:
        return None
    step, remainder = steps.pop()
    return None if remainder else step


def _is_disturbed(op: StagedOperand, dim: StagedDim, size: int, column: Group) -> bool:
    """Return whether lanes beyond the reduction read other steps' elements, or beyond the tensor.

    Where the other source moves along the reduction it is zero there, which cancels integers for
    sure; where it does not, the tensor has to end with the reduction, in zeros.
    """
    mapping, load = op.nest.mapping, op.load
    alone = set(dim.index.names) <= {column.tile, column.lane}
    if not column.is_padded:
        return False
    if column.kind == "reduce":
        second = mapping.operator.sources[mapping.order[1]]
        ends = dim.index.constant + dim.offset + column.size >= size
        if not set(column.members) & second.names:
            return not alone or not ends or bool(load.padding)
        alone = alone and ends
    return not alone and not dtype(load.tensor.dtype or "float32").is_integer


def _fused_index(group: Group) -> Affine:
    """Return the fused index of a group as tiles and lanes."""
    lane = Affine(((group.lane, 1),))
    return lane + Affine(((group.tile, group.lanes),)) if group.tiles > 1 else lane


def _substitute(index: Affine, groups: dict[str, Group]) -> Affine:
    """Substitute tiles and lanes for the matched iterations of an index."""
    members = {name for group in groups.values() for name in group.members}
    result = index.restrict(name for name in index.names if name not in members)
    for group in groups.values():
        result = result + _fused_index(group) * (_step(index, group) or 0)
    return result
