"""Constant weights of a few bits, with a scale for each block of rows.

They stay as models have them. Kernels unpack them next to their products
(:mod:`amos.network.lowerings.blocked`); everything else that reads them gets floats, computed anew
each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from amos.errors import NetworkError
from amos.network.graph import Constant, GraphBuilder, Operand
from amos.network.operations import numpy_dtype

#: Bits that hold codes of one column in a kernel.
WORD_BITS = 32


@dataclass(frozen=True)
class BlockFormat:
    """How the weights of a matrix are stored.

    Attributes:
        block: rows that share a scale and a zero point.
        has_zeros: whether blocks have zero points other than the middle of all codes.
        rounds_rows: whether the rows that they multiply are rounded to 8 bits in each block.
    """

    bits: int
    block: int
    has_zeros: bool
    rounds_rows: bool = False

    @property
    def is_whole_words(self) -> bool:
        """Whether the codes of a block are some whole words."""
        return WORD_BITS % self.bits == 0 and self.block * self.bits % WORD_BITS == 0

    @property
    def codes_per_word(self) -> int:
        """Codes of a word, the first one in its lowest bits."""
        return WORD_BITS // self.bits

    @property
    def words(self) -> int:
        """Words of a block."""
        return self.block // self.codes_per_word

    def __str__(self) -> str:
        zeros, rows = "_zeros" * self.has_zeros, "_rows8bit" * self.rounds_rows
        return f"{self.bits}bit_block{self.block}{zeros}{rows}"


class BlockedWeight(Constant):
    """A matrix of ``(code - zero) * scale``, whose floats are computed when they are read.

    Attributes:
        packed: uint8, columns × bytes of all blocks, lower bits first; codes are unsigned.
        scales: floats, columns × blocks.
        zeros: floats, columns × blocks; ``None`` for the middle of all codes.
        rows: how many there are; the last block may have fewer.
        by_columns: whether the columns are the first axis, rather than the second.
    """

    packed: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    format: BlockFormat
    rows: int
    by_columns: bool
    _dtype: str

    def __init__(
        self,
        packed: np.ndarray,
        scales: np.ndarray,
        zeros: np.ndarray | None,
        format: BlockFormat,
        rows: int,
        *,
        by_columns: bool = False,
        dtype: str = "float32",
    ) -> None:
        values = {
            "packed": packed,
            "scales": scales.astype(np.float32),
            "zeros": None if zeros is None else zeros.astype(np.float32),
            "format": format,
            "rows": rows,
            "by_columns": by_columns,
            "_dtype": dtype,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def columns(self) -> int:
        """How many there are."""
        return len(self.packed)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return (self.columns, self.rows) if self.by_columns else (self.rows, self.columns)

    @property
    def dtype(self) -> str:
        """Of its elements."""
        return self._dtype

    @property
    def array(self) -> np.ndarray:
        """Its floats, which are not stored."""
        bits = self.format.bits
        floats = unpack_codes(self.packed, bits)[:, : self.rows].astype(np.float32)
        floats -= 1 << (bits - 1) if self.zeros is None else self._repeat(self.zeros)
        floats *= self._repeat(self.scales)
        floats = np.ascontiguousarray(floats if self.by_columns else floats.T)
        return floats.astype(numpy_dtype(self.dtype), copy=False)

    def transpose(self, perm: Sequence[int]) -> Constant:
        """Return it with axes in another order."""
        swaps = tuple(perm) == (1, 0)
        return self._with(by_columns=self.by_columns != swaps, dtype=self.dtype)

    def widen(self) -> BlockedWeight:
        """Return the same weights as ``float32``, of which nothing is rounded."""
        return self._with(by_columns=self.by_columns, dtype="float32")

    def _with(self, *, by_columns: bool, dtype: str) -> BlockedWeight:
        parts = self.packed, self.scales, self.zeros, self.format, self.rows
        return BlockedWeight(*parts, by_columns=by_columns, dtype=dtype)

    def _repeat(self, values: np.ndarray) -> np.ndarray:
        """Repeat the values of blocks for each row."""
        return _repeat(values, (self.columns, self.rows), 1, self.format.block)


def pack_codes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Pack codes, uint8 by column, into bytes, those of lower indices into lower bits."""
    count = 8 // bits
    parts = codes.reshape(len(codes), -1, count) << np.arange(0, 8, bits, dtype=np.uint8)
    packed: np.ndarray = np.bitwise_or.reduce(parts, axis=-1)
    return packed


