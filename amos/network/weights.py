"""Memory for the constants of a network, in large pages where the system has them.

Each run of a network reads all of its weights. In pages of 4 KiB every 64th line is on another
page, whose place has to be looked up, and beyond which hardware fetches nothing ahead.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np

#: Bytes of a block of constants, which is whole large pages, and at which multiples each begins.
_BLOCK, _ALIGNED = 1 << 25, 64


class LargePages:
    """Copies constants of the engine one behind the other."""

    def __init__(self) -> None:
        self._block = np.empty(0, np.uint8)
        self._used = 0

    def __call__(self, constant: Any) -> Any:
        """The constant at its new place; itself where NumPy lacks its dtype."""
        from tvm import relax, runtime

        tensor = constant.value
        if not hasattr(np, str(tensor.dtype)):
            return constant
        return relax.const(runtime.from_dlpack(self._copy(np.from_dlpack(tensor))))

    def _copy(self, array: np.ndarray) -> np.ndarray:
        start = -(-self._used // _ALIGNED) * _ALIGNED
        if start + array.nbytes > self._block.size:
            self._block, start = _large_pages(max(array.nbytes, _BLOCK)), 0
        self._used = start + array.nbytes
        copy = self._block[start : self._used].view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy


def _large_pages(size: int) -> np.ndarray:
    """Memory that nobody has used, for which the system is asked for large pages."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system that is built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
