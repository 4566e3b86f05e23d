"""Fragments whose rows lie apart, read where the tensor has them.

An instruction that loads a fragment row by row, each row contiguous and any two rows
equally far apart, as AMX does, reads a matrix in place, and the overlapping windows of
a convolution from one copy of the image. Such an operand keeps the tensor's order of
dimensions; it is copied only where lanes or windows reach beyond the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from amos.ir import Affine
from amos.mapping.nest import Group, Nest
from amos.mapping.staging import (
    Guard,
    StagedDim,
    StagedOperand,
    staged_destination,
    staged_sources,
)

if TYPE_CHECKING:
    from collections.abc import Mapping as MappingType
    from collections.abc import Sequence

    from amos.intrinsics import Intrinsic

__all__ = ["StridedOperand", "destination_form", "loads_rows", "source_forms"]


def loads_rows(intrinsic: Intrinsic) -> bool:
    """Whether the instruction moves fragments as rows at any distance from each other."""
    return "amx_tile" in intrinsic.requires


@dataclass(frozen=True)
class StridedOperand(StagedOperand):
    """An operand in its tensor's own order, lanes being steps along its dimensions.

    Attributes:
        merged: how many dimensions of the tensor each dimension stands for, a fused
            index walking through all of them.
    """

    merged: tuple[int, ...] = ()

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Extent of each dimension in the tensor itself."""
        shape = self.load.tensor.shape
        ends = [sum(self.merged[: n + 1]) for n in range(len(self.merged))]
        return tuple(prod(shape[e - m : e]) for e, m in zip(ends, self.merged, strict=True))

    @cached_property
    def in_place(self) -> bool:
        """True if no lane or window reaches beyond the tensor."""
        return self.shape == self.sizes and not any(dim.offset for dim in self.dims)

    def locate(self, position: Sequence[Any]) -> tuple[list[Any], list[Guard]]:
        """Tensor element that belongs at a position; see :meth:`StagedOperand.locate`."""
        indices: list[Any] = []
        guards: list[Guard] = []
        for dim, count, size, where in zip(
            self.dims, self.merged, self.sizes, position, strict=True
        ):
            at = where + dim.offset if dim.offset else where
            if dim.offset < 0 or dim.offset + dim.extent > size:
                guards.append((at, size))
            shape = self.load.tensor.shape[len(indices) : len(indices) + count]
            for n, extent in enumerate(shape):
                weight = prod(shape[n + 1 :])
                part = at // weight if weight > 1 else at
                indices.append(part % extent if n else part)
        return indices, guards


def source_forms(nest: Nest) -> tuple[StagedOperand, ...]:
    """Each source as its instruction reads it, in the intrinsic's order."""
    staged = staged_sources(nest)
    if not loads_rows(nest.mapping.intrinsic):
        return staged
    # The second source lies in groups along the reduction, as no tensor does by itself.
    constants = nest.mapping.operator.constants
    first = staged[0]
    form = None if first.load.tensor.name in constants else _strided(first)
    return (form or first, *staged[1:])


def destination_form(nest: Nest) -> StagedOperand:
    """The destination as its instruction writes it."""
    staged = staged_destination(nest)
    if not loads_rows(nest.mapping.intrinsic):
        return staged
    extents = nest.mapping.operator.extents
    load = staged.load
    whole = all(
        index.names and _walks(index, index.names[0]) and extents[index.names[0]] == size
        for index, size in zip(load.indices, load.tensor.shape, strict=True)
    )
    return (_strided(staged) if whole else None) or staged


def _walks(index: Affine, name: str) -> bool:
    return index == Affine(((name, 1),))


def _strided(op: StagedOperand) -> StridedOperand | None:
    """The operand in its tensor's order, or ``None`` if its rows are not regular there."""
    nest, load = op.nest, op.load
    row, column = (nest.groups[target] for target in op.fragment)
    if any(not set(g.members) <= load.names or not g.members for g in (row, column)):
        return None
    owner = {name: g for g in nest.groups.values() for name in g.members}
    indices = [_moving(index, nest.mapping.operator.extents) for index in load.indices]
    dims: list[StagedDim] = []
    merged: list[int] = []
    while (d := sum(merged)) < len(indices):
        groups = {owner[n].target: owner[n] for n in indices[d].names if n in owner}
        fused = [g for g in groups.values() if len(g.members) > 1]
        if not set(groups) <= {row.target, column.target}:
            return None
        if not fused:
            index = _substituted(indices[d], groups)
            merged.append(1)
        elif _walks_through(indices[d:], load.tensor.shape[d:], fused[0]):
            index = _fused(fused[0])
            merged.append(len(fused[0].members))
        else:
            return None
        size = prod(load.tensor.shape[d : d + merged[-1]])
        dims.append(_dim(nest, index, d, size))
    rows = [dim for dim in dims if row.lane in dim.index.names]
    columns = [dim for dim in dims if column.lane in dim.index.names]
    if len(rows) != 1 or columns != dims[-1:] or dims[-1].index.coefficient(column.lane) != 1:
        return None
    if rows[0].index.coefficient(row.lane) < 0:
        return None
    return StridedOperand(op.name, load, tuple(dims), nest, op.fragment, tuple(merged))


def _moving(index: Affine, extents: MappingType[str, int]) -> Affine:
    """An index without the loops of a single step, if others are left."""
    moving = [name for name in index.names if extents[name] > 1]
    return index.restrict(moving) if moving else index


def _walks_through(indices: list[Affine], shape: tuple[int, ...], group: Group) -> bool:
    """True if the members of a group are the whole dimensions of a tensor, one by one."""
    count = len(group.members)
    walked = zip(indices[:count], shape[:count], strict=True)
    pairs = list(zip(walked, group.members, group.radices, strict=False))
    return len(pairs) == count and all(
        _walks(index, name) and size == radix for (index, size), name, radix in pairs
    )


def _fused(group: Group) -> Affine:
    """The fused index of a group as tiles and lanes."""
    lane = Affine(((group.lane, 1),))
    return lane + Affine(((group.tile, group.lanes),)) if group.tiles > 1 else lane


def _substituted(index: Affine, groups: dict[str, Group]) -> Affine:
    """An index with its matched iterations written as tiles and lanes."""
    made = Affine((), index.constant)
    owner = {name: g for g in groups.values() for name in g.members}
    for name, step in index.terms:
        made = made + (_fused(owner[name]) if name in owner else Affine(((name, 1),))) * step
    return made


def _dim(nest: Nest, index: Affine, d: int, size: int) -> StagedDim:
    """A dimension as it is, widened to what lanes and windows reach."""
    steps = dict(nest.mapping.operator.extents)
    for group in nest.groups.values():
        steps |= {group.tile: group.tiles, group.lane: group.lanes}
    low, high = index.bounds(steps)
    offset = min(low, 0)
    extent = max(high + 1, size if offset == 0 and high < size else 0) - offset
    return StagedDim(extent, index + (-offset), d, offset)
