"""A unit and a board of one's own, as an architect describes them."""

from __future__ import annotations

import itertools
from pathlib import Path

from amos.intrinsics import Intrinsic
from amos.intrinsics.toml_file import from_toml as intrinsic_of
from amos.machine import Machine
from amos.machine.catalogue import from_toml as machine_of

_NUMBERS = itertools.count()
UNIT_TEXT = """
name = "acme_matmul_m16n32k8_s8_s32"
family = "acme"
source = "ACME NPU data sheet, MATMUL"
compute = "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]"
extents = { i1 = 16, i2 = 32, r1 = 8 }
dtypes = { Src1 = "s8", Src2 = "s8", Dst = "s32" }
timing = { interval = 16, latency = 24, source = "ACME NPU data sheet" }
memory = [
  { statement = "inp.Src1[i1, r1] = DRAM.Src1[addr_a + i1 * stride_a + r1]", capacity = 65536 },
  { statement = "wgt.Src2[r1, i2] = DRAM.Src2[addr_b + r1 * stride_b + i2]", capacity = 131072 },
  { statement = "DRAM.Dst[addr_c + i1 * stride_c + i2] = acc.Dst[i1, i2]", capacity = 131072 },
]
"""
BOARD_TEXT = """
name = "acme_board"
source = "ACME board data sheet"
clock = 5e8

[[level]]
name = "DRAM"
capacity = 0
read_bandwidth = 8e9

[stream]
encoding = "calls"
drain = 24
latency = 60
"""
#: Levels and figures that give every access of that unit an energy.
ENERGIES = """
operation_pj = 0.5
energy_source = "a test"

[[level]]
name = "sram"
scratchpad = true
capacity = 327680
read_bandwidth = 3e10
read_pj_per_byte = 2.0
write_pj_per_byte = 3.0

[[level]]
name = "DRAM"
capacity = 0
read_bandwidth = 8e9
read_pj_per_byte = 100.0
write_pj_per_byte = 120.0
"""


def energetic(text: str = BOARD_TEXT) -> str:
    """The board's file with energies."""
    before, _, after = text.partition("[[level]]")
    return f"{before}{ENERGIES}[stream]{after.partition('[stream]')[2]}"


def files(folder: Path, energies: str = "") -> tuple[str, str]:
    """Write the board and the unit, of a name that nothing registered has; return their paths."""
    board, unit = folder / "board.toml", folder / "tile.toml"
    board.write_text(energetic() if energies else BOARD_TEXT)
    unit.write_text(UNIT_TEXT.replace('"acme_matmul', f'"acme_{next(_NUMBERS)}_matmul'))
    return str(board), str(unit)


UNIT: Intrinsic = intrinsic_of(UNIT_TEXT)
BOARD: Machine = machine_of(BOARD_TEXT)
ENERGETIC: Machine = machine_of(energetic())
