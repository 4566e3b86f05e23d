"""Accesses by level and operand, and their energy, held against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import amos
from amos.errors import MachineError
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.machine.catalogue import with_timings
from amos.perfmodel import check_energies, missing_energies
from amos.perfmodel.model import Prediction
from amos.streams import StreamSchedule
from tests.support.architects import BOARD, ENERGETIC, UNIT
from tests.support.streams import OPERATORS, PYNQ, VTA

GEMM = OPERATORS["gemm"]


def _predicted(machine: Machine, unit: Intrinsic) -> Prediction:
    (mapping,) = amos.enumerate_mappings(GEMM, unit)
    schedule = StreamSchedule()
    with_rate = with_timings(machine, [unit])
    return amos.predict(mapping, with_rate, schedule)


def test_energy_is_that_of_every_access() -> None:
    """21 x 40 x 70 on 1 x 16 x 16: 21 x 3 x 5 calls, one tile a call, results of 4 bytes."""
    calls, sums = 21 * 3 * 5, 21 * 3
    rows = {(row.level, row.operand): row for row in _predicted(PYNQ, VTA).energy}
    assert rows["operations", ""].joules == pytest.approx(calls * 256 * 0.3e-12)
    image, weight = rows["inp", "image"], rows["wgt", "weight"]
    assert (image.read_bytes, weight.read_bytes) == (calls * 16, calls * 256)
    for level, operand in (("inp", "image"), ("wgt", "weight")):
        assert rows[level, operand].written_bytes == rows["DRAM", operand].read_bytes
    # VTA writes zeros first; the sums leave once.
    out = rows["acc", "out"]
    assert out.written_bytes == (calls + sums) * 64
    assert out.read_bytes == (calls + sums) * 64
    assert rows["DRAM", "out"].written_bytes == sums * 64
    for row in rows.values():
        if row.operand:
            price = 162.5 if row.level == "DRAM" else 2.5
            assert row.joules == pytest.approx((row.read_bytes + row.written_bytes) * price * 1e-12)
    assert _predicted(PYNQ, VTA).energy_joules == pytest.approx(
        sum(row.joules or 0.0 for row in rows.values())
    )


def test_a_first_product_reads_no_sums_where_it_finds_zeros() -> None:
    """21 x 40 x 70 on 16 x 32 x 8: 2 x 2 x 9 calls."""
    calls, sums, fragment = 2 * 2 * 9, 2 * 2, 16 * 32 * 4
    rows = {(row.level, row.operand): row for row in _predicted(ENERGETIC, UNIT).energy}
    out = rows["acc", "out"]
    assert out.read_bytes == (calls - sums + sums) * fragment
    assert out.written_bytes == calls * fragment


def test_a_machine_that_does_not_say_all_has_no_energy() -> None:
    assert _predicted(BOARD, UNIT).energy_joules is None
    assert len(_predicted(BOARD, UNIT).energy) == 7
    assert missing_energies(ENERGETIC, UNIT.scratchpads) == []
    silent = replace(ENERGETIC, operation_pj=None)
    assert missing_energies(silent, UNIT.scratchpads) == ["operation_pj"]
    with pytest.raises(MachineError, match="expected operation_pj$"):
        check_energies(silent, UNIT.scratchpads)
    with pytest.raises(MachineError, match="expected a unit that streams drive"):
        check_energies(amos.machines.get("xeon_4110"), ())
