"""Staged forms of operands: in place, padded or gathered.

A staged operand is a buffer whose trailing dimensions are one fragment, stored
contiguously, and whose leading dimensions say which fragment. A dimension of the
tensor that no matched iteration indexes is *kept* as it is, so that overlapping
windows are stored once; the others are *gathered* into tiles and lanes. Where
the result has the tensor's own order, it is the tensor and nothing is moved.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from amos.ir import Affine, BufferLoad, Prologue, dtype
from amos.plan.nest import Group, Nest


class Guard(NamedTuple):
    """``0 <= at < bound`` must hold, or a slot of a staged operand holds no element.

    Attributes:
        at: an integer, a NumPy array or a TVM expression.
        bound: exclusive upper bound.
        pads: whether the operator reads its padding where that fails: such a slot holds
            the padding's value. Other slots exist only because lanes or tiles are longer
            than the operator's loops: they hold zero, whatever the padding is, or the neutral
            value of another reduction than a sum.
    """

    at: Any
    bound: int
    pads: bool = False


@dataclass(frozen=True)
class StagedDim:
    """One dimension of a staged operand.

    Attributes:
        extent: its size.
        index: the position that a call reads, as an expression over loops and lanes.
        dimension: the tensor dimension that is kept here, or -1.
        offset: tensor index of position 0 of a kept dimension (negative where
            the operator reads padding).
        divide: steps of the index that one position covers, where another dimension has the others.
        modulo: size of the part of the index in this dimension, or 0 for all of it.
    """

    extent: int
    index: Affine
    dimension: int = -1
    offset: int = 0
    divide: int = 1
    modulo: int = 0

    def at(self, values: MappingType[str, Any]) -> Any:
        """Return the position for given loops and lanes: integers, or TVM expressions."""
        where = self.index.evaluate(values)
        if self.modulo:
            return where % self.modulo
        return where // self.divide if self.divide > 1 else where


@dataclass(frozen=True)
class StagedOperand:
    """The staged form of one operand.

    Attributes:
        name: the operand's name in the intrinsic.
        load: the operator's access that it serves.
        dims: dimensions of the buffer, the fragment's last.
        nest: the loop nest it belongs to.
        fragment: names of the intrinsic iterations of the fragment, in the order of memory:
            that of the longest stride first (:attr:`amos.intrinsics.Intrinsic.ordered`).
        copied: whether it is copied even where it could be read in place.
    """

    name: str
    load: BufferLoad
    dims: tuple[StagedDim, ...]
    nest: Nest
    fragment: tuple[str, ...]
    copied: bool = field(default=False, kw_only=True)

    @property
    def kind(self) -> str:
        """Canonical dtype of the buffer."""
        return self.nest.mapping.intrinsic.staged_dtype(self.name)

    @property
    def empty(self) -> int | float:
        """Value of a slot that belongs to no step: zero, or another that leaves results alone."""
        return self.nest.mapping.operator.compute.neutral(self.tensor_kind)

    @property
    def tensor_kind(self) -> str:
        """Canonical dtype that the tensor is read as."""
        own = dtype(str(self.load.tensor.dtype))
        return self.kind if dtype(self.kind).stores(own) else own.name

    @cached_property
    def prologue(self) -> Prologue | None:
        """The prologue of its elements; ``None`` if they are the tensor's."""
        return self.nest.mapping.operator.prologue(self.load.tensor.name)

    @property
    def constant(self) -> bool:
        """Whether it stays the same from call to call."""
        return self.load.tensor.name in self.nest.mapping.operator.constants

    @property
    def computed(self) -> bool:
        """Whether its elements are computed in the kernel; those of a constant are while packed."""
        return self.prologue is not None and not self.constant

    @property
    def wider(self) -> float:
        """Bytes that a copy reads for each byte of the tensor."""
        if self.prologue is None:
            return 1.0
        own, *inputs = (
            x.elements * dtype(str(x.dtype)).bits
            for x in (self.load.tensor, *self.prologue.tensors)
        )
        return sum(inputs) / own

    @property
    def padded(self) -> int:
        """Number of leading dimensions up to the last that leaves the tensor; 0 if none does."""
        size, leading = self.load.tensor.shape, self.dims[: -len(self.fragment)]
        tensor_dims = [(n, dim) for n, dim in enumerate(leading, 1) if dim.dimension >= 0]
        out = [n for n, d in tensor_dims if not 0 <= d.offset <= size[d.dimension] - d.extent]
        return max(out, default=0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer."""
        return tuple(dim.extent for dim in self.dims)

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Shape under which :meth:`locate` takes the tensor."""
        return self.load.tensor.shape

    @property
    def elements(self) -> int:
        """Elements of the buffer."""
        return prod(self.shape)

    @property
    def redirected(self) -> bool:
        """Whether it is the destination, and its elements are stored elsewhere one by one."""
        mapping = self.nest.mapping
        return (
            mapping.operator.redirected and self.name == mapping.intrinsic.destination.tensor.name
        )

    @cached_property
    def names(self) -> frozenset[str]:
        """Loops and lanes that move along some dimension."""
        return frozenset(name for dim in self.dims for name in dim.index.names)

    @cached_property
    def in_place(self) -> bool:
        """True if the buffer is the tensor under another shape: nothing is moved.

        A constant is laid out as it is read, whatever its shape.
        """
        extents = self.nest.mapping.operator.extents
        tensor = self.load.tensor
        # Trailing dimensions of one element do not change the distance of a dimension's elements.
        last = max((d for d, size in enumerate(tensor.shape) if size > 1), default=0)
        live = [t for t in self.fragment if self.nest.groups[t].lanes > 1]
        moved = self.copied or self.computed or self.constant or self.kind != self.tensor_kind
        if moved or self.elements != tensor.elements or any(dim.offset for dim in self.dims):
            return False
        extent_of = {dim.dimension: dim.extent for dim in self.dims}
        for d, (index, size) in enumerate(zip(self.load.indices, tensor.shape, strict=True)):
            if d in extent_of:
                if extent_of[d] != size:
                    return False
                continue
            # Gathered: nested iterations that walk the dimension from end to end; only the
            # innermost may be lanes, alone and in the last dimension.
            if not _walks(index, extents, size):
                return False
            *digits, innermost = index.names
            if any(name in self._matched for name in digits):
                return False
            owner = [t for t in live if innermost in self.nest.groups[t].members]
            if digits and innermost in self._matched and not owner:
                return False
            if owner:
                group = self.nest.groups[owner[0]]
                if d != last or group.is_padded or len(group.members) > 1:
                    return False
                live.remove(owner[0])
        return not live

    def coordinates(self, indices: Sequence[Any]) -> Sequence[Any]:
        """Return the coordinates of an element that :meth:`locate` found."""
        return indices

    @cached_property
    def _matched(self) -> frozenset[str]:
        """Software iterations that are lanes, or tiles of them."""
        return frozenset(n for group in self.nest.groups.values() for n in group.members)

    @cached_property
    def _loops(self) -> dict[str, int]:
        return {loop.name: loop.extent for loop in self.nest.loops}

    def locate(self, position: Sequence[Any]) -> tuple[list[Any], list[Guard]]:
        """Return the tensor element that belongs at a position of the buffer.

        Args:
            position: one coordinate for each dimension: integers, NumPy arrays
                that broadcast together, or TVM expressions.

        Returns:
            The tensor's indices, and the guards under which the element is read.
        """
        coordinate: dict[str, Any] = {}
        indices: list[Any] = [None] * len(self.load.indices)
        guards: list[Guard] = []
        sizes: dict[str, int] = {}
        for dim, where in zip(self.dims, position, strict=True):
            if dim.dimension >= 0:
                at = where + dim.offset if dim.offset else where
                indices[dim.dimension] = at
                size = self.load.tensor.shape[dim.dimension]
                if dim.offset < 0 or dim.offset + dim.extent > size:
                    guards.append(Guard(at, size, pads=True))
            else:
                name = dim.index.names[0]
                offset = where * dim.divide if dim.divide > 1 else where
                coordinate[name] = coordinate[name] + offset if name in coordinate else offset
                sizes[name] = sizes.get(name, 1) * dim.extent
        for name, size in sizes.items():
            if size > self._loops.get(name, size):
                # The loop is padded beyond the operator's.
                guards.append(Guard(coordinate[name], self._loops[name]))
        coordinate |= self._decode_lanes(coordinate, guards)
        for d, index in enumerate(self.load.indices):
            if indices[d] is None:
                indices[d] = index.evaluate(coordinate)
                low, high = index.bounds(self.nest.mapping.operator.extents)
                if low < 0 or high >= self.load.tensor.shape[d]:
                    guards.append(Guard(indices[d], self.load.tensor.shape[d], pads=True))
        return indices, guards

    def _decode_lanes(self, at: dict[str, Any], guards: list[Guard]) -> dict[str, Any]:
        """Return the values of the matched software iterations, and the guards of padded slots."""
        values: dict[str, Any] = {}
        for target in self.fragment:
            group = self.nest.groups[target]
            lane = at[group.lane]
            if not set(group.members) & self.load.names:
                # Replicated along this lane. A reduction that nothing fills must
                # still be counted once, so that only its first slot may be live.
                if group.kind == "reduce" and not group.members:
                    guards.append(Guard(lane, 1))
                if not _counts_beyond(self.nest, group):
                    continue
            fused = at[group.tile] * group.lanes + lane if group.tiles > 1 else lane
            if group.is_padded:
                guards.append(Guard(fused, group.size))
            values |= group.decode(fused)
        return values


def _counts_beyond(nest: Nest, group: Group) -> bool:
    """Return whether a replicated source counts in lanes beyond a reduction, as in sums of sums."""
    compute, kinds = nest.mapping.operator.compute, nest.mapping.intrinsic.dtypes
    alone = compute.fills_lanes(kinds[-1], arbitrary_source=True)
    return group.kind == "reduce" and group.is_padded and bool(group.members) and not alone


def _walks(index: Affine, extents: MappingType[str, int], size: int) -> bool:
    """Return whether iterations in written order are the digits of a dimension of that size."""
    step = size
    for name, coefficient in index.terms:
        if step % extents[name] or coefficient != step // extents[name]:
            return False
        step = coefficient
    return step == 1 and bool(index.terms) and not index.constant


def staged_sources(nest: Nest) -> tuple[StagedOperand, ...]:
    """Return the staged form of each source, in the intrinsic's order."""
    mapping = nest.mapping
    return tuple(
        StagedOperand(
            operand.tensor.name,
            mapping.operator.sources[mapping.order[m]],
            _dims(nest, mapping.operator.sources[mapping.order[m]], operand, keep=True),
            nest,
            _fragment(operand),
        )
        for m, operand in enumerate(mapping.intrinsic.ordered.sources)
    )


def staged_destination(nest: Nest) -> StagedOperand:
    """Return the staged destination; every dimension is a loop, a tile or a lane."""
    operand, load = nest.mapping.intrinsic.ordered.destination, nest.mapping.operator.output
    dims = _dims(nest, load, operand, keep=False)
    return StagedOperand(operand.tensor.name, load, dims, nest, _fragment(operand))


def stage_array(staged: StagedOperand, array: np.ndarray) -> np.ndarray:
    """Move a tensor into its staged form with NumPy: contiguous, in the container of its kind."""
    array = array.astype(dtype(staged.kind).numpy, copy=False)
    if staged.in_place:
        return np.ascontiguousarray(array).reshape(staged.shape)
    indices, guards = staged.locate(np.ogrid[tuple(slice(0, n) for n in staged.shape)])
    filled: Any = True
    in_bounds: Any = True
    for at, bound, pads in guards:
        holds = (at >= 0) & (at < bound)
        filled, in_bounds = (filled, in_bounds & holds) if pads else (filled & holds, in_bounds)
    array = array.reshape(staged.source_shape)
    clipped = tuple(
        np.clip(index, 0, size - 1) for index, size in zip(indices, array.shape, strict=True)
    )
    read = np.where(in_bounds, array[clipped], array.dtype.type(staged.load.padding))
    picked = np.where(filled, read, array.dtype.type(staged.empty))
    return np.ascontiguousarray(np.broadcast_to(picked, staged.shape))


def _fragment(operand: BufferLoad) -> tuple[str, ...]:
    return tuple(index.names[0] for index in operand.indices)


def _dims(
    nest: Nest, load: BufferLoad, operand: BufferLoad, *, keep: bool
) -> tuple[StagedDim, ...]:
    """Return the leading dimensions in the tensor's order, then the fragment's lanes."""
    owner = {name: g for g in nest.groups.values() for name in g.members}
    extents = nest.mapping.operator.extents
    dims: list[StagedDim] = []
    done: set[str] = set()

    def add(name: str, extent: int) -> None:
        if name not in done:
            done.add(name)
            dims.append(StagedDim(extent, Affine(((name, 1),))))

    for d, index in enumerate(load.indices):
        matched = [name for name in index.names if name in owner]
        if keep and not matched:
            dims.append(whole_dim(index, d, load.tensor.shape[d], extents))
            continue
        for name in index.names:
            if name not in owner:
                add(name, extents[name])
        for name in matched:
            group: Group = owner[name]
            if group.tiles > 1:
                add(group.tile, group.tiles)
    fragment = [nest.groups[target] for target in _fragment(operand)]
    for group in fragment:
        if keep and group.tiles > 1 and _counts_beyond(nest, group):
            add(group.tile, group.tiles)
    for group in fragment:
        dims.append(StagedDim(group.lanes, Affine(((group.lane, 1),))))
    return tuple(dims)


def whole_dim(index: Affine, number: int, size: int, extents: MappingType[str, int]) -> StagedDim:
    """Return a dimension of a tensor, widened to the range that is read as padding."""
    low, high = index.bounds(extents)
    offset = min(low, 0)
    extent = max(high + 1, size if offset == 0 and high < size else 0) - offset
    return StagedDim(extent, index + (-offset), number, offset)
