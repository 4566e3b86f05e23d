"""One operand in shared memory: the fragments that a block stages, their place and pieces.

The staged part of an operand is a set of fragments: one for each step of the
reduction in a stage and for each step of the block along the loops that index it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from amos.codegen.device.access import STEP
from amos.cuda.banks import swizzle_period
from amos.cuda.blocks import Blocks
from amos.cuda.fragment_tiles import Tile, tiles_of
from amos.ir.tasks import TaskMapping, repeat, spatial


@dataclass(frozen=True)
class Axis:
    """A loop, or ``"step"``, with fragments staged together, ``stride`` elements apart."""

    name: str
    extent: int
    stride: int


@dataclass(frozen=True)
class SharedOperand:
    """A source of the intrinsic in shared memory.

    Attributes:
        axes: every direction with more than one fragment, fastest first.
        row: elements from one row to the next.
        padding: those of them behind the row; -1 if pieces of rows change places instead.
        vector: elements that one copy moves.
        bytes: of one stage, padding included.
        is_async: whether its copies are made by ``cp.async``.
        is_realigned: whether its copies shift what they read into place.
        is_kept: whether copies wait in registers until the stage before is multiplied.
    """

    tile: Tile
    number: int
    axes: tuple[Axis, ...]
    row: int
    padding: int
    vector: int
    copies: int
    threads: int
    bytes: int
    is_async: bool
    is_realigned: bool
    is_kept: bool

    @classmethod
    def of(cls, counts: Blocks, number: int, spans: Mapping[str, int]) -> SharedOperand:
        """Return a source of the first kernel of a batch; ``spans`` are steps along loops."""
        tile, padding = tiles_of(counts.structure)[number], int(counts.padding[number, 0])
        size = tile.bits // 8
        row = int(tile.row(padding)) // size
        axes, stride = [], tile.rows.lanes * row
        reduced = [(STEP, int(counts.staged[0]))] if tile.reduced else []
        for name, extent in (*reduced, *((loop, spans[loop]) for loop in reversed(tile.loops))):
            if extent > 1:
                axes.append(Axis(name, extent, stride))
                stride *= extent
        return cls(
            tile=tile,
            number=number,
            axes=tuple(axes),
            row=row,
            padding=padding,
            vector=int(counts.pieces[number][0]) // size,
            copies=int(counts.moves[number][0]),
            threads=int(counts.threads[0]),
            bytes=int(counts.bytes(number)[0]),
            is_async=bool(counts.asynchronous[number][0]),
            is_realigned=bool(counts.realigned[number][0]),
            is_kept=bool(counts.in_registers[number][0]),
        )

    @cached_property
    def assignment(self) -> TaskMapping:
        """Which thread makes which copies: in each turn neighbours make neighbouring ones."""
        turns = -(-self.copies // self.threads)
        return (repeat(turns) * spatial(self.threads)).clip(self.copies)

    @property
    def turns(self) -> int:
        """Copies of one thread, at most."""
        return self.assignment.turns

    @property
    def pieces(self) -> tuple[int, ...]:
        """The grid of the copies, fragments first, then rows, then pieces of a row.

        Pieces vary fastest: neighbouring threads write into different banks, and read whole
        sectors of 32 bytes where the tensor is contiguous.
        """
        fragments = (axis.extent for axis in reversed(self.axes))
        return (*fragments, self.tile.rows.lanes, self.tile.columns.lanes // self.vector)

    @property
    def name(self) -> str:
        """The intrinsic's name for it."""
        return self.tile.staged.name

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return int(self.tile.size)

    @property
    def period(self) -> int:
        """Rows after which the pieces of a row change places; 0 if they lie as they are."""
        return swizzle_period(self.row * self.size) if self.padding < 0 else 0

    @property
    def elements(self) -> int:
        """Elements of one stage, padding included."""
        return self.bytes // self.size

    def __str__(self) -> str:
        tile, tensor = self.tile, self.tile.staged.load.tensor.name
        path = "by cp.async" if self.is_async else "through registers"
        if self.is_realigned:
            path += ", shifted into place"
        if (prologue := tile.staged.prologue) is not None:
            path = f"computed of {', '.join(x.name for x in prologue.tensors)}"
        rows = "swizzled" if self.period else f"rows of {self.row} elements"
        return (
            f"{tensor}: {prod(axis.extent for axis in self.axes)} fragments of {tile.rows.lanes} "
            f"rows of {tile.columns.lanes} ({tile.columns.target}), {rows}, {self.bytes} bytes,\n"
            f"{'':12}copied {self.vector * self.size} bytes at once {path}, {self.turns} by each "
            "thread"
        )
