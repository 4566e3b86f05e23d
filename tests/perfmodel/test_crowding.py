"""What compilers make one stretch of code, and what follows from it."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos.ir import Operator
from amos.perfmodel import LoopBatch, Machine, Structure
from amos.perfmodel.crowding import left_out, stretch, sunk, written_if
from amos.perfmodel.machine import Level, Peak
from amos.perfmodel.part import Part, Steps
from amos.perfmodel.sharing import exchanges
from amos.schedule import Schedule, batch_of

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")


def _made(
    values: dict[str, int | str], p: int = 60, k: int = 64, c: int = 64
) -> tuple[Structure, LoopBatch, Part]:
    op = Operator.parse(
        "out[p,q,k] += image[p,q,c] * weight[k,c]", extents=dict(p=p, q=64, k=k, c=c)
    )
    (mapping,) = (m for m in amos.enumerate_mappings(op, VNNI) if m.groups["i1"] == ("k",))
    structure = Structure(mapping)
    batch = batch_of(structure, [Schedule.of({"order": "p q i1.tile", **values})])
    steps = Steps(structure, batch, batch.split)
    return structure, batch, Part(steps, np.minimum(2, steps.parallel), 64)


@pytest.mark.parametrize(
    ("tile", "unroll", "steps", "whole"),
    [(6, 1, 16, True), (6, 4, 16, True), (7, 1, 16, True), (8, 1, 1, False), (8, 4, 4, False)],
)
def test_short_loops_become_one_stretch_of_code(
    tile: int, unroll: int, steps: int, whole: bool
) -> None:
    """Sixteen steps of two times the tile and one: 240 loads and calls at the most."""
    code = stretch(*_made({"tile.p": tile, "unroll": unroll}))
    assert (code.steps.tolist(), code.whole.tolist()) == ([steps], [whole])


def test_results_that_nobody_gets_are_left_out_of_one_stretch() -> None:
    """60 rows in blocks of 32 are 64: the last tiles lie beyond, if tiles divide the rows."""

    def share(p: int, tile: int, block: int, unroll: int = 1, c: int = 64) -> float:
        values: dict[str, int | str] = {"tile.p": tile, "block.p": block, "unroll": unroll}
        structure, batch, part = _made(values, p, c=c)
        return float(left_out(structure, part, stretch(structure, batch, part))[0])

    assert share(60, 4, 8) == pytest.approx(60 / 64)
    assert share(60, 4, 5) == 1.0
    # 62 rows end within a tile.
    assert share(62, 4, 8) == 1.0
    # Loops that are left keep their calls where they are.
    assert share(60, 4, 8, c=1024) == 1.0


def test_calls_sink_behind_conditions_where_a_tile_is_cut() -> None:
    def share(p: int, tile: int, c: int = 64) -> float:
        structure, batch, part = _made({"tile.p": tile}, p, c=c)
        return float(sunk(structure, part, stretch(structure, batch, part))[0])

    assert share(62, 4) == pytest.approx(3 / 4)
    assert share(60, 4) == share(62, 1) == 0.0
    # What two steps load fits the registers.
    assert share(62, 4, c=8) == 0.0
    assert share(62, 4, c=1024) == 0.0


def test_positions_of_cut_tiles_are_written_under_conditions() -> None:
    def each(p: int, tile: int) -> float:
        structure, _, part = _made({"tile.p": tile, "tile.i1.tile": 2}, p)
        return float(written_if(structure, part)[0])

    # Four rows of two vectors of channels, for each 16 steps of eight calls.
    assert each(62, 4) == pytest.approx(4 / (16 * 8))
    assert each(60, 4) == 0.0


def test_cores_that_write_side_by_side_take_lines_from_each_other() -> None:
    machine = Machine(
        "two", 2, 1.0, (Level("DRAM", 0, 1.0, 1.0),), {VNNI.name: Peak(1.0, 1.0)}, exchange=2.0
    )

    def seconds(order: str, p: int = 60, k: int = 64) -> float:
        structure, _, part = _made({"order": order, "parallel": 1}, p, k)
        return float(exchanges(structure.destination, machine, part, np.array([2]))[0])

    # Half of 960 KiB each, in pieces of 128 bytes: every line of it.
    assert seconds("i1.tile p q") == 60 * 64 * 128 / 64 * 2.0
    # Half of the rows each lie together.
    assert seconds("p q i1.tile") == 0.0
    # Pieces of 3 KiB reach into the next page half of the time.
    assert seconds("i1.tile p q", k=1536) == 60 * 64 * 3072 / 64 * 2.0 / 2
    # Little is left where it is.
    assert seconds("i1.tile p q", p=16) == 0.0


def test_fused_steps_are_dealt_out_as_ranges() -> None:
    """Three times four steps are six for each of two cores, not two times four."""
    _, _, part = _made(
        {"tile.p": 20, "tile.q": 16, "order": "p q i1.tile", "parallel": 2, "unroll": 4}
    )
    assert part.outer[:2, 0].tolist() == [1.5, 4.0]
    _, _, odd = _made({"tile.p": 20, "order": "p q i1.tile", "parallel": 1})
    assert odd.outer[0, 0] == 2.0
