"""Bank conflicts, against a loop over lanes and banks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amos.cuda.banks import element_cycles, matrix_cycles, store_cycles, wavefronts


def _slowly(addresses: list[int], width: int) -> int:
    """Cycles of one access of a warp: phases of 128 bytes, one word of a bank at a time."""
    lanes = min(len(addresses), 128 // max(width, 4))
    cycles = 0
    for start in range(0, len(addresses), lanes):
        banks: dict[int, set[int]] = {}
        for address in addresses[start : start + lanes]:
            for word in range(address // 4, (address + max(width, 4)) // 4):
                banks.setdefault(word % 32, set()).add(word)
        cycles += max(len(words) for words in banks.values())
    return cycles


@given(st.integers(0, 40), st.sampled_from([4, 8, 16]), st.integers(0, 31))
def test_wavefronts_are_the_busiest_bank(stride: int, width: int, shift: int) -> None:
    at = (np.arange(32) * stride + shift) % 97 * width
    assert wavefronts(at[None], width) == _slowly(at.tolist(), width)


def test_an_odd_number_of_16_bytes_keeps_eight_rows_apart() -> None:
    cycles = {row: matrix_cycles(16, 32, row) for row in (32, 48, 64, 80, 128)}
    assert cycles == {32: 8, 48: 4, 64: 16, 80: 4, 128: 32}


@pytest.mark.parametrize(("bits", "rows", "columns"), [(8, 16, 16), (32, 16, 8), (64, 8, 4)])
def test_every_lane_fetches_its_elements(bits: int, rows: int, columns: int) -> None:
    for along in (False, True):
        packed = 32 // bits if bits < 32 and along else 1
        sides = (rows, columns) if along else (columns, rows)
        instructions = rows * columns // 32 // packed
        assert element_cycles(*sides, 80, bits, along=along) >= instructions


def test_the_width_of_a_store_does_not_change_its_banks() -> None:
    assert {store_cycles(16, 16, 48, 2, width) for width in (4, 8, 16)} == {8}
    assert {store_cycles(16, 16, 32, 2, width) for width in (4, 8, 16)} == {4}
    # Half of each bank's word at a time.
    assert store_cycles(16, 16, 32, 2, 2) == 8
