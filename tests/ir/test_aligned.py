"""Arrays that begin at a cache line."""

import numpy as np
import pytest

from amos.ir import allocate_aligned, copy_aligned


@pytest.mark.parametrize("shape", [(), (0,), (7, 13), (3, 0, 5), (1024, 1024)])
def test_begins_at_a_line(shape: tuple[int, ...]) -> None:
    for kind in (np.uint8, np.float64):
        array = allocate_aligned(shape, kind)
        assert array.shape == shape and array.dtype == kind
        assert array.ctypes.data % 64 == 0 or not array.size
        assert array.flags.c_contiguous and array.flags.writeable


def test_copies_are_equal_and_own_memory() -> None:
    transposed = np.arange(35, dtype=np.int16).reshape(5, 7).T
    array = copy_aligned(transposed)
    assert np.array_equal(array, transposed) and array.flags.c_contiguous
    assert not np.shares_memory(array, transposed) and array.ctypes.data % 64 == 0
