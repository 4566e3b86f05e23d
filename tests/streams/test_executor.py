"""Buffers that queues fill."""

from __future__ import annotations

import pytest

from amos.intrinsics.toml_file import from_toml as intrinsic_of
from amos.machine.catalogue import from_toml as machine_of
from amos.streams.executor import missing_of_buffers
from tests.support.architects import BOARD_TEXT, UNIT_TEXT

_SHARED = (
    UNIT_TEXT.replace("wgt.", "inp.").replace("acc.", "inp.").replace(", capacity = 131072", "")
)
_LEVEL = '[[level]]\nname = "inp"\nscratchpad = true\ncapacity = {}\nread_bandwidth = 3e10\n\n'


@pytest.mark.parametrize(
    ("text", "capacity", "problem"),
    [
        (UNIT_TEXT.replace("65536", "256, banks = 2"), 256, ""),
        (
            UNIT_TEXT.replace("65536", "200, banks = 2"),
            200,
            "buffer inp: expected at least 128 bytes in a bank for one fragment of Src1, got 100",
        ),
        (_SHARED.replace("65536", "6144, banks = 3"), 6144, ""),
        (
            _SHARED.replace("65536", "6144, banks = 2"),
            6144,
            "buffer inp: expected a bank for each fragment of Src1 and Src2 and Dst, got 2",
        ),
        (
            UNIT_TEXT,
            64,
            "buffer acme_board.inp: expected at least 128 bytes for one fragment of Src1, got 64",
        ),
    ],
)
def test_one_fragment_of_each_operand_fits(text: str, capacity: int, problem: str) -> None:
    """A bank, or a memory of the machine that is smaller than the buffer in it."""
    board = BOARD_TEXT.replace("[[level]]", _LEVEL.format(capacity) + "[[level]]", 1)
    unit = intrinsic_of(text)
    expected = [f"{unit.name}: {problem}"] if problem else []
    assert missing_of_buffers(unit, machine_of(board)) == expected
