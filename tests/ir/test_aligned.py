"""Arrays that begin at a cache line."""

import numpy as np
import pytest

from amos.ir import aligned, aligned_copy


@pytest.mark.parametrize("shape", [(), (0,), (7, 13), (3, 0, 5), (1024, 1024)])
def test_begins_at_a_line(shape: tuple[int, ...]) -> None:
    for kind in (np.uint8, np.float64):
        made = aligned(shape, kind)
        assert made.shape == shape and made.dtype == kind
        assert made.ctypes.data % 64 == 0 or not made.size
        assert made.flags.c_contiguous and made.flags.writeable


def test_copies_are_equal_and_own_memory() -> None:
    given = np.arange(35, dtype=np.int16).reshape(5, 7).T
    made = aligned_copy(given)
    assert np.array_equal(made, given) and made.flags.c_contiguous
    assert not np.shares_memory(made, given) and made.ctypes.data % 64 == 0
