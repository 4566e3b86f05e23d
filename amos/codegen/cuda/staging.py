"""One operand in shared memory: what a block stages of it, where, and in what pieces.

The staged part of an operand is a set of fragments: one for each step of the
reduction in a stage and for each step of the block along the loops that index it.
A fragment is a matrix of rows; the *columns* are the dimension along which the
tensor is contiguous, if there is one, so that copies can be wide whatever the mapping
fused. Each fragment is stored by itself, its rows longer by some padding, so that
every fragment begins at a multiple of 32 bytes, as ``load_matrix_sync`` asks for
(CUDA C++ Programming Guide, Warp Matrix Functions).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from amos.codegen.cuda.types import CudaType, cuda_type
from amos.ir import BufferLoad
from amos.machine.gpu_costs import ROW_ALIGNMENT
from amos.plan.banks import swizzle_period
from amos.plan.nest import Group, Nest
from amos.plan.runs import Runs

__all__ = ["Axis", "SharedOperand"]

#: Name of the axis that runs over the reduction steps of one stage.
STEP = "step"


@dataclass(frozen=True)
class Axis:
    """One direction in which fragments are staged.

    Attributes:
        name: the loop, or ``"step"``.
        extent: how many fragments of it are staged together.
        stride: elements between neighbours.
    """

    name: str
    extent: int
    stride: int


@dataclass(frozen=True)
class SharedOperand:
    """A source of the intrinsic in shared memory.

    Attributes:
        name: the intrinsic's name for it.
        number: its position among the sources.
        load: the operator's access that it serves.
        nest: the loops of the mapping.
        fragment: intrinsic iterations of the fragment, in the operand's order.
        spans: steps that a block makes along each spatial loop.
        steps: reduction steps in a stage.
        dtype: canonical type of an element.
        padding: elements added to each row; ``None`` takes the fewest that let eight
            successive rows lie in different banks, -1 lets pieces of rows change places
            instead.
        widest: bytes that one copy moves at most.
    """

    name: str
    number: int
    load: BufferLoad
    nest: Nest
    fragment: tuple[str, ...]
    spans: dict[str, int]
    steps: int
    dtype: str
    padding: int | None = None
    widest: int = ROW_ALIGNMENT

    @cached_property
    def element(self) -> CudaType:
        """Type of an element in memory."""
        return cuda_type(self.dtype)

    @cached_property
    def loops(self) -> tuple[str, ...]:
        """Spatial loops that move along this operand, in the nest's order."""
        return tuple(x.name for x in self.nest.spatial if x.extent > 1 and self._has(x.name))

    @cached_property
    def reduced(self) -> bool:
        """Whether a reduction loop moves along this operand."""
        return any(x.extent > 1 and self._has(x.name) for x in self.nest.reduce)

    @cached_property
    def contiguous(self) -> tuple[str, int]:
        """The intrinsic iteration along the columns, and elements that one copy moves.

        Where neither dimension can be copied in wider pieces than one element, it is the
        one with the smaller stride in the tensor.
        """
        runs = Runs(self.load, self.nest, self.fragment)
        return runs.contiguous(self.widest // self.element.bytes)

    @property
    def columns(self) -> Group:
        """Group along the columns of a fragment in shared memory."""
        return self.nest.groups[self.contiguous[0]]

    @property
    def rows(self) -> Group:
        """Group along the rows of a fragment in shared memory."""
        first, second = self.fragment
        return self.nest.groups[second if self.contiguous[0] == first else first]

    @property
    def vector(self) -> int:
        """Elements that one copy moves."""
        return self.contiguous[1]

    @property
    def transposed(self) -> bool:
        """Whether the columns are the operand's first index (``col_major``)."""
        return self.contiguous[0] == self.fragment[0]

    @cached_property
    def row(self) -> int:
        """Elements from one row to the next."""
        size = self.element.bytes
        width = -(-self.columns.lanes * size // ROW_ALIGNMENT) * ROW_ALIGNMENT
        if self.padding is not None:
            return width // size + max(self.padding, 0)
        # An odd number of 16-byte units: eight rows fall into different banks.
        odd = width if width // ROW_ALIGNMENT % 2 else width + ROW_ALIGNMENT
        return odd // size

    def swizzle(self, row: str) -> str:
        """What a column of a row is combined with by ``^``, as C; empty if rows lie as they are.

        Args:
            row: number of the row, as C that needs no brackets.
        """
        width = self.row * self.element.bytes
        period = swizzle_period(width) if self.padding is not None and self.padding < 0 else 0
        if not period:
            return ""
        pieces, piece = width // ROW_ALIGNMENT, ROW_ALIGNMENT // self.element.bytes
        turn = row if period == 1 else f"{row} / {period}"
        return f"{turn} % {pieces} * {piece}"

    def column(self, row: str, column: str) -> str:
        """C of the place of a column in its row."""
        change = self.swizzle(f"({row})")
        return f"(({column}) ^ ({change}))" if change else column

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """Every direction with more than one fragment, fastest first."""
        made = []
        stride = self.rows.lanes * self.row
        rest = [(STEP, self.steps)] if self.reduced else []
        rest += [(name, self.spans[name]) for name in reversed(self.loops)]
        for name, extent in rest:
            if extent > 1:
                made.append(Axis(name, extent, stride))
                stride *= extent
        return tuple(made)

    @cached_property
    def elements(self) -> int:
        """Elements of one stage, padding included."""
        return self.fragments * self.rows.lanes * self.row

    @property
    def bytes(self) -> int:
        """Bytes of one stage."""
        return self.elements * self.element.bytes

    @property
    def fragments(self) -> int:
        """Fragments of one stage."""
        return prod(a.extent for a in self.axes)

    @property
    def copies(self) -> int:
        """Copies that fill one stage."""
        return self.fragments * self.rows.lanes * self.columns.lanes // self.vector

    def _has(self, loop: str) -> bool:
        if loop in self.load.names:
            return True
        return any(
            loop == g.tile and self.load.names & set(g.members) for g in self.nest.groups.values()
        )
