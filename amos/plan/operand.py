"""Operands of a mapping as plain numbers, and how copies find their elements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from amos.ir import dtype
from amos.plan.nest import Group
from amos.plan.staging import StagedOperand
from amos.plan.strided import StridedOperand

#: Bits of the shortest vector.
_VECTOR = 128
#: Bytes of a page of memory, after which addresses map to the same sets of the nearest cache again:
#: the page bounds the sets of a virtually indexed cache.
PAGE = 4096
#: How the elements of a copy are found.
Copy = Literal["run", "rows", "pieces", "stride", "digits"]


@dataclass(frozen=True)
class Dimension:
    """One dimension of a staged operand.

    Attributes:
        terms: index of each loop that moves along it, and by how much.
        reach: how far the lanes of one call reach along it.
        points: how many positions the lanes of one call take.
        extent: its size.
    """

    terms: tuple[tuple[int, int], ...]
    reach: int
    points: int
    extent: int


@dataclass(frozen=True, eq=False)
class Operand:
    """A staged operand; those of a structure are compared by identity.

    Attributes:
        size: bytes of one element in memory.
        dims: its dimensions, those of one fragment last.
        fragment: bytes of one fragment.
        copies: number of copies of a fragment that the hardware makes in one register.
        leading: number of dimensions before those of the fragment.
        copied: elements that are copied within the kernel to stage it; 0 if it
            is used in place or packed ahead.
        origin: elements of the tensor that the copy comes from or goes to.
        wider: bytes that are read for each byte of the tensor: 1, except for computed sources.
        copy: how the copy finds its elements: ``"run"`` moves contiguous runs,
            ``"rows"`` contiguous rows that are found one by one, ``"pieces"`` rows shorter
            than a vector, ``"stride"`` single elements at a fixed distance, ``"digits"``
            takes a fused index apart for each element.
        divisions: number of divisions that this takes for one element.
        live: share of its elements that are read; the others are padding.
        guarded: true if each element is tested for lying in the tensor's padding.
        padded: number of leading dimensions up to the last that reaches into that padding.
        choice: true if it may be staged ahead of the nest or tile by tile.
        optional: true if it may be read in place instead; then it is unless a schedule says so.
        packed: true if it was laid out ahead in the order in which it is read.
        vectors: instructions for an element where the copy moves whole vectors; 0 if it
            cannot.
        scalar_instructions: to finish and store a result where the lanes of a fragment are not
            contiguous in the output; 0 elsewhere.
    """

    name: str
    size: float
    dims: tuple[Dimension, ...]
    fragment: float
    copies: int
    leading: int
    copied: int
    origin: int
    wider: float
    copy: Copy
    divisions: int
    live: float
    guarded: bool
    padded: int
    choice: bool
    packed: bool
    written: bool
    vectors: float = 0.0
    scalar_instructions: int = 0
    optional: bool = False

    @cached_property
    def indexed(self) -> frozenset[int]:
        """Loops that move along some dimension."""
        return frozenset(loop for dim in self.dims for loop, _ in dim.terms)


def jumps_pages(staged: StagedOperand) -> bool:
    """Return whether steps of a reduction go on to other pages of an operand read in place.

    Hardware prefetches no line of another page, and rows whose distance is a multiple of a large
    power of two share few sets of a cache.
    """
    if not staged.in_place:
        return False
    reductions = {loop.name for loop in staged.nest.reduce if loop.extent > 1}
    pitch_bits = dtype(staged.kind).bits
    for dim in reversed(staged.dims):
        if pitch_bits >= 8 * PAGE and reductions & {*dim.index.names}:
            return True
        pitch_bits *= dim.extent
    return False


def classify_copy(staged: StagedOperand) -> tuple[Copy, int]:
    """Return how elements are found, and how many divisions it takes to find one."""
    if isinstance(staged, StridedOperand):
        return "run", 0
    intrinsic = staged.nest.mapping.intrinsic
    if intrinsic.tile_registers and staged.name == intrinsic.sources[1].tensor.name:
        # Groups of 32 bits along the reduction, by column: see ``packing.group_columns``.
        return "pieces", 0
    if intrinsic.tile_registers and is_guarded(staged):
        # Rows gathered from windows: their distances differ.
        *rows, row = (staged.nest.groups[t] for t in staged.fragment)
        unit = any(staged.load.indices[-1].coefficient(name) == 1 for name in row.members[-1:])
        if unit and _walks(staged, row):
            return "rows", max([1, *(len(g.members) for g in rows)]) - 1
        return "stride", 0
    groups = [staged.nest.groups[t] for t in staged.fragment if staged.nest.groups[t].lanes > 1]
    used = [g for g in groups if set(g.members) & staged.load.names]
    if not used:
        return "run", 0
    split = [g for g in used if not _walks(staged, g)]
    if any(_windows(staged, g) > 1 for g in split):
        return "digits", max(len(g.members) for g in split) - 1
    if split:
        return "stride", 0
    last = staged.load.indices[-1]
    *rows, inner = used
    runs = last.coefficient(inner.members[-1]) == 1 and not inner.is_padded
    short = bool(rows) and inner.lanes * dtype(staged.kind).bits < _VECTOR
    moved: Copy = "pieces" if short else "run"
    return (moved if runs and len(last.names) == 1 else "stride"), 0


def count_scalar_instructions(staged: StagedOperand) -> int:
    """Count the instructions that finish and store one lane's result; 0 in vectors.

    A destination that goes to the output directly is stored in vectors where its lanes follow
    each other there, at the end of a row in shorter ones.
    """
    mapping = staged.nest.mapping
    groups = [staged.nest.groups[t] for t in staged.fragment if staged.nest.groups[t].lanes > 1]
    if mapping.intrinsic.tile_registers or not groups:
        return 0
    store, extents = mapping.operator.stored, mapping.operator.extents
    loops = [name for name in groups[-1].members if extents[name] > 1]
    if loops and store.indices and store.indices[-1].coefficient(loops[-1]) == 1:
        return 0
    epilogue = mapping.operator.epilogue
    return 2 + (0 if epilogue is None else epilogue.expression.operation_count)


def _windows(staged: StagedOperand, group: Group) -> int:
    """Count the tensor's dimensions that the lanes of a group move through and may leave."""
    extents = staged.nest.mapping.operator.extents
    count = 0
    for index, size in zip(staged.load.indices, staged.load.tensor.shape, strict=True):
        low, high = index.bounds(extents)
        count += bool(set(index.names) & set(group.members)) and (low < 0 or high >= size)
    return count


def is_guarded(staged: StagedOperand) -> bool:
    """Return whether an element may lie outside of the tensor while its neighbours do not."""
    groups = [staged.nest.groups[t] for t in staged.fragment]
    if any(_windows(staged, group) for group in groups):
        return True
    return 0 < staged.padded == len(staged.dims) - len(staged.fragment)


def _walks(staged: StagedOperand, group: Group) -> bool:
    """Return whether the fused index moves through the tensor in equal steps."""
    steps = [staged.load.flat.coefficient(name) for name in group.members]
    pairs = zip(steps, steps[1:], group.radices[1:], strict=False)
    return all(outer == inner * radix for outer, inner, radix in pairs)
