"""What compilers make of a nest, and what is run of it by the busiest core."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import amos
from amos.ir import Operator
from amos.machine import Costs, Level, Machine, Peak
from amos.perfmodel import batch, predict
from amos.perfmodel.cpu.compiler import block_steps, spilled_accumulators
from amos.perfmodel.cpu.stores import exchange_seconds
from amos.perfmodel.traffic import CoreNest
from amos.plan import LoopBatch, Schedule, Structure, batch_of
from tests.support.models import LEVELS, VNNI, convolution, machine_of, nest_of


def _estimate(
    values: dict[str, int | str], p: int = 60, k: int = 64, c: int = 64
) -> tuple[Structure, LoopBatch, CoreNest]:
    op = Operator.parse(
        "out[p,q,k] += image[p,q,c] * weight[k,c]", extents=dict(p=p, q=64, k=k, c=c)
    )
    (mapping,) = (m for m in amos.enumerate_mappings(op, VNNI) if m.groups["i1"] == ("k",))
    structure = Structure(mapping)
    batch = batch_of(structure, [Schedule.of({"order": "p q i1.tile", **values})])
    steps = nest_of(structure, batch, 2, cut_tiles=True)
    return structure, batch, CoreNest(steps, np.minimum(2, steps.parallel), 64)


@pytest.mark.parametrize(
    ("tile", "unroll", "steps"), [(6, 4, 16), (9, 1, 16), (10, 1, 1), (12, 1, 1), (10, 4, 4)]
)
def test_short_loops_become_one_stretch_of_code(tile: int, unroll: int, steps: int) -> None:
    """Sixteen steps of two times the tile and one: 310 loads and calls at the most."""
    structure, batch, core = _estimate({"tile.p": tile, "unroll": unroll})
    assert block_steps(core).tolist() == [steps]


def test_a_nest_without_positions_is_no_more_crowded() -> None:
    op = Operator.parse("out[k] += image[c] * weight[k,c]", extents=dict(k=16, c=64))
    mapping = amos.enumerate_mappings(op, VNNI)[0]
    assert predict(mapping, amos.machines.get("xeon_6240"), Schedule.of({})).seconds > 0


def test_lines_are_shared_by_what_lies_side_by_side() -> None:
    structure, _, core = _estimate({"order": "q p i1.tile", "parallel": 1}, p=60, c=8)
    image = structure.sources[0]
    # Half of the columns of every row, eight bytes each.
    assert core.footprint(image)[0, 0] == 60 * 32 * 8
    # A column is eight bytes of a line, and so is its next one.
    assert core.footprint(image)[1, 0] == 60 * 64
    assert core.footprint(image)[-1, 0] == 64


@pytest.mark.parametrize(
    ("p", "tile", "block", "tiles", "steps"),
    [
        (60, 4, 8, 15 / 16, 1.0),
        (62, 4, 8, 1.0, 62 / 64),
        (62, 4, 5, 16 / 20, 62 / 64),
        (60, 4, 5, 15 / 15, 1.0),
    ],
)
def test_tiles_beyond_the_end_are_not_run(
    p: int, tile: int, block: int, tiles: float, steps: float
) -> None:
    """Tiles of so many rows, so many of them in a block; the last one is cut."""
    values: dict[str, int | str] = {"tile.p": tile, "block.p": block, "tile.q": 2}
    structure, _, core = _estimate(values | {"order": "q p i1.tile"}, p)
    edges = core.steps.edges
    assert edges is not None
    assert edges.tiles[:, 0].tolist() == [pytest.approx(tiles), 1.0, 1.0]
    assert edges.steps[:, 0].tolist() == [pytest.approx(steps), 1.0, 1.0]
    # Rows are asked for one by one, weights by every tile.
    image, weight = structure.sources
    assert (edges.fragments(image)[0], edges.fragments(weight)[0]) == (pytest.approx(steps), 1.0)
    assert core.trips[core.steps.begin, 0] == pytest.approx(-(-p // tile) * 16 * 4)


def test_the_busiest_core_has_no_end_of_what_is_shared_out() -> None:
    values: dict[str, int | str] = {"tile.p": 4, "block.p": 5, "tile.q": 3, "parallel": 1}
    _, _, core = _estimate(values, 62)
    edges = core.steps.edges
    assert edges is not None
    assert edges.tiles[:, 0].tolist() == [1.0, 1.0, 1.0]
    # 64 columns in tiles of three.
    assert edges.steps[:, 0].tolist() == [1.0, pytest.approx(64 / 66), 1.0]


def test_cores_that_write_side_by_side_take_lines_from_each_other() -> None:
    peaks, costs = {VNNI.name: Peak(1.0, 1.0)}, Costs(exchange=2.0, ahead=4.0)
    machine = Machine("two", 2, 1.0, (Level("DRAM", 0, 1.0, 1.0),), peaks, costs=costs)

    def seconds(order: str, k: int = 64) -> float:
        values: dict[str, int | str] = {"order": order, "parallel": 1, "tile.i1.tile": 2}
        structure, _, core = _estimate(values, 60, k)
        return float(exchange_seconds(structure.destination, machine, core, np.array([2]))[0])

    # Half of 960 KiB each, in pieces of 128 bytes: every line of it.
    assert seconds("i1.tile p q") == 60 * 64 * 128 / 64 * 2.0
    # Half of the rows each lie together: four lines where one half ends.
    assert seconds("p q i1.tile") == pytest.approx(4 * 2.0)
    # Four lines of each piece of 3 KiB.
    assert seconds("i1.tile p q", k=1536) == pytest.approx(60 * 64 * 4 * 2.0)


def test_lines_that_two_cores_write_go_back_and_forth() -> None:
    """Also where hardware fetches nothing ahead; results count as they are stored."""
    peaks, costs = {VNNI.name: Peak(1.0, 1.0)}, Costs(exchange=2.0, ahead=0.0)
    machine = Machine("two", 2, 1.0, (Level("DRAM", 0, 1.0, 1.0),), peaks, costs=costs)

    def seconds(k: int) -> float:
        values: dict[str, int | str] = {"parallel": 1, "tile.i1.tile": 2, "order": "i1.tile p q"}
        structure, _, core = _estimate(values, 60, k)
        bytes_ = replace(structure.mapping.operator, epilogue=None).with_epilogue("u8(acc)")
        stored = Structure(replace(structure.mapping, operator=bytes_)).destination
        assert (structure.destination.size, stored.size) == (4, 1)
        return float(exchange_seconds(stored, machine, core, np.array([2]))[0])

    # Pieces of 32 bytes: half of 240 KiB.
    assert seconds(64) == 60 * 64 * 32 / 64 * 2.0
    assert seconds(128) == 0.0


def test_fused_steps_are_dealt_out_as_ranges() -> None:
    """Three times four steps are six for each of two cores, not two times four."""
    _, _, core = _estimate(
        {"tile.p": 20, "tile.q": 16, "order": "p q i1.tile", "parallel": 2, "unroll": 4}
    )
    assert core.outer[:2, 0].tolist() == [1.5, 4.0]
    _, _, odd = _estimate({"tile.p": 20, "order": "p q i1.tile", "parallel": 1})
    assert odd.outer[0, 0] == 2.0


def test_overlapping_windows_that_outgrow_the_registers_are_loaded_again() -> None:
    """Steps of a window in one stretch of code read the same fragments, which stay loaded."""

    def slower(tile: int, reduce: str, **more: str) -> float:
        values: dict[str, int | str] = {"tile.p": tile, "reduce": reduce, **more}
        base: dict[str, int | str] = {"order": "i1.tile p q", "parallel": 1}
        mapping, schedule = convolution(56, base | values)
        free, dear = (
            predict(
                mapping,
                replace(machine_of(*LEVELS), costs=Costs(reload=cost)),
                schedule,
            )
            for cost in (0.0, 1.0)
        )
        return dear.rows[0].compute / free.rows[0].compute

    # Each of three steps reads 27 of the 28 rows of the one before; of 30 + 27 fragments 25 do
    # not fit: these are loaded twice, and stored once, with one more that the second brings.
    assert slower(28, "r1.tile s r") == pytest.approx(1 + 25 * (2 + 1 + 1 / 27) / 3 / 28)
    # Steps of s share nothing among the rows of a tile, nor do those of the channels.
    assert slower(28, "r1.tile r s") == slower(28, "r s r1.tile") == 1.0
    # 14 rows and what they keep do fit.
    assert slower(14, "r1.tile s r") == 1.0
    staged = {"order": "p q i1.tile", "stage.Src1": "tile"}
    assert slower(28, "r1.tile s r", **staged) == slower(28, "r1.tile s r")


@pytest.mark.parametrize(
    ("reduce", "tile", "share"),
    [
        ("r s r1.tile", 1, 11 / 12 * 22 / 24),
        ("r r1.tile s", 1, 11 / 12),
        ("r r1.tile s", 2, 1.0),
        ("r1.tile s r", 1, 22 / 24),
    ],
)
def test_steps_that_read_only_padding_are_left_out(reduce: str, tile: int, share: float) -> None:
    """Eight rows and columns under a window of three: two of 24 steps lie outside."""
    mapping, schedule = convolution(8, {"reduce": reduce, "tile.p": tile})
    structure = Structure(mapping)
    run = batch.share_of_steps(nest_of(structure, schedule.batch(structure)))
    assert run.tolist() == pytest.approx([share])
    caches, pads = (
        machine_of(Level("L1", 1 << 20, 64.0, 32.0, scratchpad=pad), LEVELS[1])
        for pad in (False, True)
    )
    full = predict(mapping, pads, schedule).rows[0].compute
    assert predict(mapping, caches, schedule).rows[0].compute == pytest.approx(share * full)


@pytest.mark.parametrize(
    ("unit", "tile", "moved"),
    [
        # Each call has a broadcast of its own: twice the accumulators and a weight in 16 registers.
        ("avx2_fmadd_m8_f32_f32", {"tile.p": 4, "tile.q": 2}, 1),
        ("avx2_fmadd_m8_f32_f32", {"tile.p": 7, "tile.q": 2}, 13),
        ("avx2_fmadd_m8_f32_f32", {"tile.p": 7}, 0),
        ("avx2_fmadd_m8_f32_f32", {"tile.i1.tile": 2, "tile.p": 3, "tile.q": 2}, 0),
        # Broadcasts from memory are part of the instruction.
        ("avx512_fmadd_m16_f32_f32", {"tile.p": 7, "tile.q": 4}, 0),
        # No broadcast, or an accumulator that the instruction names.
        ("avx2_fmadd_lanes_m8_f32_f32", {"tile.p": 7, "tile.q": 2}, 0),
        ("vnni_dpbusd_m8k4_u8_s8_s32", {"tile.p": 7, "tile.q": 4}, 0),
    ],
)
def test_accumulators_move_where_each_call_has_its_own_broadcast(
    unit: str, tile: dict[str, int], moved: int
) -> None:
    lanes = "lanes" in unit
    text = "image[p,q,k] * weight[k,r]" if lanes else "image[p,q,c] * weight[k,c]"
    extents = dict(p=28, q=28, k=64, r=9) if lanes else dict(p=28, q=28, k=64, c=64)
    op = Operator.parse(f"out[p,q,k] += {text}", extents=extents)
    mapping = next(m for m in amos.enumerate_mappings(op, unit) if m.groups["i1"] == ("k",))
    structure = Structure(mapping)
    batch = batch_of(structure, [Schedule.of({"order": "p q i1.tile", **tile})])
    nest = CoreNest(nest_of(structure, batch), None, 64)
    assert spilled_accumulators(nest).tolist() == [moved]
