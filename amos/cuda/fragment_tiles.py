"""One fragment of each operand in the CUDA kernel of a mapping.

Fragments are stored by rows along which the tensor is contiguous, so that copies can be
wide whatever the mapping fused; each row is padded, and copies move pieces of rows. Each
fragment is stored by itself and begins at a multiple of 32 bytes, as ``load_matrix_sync``
asks for (CUDA C++ Programming Guide, Warp Matrix Functions).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from amos.cuda.banks import element_cycles, matrix_cycles, store_cycles
from amos.intrinsics import Memory
from amos.machine.gpu_costs import ROW_ALIGNMENT, WARP
from amos.plan.fragment import NOWHERE, Fragment
from amos.plan.memoizing import memoize
from amos.plan.nest import Group, Nest
from amos.plan.staging import staged_destination, staged_sources
from amos.plan.structure import Structure

#: Bytes of a sector, the least that caches exchange (CUDA C++ Best Practices Guide,
#: Coalesced Access).
SECTOR = 32
#: First architecture with ``ldmatrix``.
_MATRICES = 75


@dataclass(frozen=True)
class Tile(Fragment):
    """One fragment of an operand, in shared memory by its ``statement``, and in the tensor."""

    statement: Memory

    @property
    def hidden(self) -> bool:
        """Whether the layout of lanes is known to the compiler alone."""
        return self.statement.layout is None

    @cached_property
    def columns(self) -> Group:
        """The side along which a row runs in shared memory."""
        return self.nest.groups[self.contiguous(int(ROW_ALIGNMENT / self.size))[0]]

    @cached_property
    def rows(self) -> Group:
        """The other side."""
        first, second = self.staged.fragment
        return self.nest.groups[second if self.columns.target == first else first]

    @property
    def transposed(self) -> bool:
        """Whether the columns are the operand's first index (``col_major``)."""
        return self.columns.target == self.statement.indices[0]

    @property
    def elements(self) -> int:
        """Elements of the fragment."""
        return self.rows.lanes * self.columns.lanes

    @cached_property
    def by_columns(self) -> bool:
        """Whether accumulators leave along the first index of the fragment."""
        first, second = self.statement.indices
        if not self.statement.transposes:
            return self.staged.fragment[-1] == first
        return self.stride(self.nest.groups[first]) < self.stride(self.nest.groups[second])

    def _lanes(self) -> dict[str, np.ndarray]:
        """Return the elements that each lane stores, by index: int arrays, lanes × elements."""
        first, second = self.statement.indices
        if self.statement.layout is not None:
            return {index: self.statement.layout.table(index) for index in (first, second)}
        slow, fast = (second, first) if self.by_columns else (first, second)
        at = np.arange(self.elements).reshape(-1, WARP).T
        columns = self.nest.groups[fast].lanes
        return {slow: at // columns, fast: at % columns}

    @memoize
    def meeting(self, stored: frozenset[str]) -> tuple[int, ...]:
        """Return bits such that lanes that differ in one of them store into one element."""
        lanes, meeting = np.arange(WARP), []
        for bit in (1 << n for n in range(WARP.bit_length() - 1)):
            tables = [
                (at[lanes & ~bit], at[lanes | bit], stored.isdisjoint(self.nest.groups[t].members))
                for t, at in self._lanes().items()
            ]
            # The lane without the bit comes first, so that it is inside if the other is.
            if all(
                ((first <= second) if gone else (first == second)).all()
                for first, second, gone in tables
            ):
                meeting.append(bit)
        return tuple(meeting)

    @memoize
    def vector(self, width: int) -> int:
        """Return the bytes that one copy moves if the schedule allows ``width``."""
        most = max(1, int(min(width, ROW_ALIGNMENT) / self.size))
        return max(1, int(self.contiguous(most)[1] * self.size))

    @cached_property
    def realigned(self) -> bool:
        """Whether unaligned rows can be read in aligned pieces that are shifted into place.

        Rows have to be contiguous from end to end, and to lie within the tensor; elements are
        halves or bytes, since wider ones are copied by ``cp.async`` as they lie.
        """
        columns, load = self.columns, self.staged.load
        names, length = self._contiguous(columns)
        piece = int(ROW_ALIGNMENT / self.size)
        if self.computed or self.bits not in (8, 16) or length < piece or columns.lanes % piece:
            return False
        if length != columns.size or self.vector(ROW_ALIGNMENT) == ROW_ALIGNMENT:
            return False
        bounds = [
            (*index.bounds(self.nest.mapping.operator.extents), size)
            for index, size in zip(load.indices, load.tensor.shape, strict=True)
            if set(names) & set(index.names)
        ]
        return all(low >= 0 and high < size for low, high, size in bounds)

    def row(self, padding: int | np.ndarray) -> Any:
        """Return the bytes between rows with some elements of padding; -1: swizzled."""
        width = -(-int(self.columns.lanes * self.size) // ROW_ALIGNMENT) * ROW_ALIGNMENT
        return width + np.maximum(padding, 0) * self.bits // 8

    @memoize
    def loading(self, padding: int, architecture: int) -> int:
        """Count cycles of shared memory to load the fragment from padded rows."""
        return self._load(self.row(padding), architecture, swizzle=padding < 0)

    @memoize
    def filling(self, padding: int, piece: int) -> int:
        """Count cycles of shared memory to fill the fragment by copies of ``piece`` bytes."""
        rows, columns, row = self.rows.lanes, self.columns.lanes, self.row(padding)
        return store_cycles(rows, columns, row, self.size, piece, swizzle=padding < 0)

    @memoize
    def conflicts(self, padding: int, architecture: int) -> float:
        """Return the slowdown of loads against rows that begin in different banks."""
        rows = (self.row(0) + 16 * n for n in range(8))
        least = min(self._load(row, architecture) for row in rows)
        return self.loading(padding, architecture) / least

    def _load(self, stride: int, architecture: int, *, swizzle: bool = False) -> int:
        rows, columns = self.rows.lanes, self.columns.lanes
        along = self.columns.kind == "reduce"
        if self.bits == 16 or (self.bits == 8 and along and self.hidden):
            cycles = matrix_cycles(rows, int(columns * self.size), stride, swizzle=swizzle)
            if architecture >= _MATRICES:
                return cycles
            if self.bits == 16:
                # Each half of a warp loads the fragment for itself.
                return 2 * cycles
        return element_cycles(rows, columns, stride, self.bits, along=along, swizzle=swizzle)

    @cached_property
    def sectors(self) -> float:
        """Bytes that copying or storing the fragment moves, in whole sectors.

        A contiguous piece touches one sector more than it fills, unless it begins at
        one's border; neighbours further apart than a sector have one each.
        """
        columns, size = self.columns, self.size
        if not set(columns.members) & self.staged.load.names:
            return self.rows.lanes * SECTOR
        length = min(self.length(columns), columns.lanes)
        if length == 1 and columns.lanes > 1:
            stride = min(self.stride(columns), NOWHERE) * size
            touched = columns.lanes * min(1.0, stride / SECTOR)
        else:
            aligned = self.run(columns, int(SECTOR / size)) * size
            per_run = 1.0 + max(0.0, (length * size - aligned) / SECTOR)
            touched = columns.lanes / length * per_run
        # Registers hold pairs along the second index, of which a store writes one.
        halves = not self.hidden and not self._source and self.columns.target != "i1"
        return self.rows.lanes * max(1.0, touched) * SECTOR * (2 if halves else 1)

    def shared_sectors(self, neighbours: np.ndarray) -> np.ndarray:
        """Count the bytes that copying a fragment moves if rows are contiguous in memory.

        Neighbours share the sectors at their borders if the L1 cache keeps these meanwhile, as it
        does for loads through registers; ``cp.async`` of 16 bytes passes it by (PTX ISA,
        cp.async).

        Args:
            neighbours: fragments side by side along a row of the tensor, whose rows are
                contiguous from end to end.
        """
        columns, size = self.columns, self.size
        aligned = self.run(columns, int(SECTOR / size)) * size
        run_bytes = neighbours * columns.lanes * size
        touched = 1.0 + np.maximum(0.0, run_bytes - aligned) / SECTOR
        return np.asarray(self.rows.lanes * SECTOR * touched / neighbours)

    def contiguous(self, most: int) -> tuple[str, int]:
        """Return the side along columns in shared memory, and the elements that one copy moves.

        Where no side can be copied in wider pieces than one element, the columns are
        those with the smaller stride in the tensor, so that the threads of a warp
        read neighbours.
        """
        # Innermost first: the only one that the statement has elements side by side along.
        sides = self.staged.fragment[::-1][: None if self.statement.transposes else 1]
        runs = {t: self.run(self.nest.groups[t], most) for t in sides}
        strides = {t: self.stride(self.nest.groups[t]) for t in sides}
        best = min(sides, key=lambda t: (-runs[t], strides[t]))
        return best, runs[best]

    @property
    def _source(self) -> bool:
        return self.staged.name != self.nest.mapping.intrinsic.destination.tensor.name


def tiles(nest: Nest) -> tuple[Tile, ...]:
    """Return sources in the intrinsic's order, then the destination; none without matrices."""
    staged = (*staged_sources(nest), staged_destination(nest))
    if any(len(op.fragment) != 2 for op in staged):
        return ()
    statements = {m.operand: m for m in nest.mapping.intrinsic.memory}
    return tuple(Tile(op, statements[op.name]) for op in staged)


def tiles_of(structure: Structure) -> tuple[Tile, ...]:
    """Return fragments of sources and destination of a mapping, as warps see them."""
    return structure.derive(tiles)
