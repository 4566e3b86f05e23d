"""How products with weights of a few bits are cut, and the order in which codes lie.

The codes of a vector of columns lie in the order in which they are read: for each block some words
of each column, then the scales, then the zero points. That order is the same for all numbers of
rows, so that kernels share weights. A *panel* is a few vectors; a core computes whole panels. With
few rows a panel is read once, and that takes the time; with many, its floats are written out once,
to the caches near the core, and multiplied with all rows.

Rows that may be rounded become bytes, with a scale for each block. Bytes of codes are multiplied
with them as they are unpacked, whatever the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from amos.network.blocked import WORD_BITS, BlockedWeight, BlockFormat

#: Rows of which a panel is read once, at the most; rows of a register tile of more.
_FEW_ROWS, _TILE_ROWS = 8, 12
#: Largest byte of a row.
MOST_LEVEL = 127
#: Vectors of a panel at the most.
_VECTORS = 4


@dataclass(frozen=True)
class BlockedProduct:
    """A product with blocked weights, and how it is cut.

    Attributes:
        rows, columns, depth: of the result, and of the sums.
        lanes: floats of a vector.
        registers: vectors that a core holds.
        has_permutes: whether the CPU looks 16 floats up in a register.
        rounds_rows: whether rows are rounded to bytes.
    """

    rows: int
    columns: int
    depth: int
    format: BlockFormat
    lanes: int
    registers: int
    has_permutes: bool
    rounds_rows: bool = False

    @property
    def is_direct(self) -> bool:
        """Whether there are so few rows that codes are unpacked into registers."""
        return self.rows <= min(_FEW_ROWS, self.registers // 4)

    @cached_property
    def tile_rows(self) -> int:
        """Rows of a register tile, chosen so that few are computed beyond the last one."""
        most = min(_TILE_ROWS, self.registers // 2 - 3)
        if self.rows <= most:
            return self.rows
        return min(range(most, most // 2, -1), key=lambda size: -(-self.rows // size) * size)

    @property
    def tiles(self) -> int:
        """Register tiles of all rows."""
        return -(-self.rows // self.tile_rows)

    @cached_property
    def vectors(self) -> int:
        """Vectors of a panel: accumulators of a block and of all, and codes, fill the registers."""
        if not self.is_direct and not self.rounds_rows:
            return 2
        fit = (self.registers - 3) // (2 * self.tile_rows + 1)
        return next(n for n in (_VECTORS, 2, 1) if n <= max(fit, 1))

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.vectors * self.lanes

    @property
    def panels(self) -> int:
        """Panels of all columns."""
        return -(-self.columns // self.width)

    @property
    def blocks(self) -> int:
        """Blocks of all rows of the weights."""
        return -(-self.depth // self.format.block)

    @property
    def column_vectors(self) -> int:
        """Vectors of all columns."""
        return -(-self.columns // self.lanes)

    @property
    def lines(self) -> int:
        """Words of each column of a block, with its scale and its zero point."""
        return self.format.words + 1 + self.format.has_zeros

    @property
    def words(self) -> int:
        """Words of all weights."""
        return self.column_vectors * self.blocks * self.lines * self.lanes

    def pack(self, weight: BlockedWeight) -> np.ndarray:
        """Bring weights into the order in which they are read, as uint32.

        Codes that become floats are stored as signed numbers: less the middle of all codes.
        """
        bits, blocks, columns = self.format.bits, self.blocks, self.column_vectors * self.lanes
        signs = 0 if self.rounds_rows else sum(1 << at for at in range(bits - 1, WORD_BITS, bits))
        bytes_of_blocks = blocks * self.format.block * bits // 8
        codes = np.zeros((columns, bytes_of_blocks), np.uint8)
        codes[: self.columns, : weight.packed.shape[1]] = weight.packed
        parts = [codes.view("<u4").reshape(columns, blocks, -1) ^ np.uint32(signs)]
        offsets = None if weight.zeros is None else weight.zeros - (1 << (bits - 1))
        for values in (weight.scales, offsets):
            if values is not None:
                floats = np.zeros((columns, blocks, 1), np.float32)
                floats[: self.columns, :, 0] = values
                parts.append(floats.view(np.uint32))
        lines = np.concatenate(parts, axis=2)
        lines = lines.reshape(-1, self.lanes, blocks, self.lines)
        return np.ascontiguousarray(lines.transpose(0, 2, 3, 1)).reshape(-1)


def round_rows(rows: np.ndarray, block: int) -> np.ndarray:
    """Round rows to 8 bits and back, each block of their last axis by its own largest element."""
    depth = rows.shape[-1]
    padded = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -depth % block)])
    blocks = padded.reshape(*rows.shape[:-1], -1, block)
    most = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(most > 0, np.float32(MOST_LEVEL) / most, np.float32(0))
    levels = np.rint(blocks * inverse) * (most / np.float32(MOST_LEVEL))
    result: np.ndarray = levels.reshape(padded.shape)[..., :depth]
    return result
