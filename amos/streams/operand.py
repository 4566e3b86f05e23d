"""Operands of a streamed unit: their layouts in DRAM and on chip, fragment by fragment.

In DRAM an operand is an array of fragments, the elements that its buffer counts in. Tiles of
fused indices come first, as ``NCHW`` with ``C`` in blocks: some rows of an image are one
rectangle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from amos.errors import BuildError
from amos.intrinsics.scratchpad import Scratchpad
from amos.ir import Affine, dtype
from amos.plan.staging import StagedOperand, stage_array, staged_destination, staged_sources
from amos.plan.structure import Structure

#: Rows or columns of zeros that a load can write at one side (4 bits).
PADS = 15
#: Dimensions of the rectangle of one load.
_MOVED = 2


@dataclass(frozen=True)
class StreamDim:
    """A dimension of an operand in DRAM.

    Attributes:
        index: where a call reads, over loops; below 0 or from ``extent`` on it is padding.
        extent: fragments along it in DRAM.
    """

    index: Affine
    extent: int


@dataclass(frozen=True)
class StreamOperand:
    """An operand in its staged form, and its buffer."""

    staged: StagedOperand
    pad: Scratchpad

    @property
    def buffer(self) -> str:
        """Name of its buffer, or of its share of one."""
        return self.pad.name if len(self.pad.operands) == 1 else f"{self.pad.name}.{self.name}"

    @property
    def depth(self) -> int:
        """Fragments that the whole buffer holds."""
        return self.pad.capacity // self.bytes

    @property
    def bank(self) -> int:
        """Fragments that one of its banks holds."""
        return self.pad.capacity // self.pad.banks // self.bytes

    @property
    def name(self) -> str:
        """Its name in the intrinsic."""
        return self.staged.name

    @property
    def fragment(self) -> tuple[int, ...]:
        """Shape of a fragment."""
        return self.staged.shape[len(self._leading) :]

    @property
    def bytes(self) -> int:
        """Bytes of a fragment on chip."""
        return prod(self.fragment) * dtype(self.staged.kind).bits // 8

    @property
    def moved_bytes(self) -> int:
        """Bytes of a fragment to or from DRAM: an epilogue may leave narrower results."""
        mapping = self.staged.nest.mapping
        epilogue = mapping.operator.epilogue
        if epilogue is None or self.name != mapping.intrinsic.destination.tensor.name:
            return self.bytes
        return prod(self.fragment) * dtype(epilogue.result(self.staged.kind)).bits // 8

    @cached_property
    def _leading(self) -> tuple[int, ...]:
        """Numbers of the dimensions that are no fragment's, in the order that DRAM has them in."""
        count = len(self.staged.dims) - len(self.staged.fragment)
        tiles = {group.tile for group in self.staged.nest.groups.values()}
        return tuple(
            sorted(range(count), key=lambda d: tiles.isdisjoint(self.staged.dims[d].index.names))
        )

    @cached_property
    def _cropped(self) -> dict[int, slice]:
        """Dimensions whose padding loads write, with the part that is in DRAM."""
        moved = [d for d in self._leading if self.staged.dims[d].extent > 1][-_MOVED:]
        cropped = {}
        for d in moved if not self.staged.load.padding else ():
            dim = self.staged.dims[d]
            if dim.dimension < 0:
                continue
            size = self.staged.load.tensor.shape[dim.dimension]
            after = max(0, dim.extent + dim.offset - size)
            if dim.offset <= 0 and max(-dim.offset, after) <= PADS:
                cropped[d] = slice(-dim.offset, dim.extent - after)
        return cropped

    @cached_property
    def dims(self) -> tuple[StreamDim, ...]:
        """Its dimensions in DRAM."""
        dims = []
        for d in self._leading:
            dim, crop = self.staged.dims[d], self._cropped.get(d)
            index = dim.index + (-crop.start) if crop else dim.index
            dims.append(StreamDim(index, crop.stop - crop.start if crop else dim.extent))
        return tuple(dims)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape in DRAM, fragment included."""
        return (*(dim.extent for dim in self.dims), *self.fragment)

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Pack a tensor as it is in DRAM, of :attr:`shape`."""
        whole = stage_array(self.staged, array)
        parts = tuple(self._cropped.get(d, slice(None)) for d in range(len(self._leading)))
        axes = (*self._leading, *range(len(self._leading), whole.ndim))
        return np.ascontiguousarray(whole[parts].transpose(axes))

    def unpack(self, array: np.ndarray) -> np.ndarray:
        """Unpack the output from its fragments in DRAM; elements that no call writes are zero."""
        axes = np.argsort((*self._leading, *range(len(self._leading), array.ndim)))
        staged = array.transpose(axes)
        grid = np.ogrid[tuple(slice(0, n) for n in staged.shape)]
        indices, guards = self.staged.locate(grid)
        in_bounds = np.ones(staged.shape, dtype=bool)
        for guard in guards:
            in_bounds &= (guard.at >= 0) & (guard.at < guard.bound)
        result = np.zeros(self.staged.load.tensor.shape, array.dtype)
        at = tuple(np.broadcast_to(index, staged.shape)[in_bounds] for index in indices)
        result[at] = staged[in_bounds] if at else staged[in_bounds][0]
        return result


def stream_operands(structure: Structure) -> tuple[StreamOperand, ...]:
    """Return the operands of a mapping on a streamed unit: sources, then the destination.

    Raises:
        BuildError: the intrinsic does not say what the buffer of an operand holds, or has
            gaps between elements.
    """
    unit = structure.mapping.intrinsic
    pads = {name: pad for pad in unit.scratchpads for name in pad.operands}
    operands = []
    for staged in (*staged_sources(structure.nest), staged_destination(structure.nest)):
        if staged.name not in pads:
            (scope,) = {m.register_scope for m in unit.memory if m.operand == staged.name}
            raise BuildError(f"{unit.name}: expected the capacity of buffer {scope!r}, got none")
        if not (own := unit.placements[staged.name]).dense:
            raise BuildError(
                f"{unit.name}: streams move fragments without gaps; those of {staged.name} have "
                f"strides {own.strides} and begin every {own.step} elements"
            )
        operands.append(StreamOperand(staged, pads[staged.name]))
    return tuple(operands)