def unpack_codes(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unpack bytes of codes: the inverse of :func:`pack_codes`."""
    parts = packed[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)
    return (parts & ((1 << bits) - 1)).reshape(len(packed), -1)


def emit_dequantized_blocks(
    builder: GraphBuilder,
    x: Operand,
    scales: Operand,
    zero_points: Operand | None,
    axis: int,
    block_size: int,
) -> Operand:
    """Emit DequantizeLinear of constants with a scale for each block of an axis, as floats.

    Args:
        x: constant integers.
        scales: of the rank of ``x``; the result has their dtype.
        zero_points: as many; ``None`` for 0.
        block_size: elements in one; the last may have fewer.
    """
    parts = [x, scales] if zero_points is None else [x, scales, zero_points]
    values, factors, *zeros = constant_arrays("DequantizeLinear of blocks", *parts)
    if block_size < 1:
        raise NetworkError(f"DequantizeLinear: expected a block size from 1 on, got {block_size}")
    shape = list(values.shape)
    shape[axis] = -(-shape[axis] // block_size)
    for array in (factors, *zeros):
        if array.shape != tuple(shape):
            raise NetworkError(
                f"DequantizeLinear: expected scales and zero points of shape {tuple(shape)}, "
                f"got {array.shape}"
            )
    bits = _CODE_BITS.get(x.dtype)
    if bits is not None and values.ndim == 2:
        format = BlockFormat(bits, block_size, bool(zeros))
        if format.is_whole_words:
            return _weight_of_codes(values, factors, zeros, format, axis, scales.dtype)
    floats = values.astype(np.int32)
    if zeros:
        floats = floats - _repeat(zeros[0].astype(np.int32), values.shape, axis, block_size)
    factors = _repeat(factors.astype(np.float32), values.shape, axis, block_size)
    return builder.cast(Constant(floats.astype(np.float32) * factors), scales.dtype)


#: Bits of the integers that are packed, by dtype.
_CODE_BITS = {"int8": 8, "uint8": 8, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2}


def _weight_of_codes(
    values: np.ndarray,
    scales: np.ndarray,
    zeros: Sequence[np.ndarray],
    format: BlockFormat,
    axis: int,
    dtype: str,
) -> BlockedWeight:
    """Return a matrix of integers in blocks with a scale, and a zero point unless it is 0."""
    shift = 0 if values.dtype.name.startswith("u") else 1 << (format.bits - 1)
    by_columns = axis == 1
    codes = (values.astype(np.int16) + shift).astype(np.uint8)
    codes, scales = (each if by_columns else each.T for each in (codes, scales))
    offsets = zeros[0].astype(np.float32) + shift if zeros else None
    if offsets is None and not shift:
        offsets = np.zeros(scales.T.shape if not by_columns else scales.shape, np.float32)
        format = replace(format, has_zeros=True)
    if offsets is not None and not by_columns:
        offsets = offsets.T
    rows = codes.shape[1]
    filled = np.pad(codes, ((0, 0), (0, -rows % format.block)))
    packed = pack_codes(np.ascontiguousarray(filled), format.bits)
    return BlockedWeight(packed, scales, offsets, format, rows, by_columns=by_columns, dtype=dtype)


def emit_blocked_product(builder: GraphBuilder, a: Operand, weight: BlockedWeight) -> Operand:
    """Emit a matrix product, in ``float32`` whatever the dtype of its rows.

    Blocks of columns become floats, as kernels unpack blocks of the rows that they sum over.
    """
    wide = weight.widen()
    factor = Constant(wide.array) if wide.by_columns else wide
    product = builder.emit("MatMul", builder.cast(a, "float32"), factor)
    return builder.cast(product, a.dtype)


def constant_arrays(what: str, *operands: Operand) -> list[np.ndarray]:
    """Return the arrays of constants; raise NetworkError if the network computes one of them."""
    arrays = [each.array for each in operands if isinstance(each, Constant)]
    if len(arrays) < len(operands):
        raise NetworkError(f"{what}: what the network computes is not supported")
    return arrays


def _repeat(values: np.ndarray, shape: Sequence[int], axis: int, block_size: int) -> np.ndarray:
    """Repeat the values of an axis's blocks for each of their elements."""
    return np.take(np.repeat(values, block_size, axis), np.arange(shape[axis]), axis)
