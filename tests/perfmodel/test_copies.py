"""What stands around the nest of calls: parallel regions, and rows that are copied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import amos
from amos.ir import Operator
from amos.machine import Level, Peak
from amos.perfmodel import predict
from amos.plan import Schedule, Structure
from amos.plan.shared_loops import SharedLoops
from tests.support.models import COSTS, LEVELS, VNNI, convolution, machine_of

XEON = amos.machines.get("xeon_6240")
OPERATOR = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=8, j=16, k=4096))
MAPPING = amos.enumerate_mappings(OPERATOR, VNNI)[0]


def _launch(**schedule: int) -> float:
    whole: dict[str, int | str] = {"order": "i", "parallel": 1, **schedule}
    return predict(MAPPING, XEON, Schedule.of(whole)).launch


def test_a_loop_of_one_step_starts_no_parallel_region() -> None:
    assert XEON.launch > 0
    assert _launch(**{"tile.i": 8}) == 0.0
    assert _launch(**{"tile.i": 4}) == XEON.launch


def test_the_parts_of_a_reduction_are_one_region() -> None:
    """Whether the nest itself has anything to share out or not."""
    assert _launch(**{"tile.i": 8, "split": 2}) == XEON.launch
    assert _launch(**{"tile.i": 4, "split": 2}) == XEON.launch


def _gathered(lanes: tuple[str, ...], values: dict[str, int | str], p: int = 4) -> float:
    base: dict[str, int | str] = {"stage.Src1": "tile", "order": "p q i1.tile", "parallel": 1}
    mapping, schedule = convolution(p, base | values, lanes, q=6, c=3, r=2)
    machine = replace(XEON, cores=2, levels=tuple(replace(x, units=2) for x in XEON.levels))
    return predict(mapping, machine, schedule).staging


def test_steps_of_a_copy_are_as_long_as_padded_rows_allow() -> None:
    """Four lanes of six columns are three steps of 8; of eight columns, one step of 32."""
    even, longer, odd = (_gathered(("r", "s", "c"), {"tile.q": n}) for n in (1, 4, 5))
    assert longer > 2 * even
    # Ten columns, padding and all, are five steps of 8: more steps share the divisions of a row.
    assert even < odd < even * 10 / 6


def test_a_core_copies_whole_steps_of_a_loop_that_its_range_ends_in() -> None:
    """Seven rows of two tiles are three and a half for each core: it copies four, as of eight."""
    values: dict[str, int | str] = {"tile.q": 3, "parallel": 2}
    seven, eight = (_gathered(("s",), values, p) for p in (7, 8))
    assert seven == pytest.approx(eight, rel=1e-3)


def test_a_range_that_begins_within_a_loop_is_a_larger_box() -> None:
    """Three steps of twelve begin at the last one of a row, among others: two rows of four."""
    steps, none = np.array([[3], [4]]), np.zeros((2, 1), dtype=int)
    loops = SharedLoops(np.array([[0], [1]]), steps, steps, grown=none, parts=np.array([1]))
    assert loops.range_steps(np.array([3])).tolist() == [[2], [4]]


def test_rows_of_windows_are_found_once_and_moved_in_vectors() -> None:
    """Tile registers take 16 rows of 64 channels: wider steps find fewer places."""
    unit = amos.intrinsics.get("amx_tdpbusd_m16n16k64_u8_s8_s32")
    op = amos.operators.conv2d(
        n=1, c=128, k=32, p=7, q=7, r=3, s=3, padding=1, layout="NHWC", dtype="u8s8"
    )
    (mapping,) = (
        m
        for m in amos.enumerate_mappings(op, unit, rule="access")
        if m.groups == {"i1": ("p", "q"), "i2": ("k",), "r1": ("c",)}
    )
    structure = Structure(mapping)
    image = structure.sources[0]
    assert (image.copy, image.divisions, image.guarded) == ("rows", 1, True)
    machine = replace(XEON, peaks={unit.name: Peak(1e-8, 1e-8)})

    def staging(vector: int) -> float:
        values: dict[str, int | str] = {"stage.Src1": "tile", "vector": vector}
        return predict(mapping, machine, Schedule.of(values)).staging

    # Moving the output takes as long under both.
    assert staging(16) == pytest.approx(2 * staging(32), rel=0.02)


@pytest.mark.parametrize("second", ["b[k,j]", "b[j,k]"])
def test_groups_of_a_tile_move_element_by_element(second: str) -> None:
    """The second source is laid out in groups of 32 bits, so that no row of it stays one."""
    unit = amos.intrinsics.get("amx_tdpbusd_m16n16k64_u8_s8_s32")
    op = Operator.parse(
        f"out[i,j] += a[i,k] * {second}",
        extents=dict(i=256, j=128, k=512),
        dtypes=dict(a="u8", b="s8", out="s32"),
    )
    mapping = amos.enumerate_mappings(op, unit)[0]
    assert Structure(mapping).sources[1].copy == "pieces"
    costs = replace(COSTS, serial=100.0)  # far slower than any memory
    machine = replace(machine_of(*LEVELS), costs=costs, peaks={unit.name: Peak(1e-8, 1e-8)})
    staging = predict(mapping, machine, Schedule.of({"stage.Src2": "whole"})).staging
    assert staging == pytest.approx(128 * 512 * 120 / machine.clock / machine.cores, rel=0.01)


def test_short_rows_and_results_move_element_by_element() -> None:
    """Sixteen pixels of four channels each are no run, and their results leave transposed."""
    unit = amos.intrinsics.get("vnni_dpbusd_lhs_m16k4_u8_s8_s32")
    op = amos.operators.conv2d(n=1, c=64, k=24, p=8, q=8, r=1, s=1, layout="NHWC", dtype="u8s8")
    (mapping,) = (
        m
        for m in amos.enumerate_mappings(op, unit, rule="access", commute=True)
        if m.groups == {"i1": ("p", "q"), "r1": ("c",)}
    )
    image, _, out = Structure(mapping).operands
    assert (image.copy, out.copy) == ("pieces", "stride")
    costs = replace(COSTS, serial=100.0)  # far slower than any memory
    machine = replace(machine_of(*LEVELS), costs=costs, peaks={unit.name: Peak(1e-8, 1e-8)})
    staging = predict(mapping, machine, Schedule.of({"stage.Src1": "whole"})).staging
    elements = 8 * 8 * (64 + 24)
    assert staging == pytest.approx(elements * 120 / machine.clock / machine.cores, rel=0.01)


def test_steps_over_parted_runs_move_element_by_element() -> None:
    """Sixteen channels of a pixel are a run, and padding may stand between two of them."""
    unit = amos.intrinsics.get("avx512_fmadd_lanes_m16_f32_f32")
    op = amos.operators.depthwise_conv2d(
        n=1, c=32, k=1, p=16, q=16, r=3, s=3, padding=1, layout="NHWC", dtype="f32"
    )
    (mapping,) = amos.enumerate_mappings(op, unit)
    machine = replace(XEON, peaks={unit.name: Peak(1e-8, 1e-8)})

    def staging(vector: int) -> float:
        values: dict[str, int | str] = {"stage.Src1": "tile", "tile.q": 8, "vector": vector}
        values |= {"order": "p i1.tile q", "parallel": 3}
        return predict(mapping, machine, Schedule.of(values)).staging

    assert staging(32) == staging(64) > 10 * staging(16) > 0


def test_a_copy_costs_what_its_steps_do() -> None:
    """Gathering columns: short steps are unrolled, long ones find each element by itself.

    Where loops are fused, as in a copy ahead of the nest, no two steps share divisions.
    """
    mapping, smallest = convolution(4, {}, ("r", "s"), q=6, r=2)
    structure = Structure(mapping)
    image = next(op for op in structure.sources if op.copied)
    assert (image.copy, image.divisions, image.guarded, image.live) == ("digits", 1, True, 0.75)
    machine = replace(machine_of(*LEVELS), costs=replace(COSTS, find=50.0))
    base = smallest.as_dict()

    def staging(where: str, vector: int, find: float = 50.0) -> float:
        costs = replace(machine.costs, find=find)
        values = base | {f"stage.{image.name}": where, "vector": vector}
        return predict(mapping, replace(machine, costs=costs), Schedule.of(values)).staging

    assert 0 < staging("tile", 8) < staging("tile", 64)
    assert staging("whole", 8) > 3 * staging("tile", 8)
    assert staging("whole", 64, find=100.0) > staging("whole", 64)


def test_padding_is_staged_too() -> None:
    """Tiles of three steps make four of them six, and so much more is gathered."""
    machine = replace(machine_of(*LEVELS), costs=COSTS)

    def staging(tile: int) -> float:
        values: dict[str, int | str] = {"stage.Src1": "whole", "tile.p": tile}
        mapping, schedule = convolution(4, values, ("r", "s"), q=6, r=2)
        return predict(mapping, machine, schedule).staging

    assert staging(3) == pytest.approx(1.5 * staging(2))


def test_a_copy_is_made_once_for_a_core_where_it_fits() -> None:
    """Rows of tiles overlap by a window: copying each for itself copies more."""

    def staging(p: int, capacity: int) -> float:
        levels = (Level("L1", capacity, 1e12, 1e12, units=2), Level("DRAM", 0, 1e12, 1e12))
        values: dict[str, int | str] = {"stage.Src1": "tile", "order": "p q i1.tile", "parallel": 1}
        mapping, schedule = convolution(p, values, ("s",))
        machine = replace(machine_of(*levels, cores=2), costs=COSTS)
        return predict(mapping, machine, schedule).staging

    # Four rows and a border of two, against four times one row and its border.
    assert staging(8, 1 << 20) == pytest.approx(staging(8, 64) * 6 / 12)
    # Seven steps do not divide evenly.
    assert staging(7, 1 << 20) == staging(7, 64) > 0


def test_tiles_are_staged_in_the_place_of_the_last_one() -> None:
    """Four windows of an image are more than the cache holds, one row of them is not."""

    def staging(where: str, capacity: int) -> float:
        levels = (Level("L1", capacity, 1e12, 1e12, units=2), Level("DRAM", 0, 1e9, 1e9))
        values: dict[str, int | str] = {"stage.Src1": where, "order": "p q i1.tile", "parallel": 1}
        mapping, schedule = convolution(64, values, ("r", "s"), q=6, r=2)
        return predict(mapping, machine_of(*levels, cores=2), schedule).staging

    assert staging("tile", 4096) == pytest.approx(staging("tile", 1 << 20))
    assert staging("whole", 4096) > 100 * staging("whole", 1 << 20)


def test_packed_constants_are_one_stream() -> None:
    mapping, _ = convolution(8, {})
    image, weight = Structure(mapping).sources
    assert (image.packed, weight.packed) == (False, True)
