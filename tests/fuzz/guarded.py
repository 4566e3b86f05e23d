"""Arrays between pages that nobody may touch: a read or write beyond either end is a signal."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

__all__ = ["guarded", "guarded_copy"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class _Pages:
    """Memory of whole pages between two that are closed."""

    def __init__(self, size: int) -> None:
        self.length = max(1, -(-size // mmap.PAGESIZE)) * mmap.PAGESIZE
        self.whole = self.length + 2 * mmap.PAGESIZE
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.address = _LIBC.mmap(None, self.whole, 0, kind, -1, 0)
        self.first = self.address + mmap.PAGESIZE
        opened = mmap.PROT_READ | mmap.PROT_WRITE
        if _LIBC.mprotect(self.first, self.length, opened):
            raise OSError(ctypes.get_errno(), "mprotect")

    def __del__(self) -> None:
        _LIBC.munmap(self.address, self.whole)


def guarded(shape: tuple[int, ...], kind: np.dtype, last: bool) -> np.ndarray:
    """An array that ends where its page does, or begins where it does; filled with 0x55."""
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    pages = _Pages(size)
    start = pages.first + (pages.length - size if last else 0)
    memory = (ctypes.c_ubyte * size).from_address(start)
    memory._pages = pages  # type: ignore[attr-defined] # lives as long as the array
    ctypes.memset(pages.first, 0x55, pages.length)
    flat: np.ndarray = np.ctypeslib.as_array(memory).view(kind)
    return flat.reshape(shape)


def guarded_copy(values: np.ndarray, last: bool) -> np.ndarray:
    """The values in a guarded array."""
    array = guarded(values.shape, values.dtype, last)
    array[...] = values
    return array
