"""Cycles that shared memory takes for the accesses of a warp, bank conflicts included.

Shared memory has 32 banks of four bytes; different words of one bank follow one
another, the same word goes to all lanes at once (CUDA C++ Programming Guide, Shared
Memory). A cycle delivers at most 128 bytes, so that wider accesses are served in
phases of 8 lanes of 16 bytes, or 16 lanes of 8 bytes.
"""

from __future__ import annotations

import numpy as np

from amos.machine.gpu_costs import WARP

#: Bytes that all banks deliver in a cycle, and bytes of a word.
BANK_BYTES, WORD = 128, 4
#: Rows of one matrix of ``ldmatrix``, and bytes of a row (PTX ISA, ldmatrix).
_ROWS, _ROW = 8, 16


def wavefronts(addresses: np.ndarray, width: int) -> int:
    """Count the cycles that accesses of a warp take.

    Args:
        addresses: bytes, accesses × lanes: where each lane begins to read or write.
        width: bytes of each lane.

    >>> lanes = np.arange(32)[None]
    >>> wavefronts(4 * lanes, 4), wavefronts(8 * lanes, 4), wavefronts(0 * lanes, 4)
    (1, 2, 1)
    """
    lanes = min(addresses.shape[1], BANK_BYTES // max(width, WORD))
    phases = addresses.reshape(-1, lanes)
    words = np.arange(0, max(width, WORD), WORD)
    touched = (phases[:, :, None] + words).reshape(len(phases), -1) // WORD
    cycles = 0
    for phase in touched:
        banks = np.unique(phase) % (BANK_BYTES // WORD)
        cycles += int(np.bincount(banks).max())
    return cycles


def swizzle_period(width: int) -> int:
    """Return the rows between two permutations of a row's pieces; 0 if that gains nothing.

    A row of ``width`` bytes has ``width / 16`` pieces; eight pieces fill all banks. Piece ``c``
    of row ``r`` takes the place of ``c ^ (r / period % pieces)``, so that one piece each of
    eight rows lies in eight different places of four banks.

    >>> [swizzle_period(width) for width in (16, 32, 64, 128, 48)]
    [0, 4, 2, 1, 0]
    """
    pieces = width // _ROW
    return _ROWS // pieces if pieces in (2, 4, 8) and width % _ROW == 0 else 0


def swizzle_column(row: np.ndarray, at: np.ndarray, width: int) -> np.ndarray:
    """Return the byte in its row at which byte ``at`` lies if rows are swizzled."""
    period = swizzle_period(width)
    return at ^ (row // period % (width // _ROW) * _ROW) if period else at


def matrix_cycles(rows: int, width: int, stride: int, *, swizzle: bool = False) -> int:
    """Count the cycles of ``ldmatrix``, which loads eight rows of 16 bytes at a time.

    Rows follow one another at the padded stride. WMMA loads of 16 bits, and of 8 bits
    along the reduction, compile to it from sm_75 on (seen in the machine code of
    kernels for sm_75 and sm_80); on sm_70 they are 16-byte loads of as many rows.

    >>> matrix_cycles(16, 32, 32, swizzle=True)
    4

    >>> [matrix_cycles(16, 32, 32 + 2 * padding) for padding in (0, 8, 16)]
    [8, 4, 16]
    """
    matrices = -(-rows // _ROWS) * -(-width // _ROW)
    row = np.arange(_ROWS)
    first = swizzle_column(row, np.zeros(_ROWS, int), width) if swizzle else 0
    return matrices * wavefronts((row * stride + first)[None], _ROW)


def element_cycles(
    rows: int, columns: int, stride: int, bits: int, *, along: bool, swizzle: bool = False
) -> int:
    """Count the cycles of loading a fragment whose lanes fetch each element by itself.

    Eight groups of four lanes: a group holds one index that is not reduced, its lanes
    successive registers of the reduction (PTX ISA, matrix fragments of mma). Registers
    of 32 bits come whole where rows run along the reduction, else element by element.

    Args:
        along: whether a row runs along the reduction.
    """
    packed = max(1, 32 // bits)
    spatial, reduction = (rows, columns) if along else (columns, rows)
    lane = np.arange(WARP)
    at_spatial, at_reduction = lane // 4, lane % 4 * packed
    addresses = []
    for first in range(0, spatial, 8):
        for start in range(0, reduction, 4 * packed):
            for e in range(0, packed, packed if along else 1):
                i, k = first + at_spatial, start + at_reduction + e
                row, column = (i, k) if along else (k, i)
                at = column * bits // 8
                at = swizzle_column(row, at, columns * bits // 8) if swizzle else at
                addresses.append(row * stride + at)
    width = max(1, bits // 8) * (packed if along else 1)
    return wavefronts(np.stack(addresses), width)


def store_cycles(
    rows: int, columns: int, stride: int, size: float, width: int, *, swizzle: bool = False
) -> int:
    """Count the cycles of filling a fragment, of neighbouring pieces of ``width`` bytes."""
    pieces = max(1, round(columns * size / width))
    row, first = np.arange(rows)[:, None], np.arange(pieces)[None] * width
    at = row * stride + (swizzle_column(row, first, int(columns * size)) if swizzle else first)
    flat = at.reshape(-1)
    lanes = min(WARP, BANK_BYTES // max(width, WORD), len(flat))
    whole = len(flat) // lanes * lanes
    cycles = wavefronts(flat[:whole].reshape(-1, lanes), width)
    return cycles + (wavefronts(flat[None, whole:], width) if whole < len(flat) else 0)
