"""What is told of sources that every call packs."""

from __future__ import annotations

from dataclasses import replace

import pytest

import amos
from amos.explore.constants import ConstantSaving, constant_saving
from amos.machine import Peak
from amos.plan import Candidate, Schedule

UNIT = "amx_tdpbusd_m16n16k64_u8_s8_s32"
#: A CPU of whose tiles two cores do 16 columns in 16 cycles, as a Xeon of 2023.
MACHINE = replace(amos.machines.get("xeon_6240"), cores=2, peaks={UNIT: Peak(2e-8, 7e-9)})


def _saving(second: str, constants: tuple[str, ...] = ()) -> ConstantSaving | None:
    op = amos.Operator.parse(
        f"out[i,j] += a[i,k] * {second}",
        extents=dict(i=1024, j=1024, k=1024),
        dtypes=dict(a="u8", b="s8", out="s32"),
        constants=constants,
    )
    mapping = amos.enumerate_mappings(op, UNIT)[0]
    tiles: dict[str, int | str] = {"tile.i1.tile": 2, "tile.i2.tile": 2, "unroll": 4}
    loops: dict[str, int | str] = {"order": "i1.tile i2.tile", "parallel": 2}
    stage: dict[str, int | str] = {} if constants else {"stage.Src2": "whole"}
    return constant_saving(Candidate(mapping, Schedule.of(tiles | loops | stage)), MACHINE)


@pytest.mark.parametrize("second", ["b[k,j]", "b[j,k]"])
def test_a_product_of_bytes_saves_what_packing_takes(second: str) -> None:
    """Tiles take the second source in an order that no matrix has: half of the time is packing."""
    saving = _saving(second)
    assert saving is not None
    assert saving.tensor == "b"
    assert saving.constant_seconds < 0.7 * saving.seconds
    assert "with --constant b" in str(saving)


def test_nothing_is_saved_where_the_source_is_constant() -> None:
    assert _saving("b[j,k]", constants=("b",)) is None
