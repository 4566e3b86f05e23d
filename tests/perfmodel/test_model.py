"""The model: footprints by counting, the level equation by hand, and what must be monotone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import amos
from amos.errors import MachineError
from amos.ir import Operator
from amos.mapping import Mapping
from amos.mapping.nest import Nest
from amos.mapping.staging import StagedOperand, staged_destination, staged_sources
from amos.perfmodel import Level, Machine, Peak, ScheduledLoop, predict
from amos.perfmodel.loops import divided, element_bytes, footprint, trips
from amos.schedule import Schedule, ScheduleSpace

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
XEON = amos.machines.get("xeon_6240")

CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=4, q=6, k=32, c=6, r=2, s=3),
    shapes=dict(image=(1, 4, 6, 6)),
)
MAPPINGS = list(amos.enumerate_mappings(CONV, VNNI, rule="gather"))

seeds = st.integers(0, 2**32 - 1)


def _touched(op: StagedOperand, inner: Sequence[ScheduledLoop]) -> int:
    """Different elements that the loops and the lanes reach, counted one by one."""
    lanes = [(g.lane, g.lanes) for g in op.nest.groups.values()]
    ranges = [[(x.loop, x.stride * i) for i in range(x.extent)] for x in inner]
    ranges += [[(name, i) for i in range(extent)] for name, extent in lanes]
    used = {name for dim in op.dims for name in dim.index.names}
    ranges = [steps for steps in ranges if steps[0][0] in used]
    found = set()
    for steps in product(*ranges):
        at = dict.fromkeys(used, 0)
        for name, value in steps:
            at[name] += value
        found.add(tuple(dim.index.evaluate(at) for dim in op.dims))
    return len(found)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(MAPPINGS), seeds)
def test_footprints_are_exact_without_gaps(mapping: Mapping, seed: int) -> None:
    nest = Nest(mapping)
    loops = ScheduleSpace(mapping).sample(np.random.default_rng(seed)).loops(nest)
    for op in (*staged_sources(nest), staged_destination(nest)):
        for depth in range(len(loops) + 1):
            inner = [loop for loop in loops[depth:] if loop.extent > 1]
            counted = _touched(op, inner) * element_bytes(op)
            assert footprint(op, loops[depth:]) == counted, (op.name, depth)


def _gemm() -> Mapping:
    op = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=2, j=16, k=8))
    return amos.enumerate_mappings(op, VNNI)[0]


def _machine(*levels: Level, cores: int = 1) -> Machine:
    peak = Peak(latency=5.0, interval=1.0)
    return Machine("paper", cores, 1.0, levels, {VNNI.name: peak}, launch=0.5)


def test_the_level_equation_by_hand() -> None:
    """Two rows of 16 lanes, two steps of four bytes: four calls."""
    inner, outer = Level("L1", 200, 64.0, 32.0), Level("DRAM", 0, 16.0, 8.0)
    found = predict(_gemm(), _machine(inner, outer), Schedule.of({}))
    zero, one, two = found.rows
    # No register tile, so each call waits for the one before it.
    assert (zero.level, zero.trips, zero.compute) == ("intrinsic", 4, 4 * 5.0)
    # Out of L1 a call reads 4 bytes into each of 16 lanes, and 64 bytes of weights.
    assert (one.bytes_in, one.bytes_out) == (4 * (4 * 16 + 64), 2 * 64)
    assert (one.compute, one.read, one.write) == (20.0, 512 / 64, 128 / 32)
    # One row of each operand fits the 200 bytes of L1; the weights stay there.
    assert (two.trips, two.bytes_in, two.bytes_out) == (2, 2 * 8 + 128, 2 * 64)
    assert (two.compute, two.read, two.write) == (20.0, 144 / 16, 128 / 8)
    assert found.seconds == max(20.0, 9.0, 16.0) + 0.5
    assert (found.staging, found.launch) == (0.0, 0.5)
    assert found.bound == "issue of the intrinsic"


def test_a_register_tile_hides_the_latency() -> None:
    machine = _machine(Level("DRAM", 0, 1e9, 1e9))
    one, two = (predict(_gemm(), machine, Schedule.of({"tile.i": tile})) for tile in (1, 2))
    assert (one.rows[0].compute, two.rows[0].compute) == (20.0, 10.0)


def test_slow_memory_binds_and_is_named() -> None:
    found = predict(_gemm(), _machine(Level("DRAM", 0, 1.0, 1e9)), Schedule.of({}))
    assert found.seconds == 512.5
    assert found.bound == "DRAM reads of `Src1`: 26x the compute time"
    assert list(found.levels.index) == ["intrinsic", "DRAM"]
    assert found.levels["binding"].tolist() == [False, True]


def test_cores_share_the_work() -> None:
    level = Level("DRAM", 0, 1e9, 1e9)
    one, two, many = (
        predict(_gemm(), _machine(level, cores=n), Schedule.of({"parallel": 1})) for n in (1, 2, 64)
    )
    assert one.rows[0].compute == 2 * two.rows[0].compute == 2 * many.rows[0].compute


def test_dividing_loops_gives_the_largest_part() -> None:
    loops = (ScheduledLoop("p", 3, 1, "parallel"), ScheduledLoop("q", 4, 1, "parallel"))
    assert trips(divided(loops, 1)) == 12
    assert [loop.extent for loop in divided(loops, 2)] == [2, 4]
    assert [loop.extent for loop in divided(loops, 3)] == [1, 4]
    assert trips(divided(loops, 100)) == 1
    serial = (ScheduledLoop("p", 3, 1, "serial"),)
    assert divided(serial, 8) == serial


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MAPPINGS), seeds, st.sampled_from([2.0, 3.0, 10.0]))
def test_a_slower_machine_is_never_faster(mapping: Mapping, seed: int, factor: float) -> None:
    schedule = ScheduleSpace(mapping).sample(np.random.default_rng(seed))
    before = predict(mapping, XEON, schedule).seconds
    levels = tuple(
        replace(
            level,
            read_bandwidth=level.read_bandwidth / factor,
            write_bandwidth=level.write_bandwidth / factor,
        )
        for level in XEON.levels
    )
    peaks = {
        name: Peak(peak.latency * factor, peak.interval * factor)
        for name, peak in XEON.peaks.items()
    }
    memory, compute = replace(XEON, levels=levels), replace(XEON, peaks=peaks)
    everything = replace(memory, peaks=peaks, launch=XEON.launch * factor)
    assert before <= predict(mapping, memory, schedule).seconds
    assert before <= predict(mapping, compute, schedule).seconds
    assert predict(mapping, everything, schedule).seconds == pytest.approx(before * factor)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MAPPINGS), seeds)
def test_nothing_beats_the_peak(mapping: Mapping, seed: int) -> None:
    schedule = ScheduleSpace(mapping).sample(np.random.default_rng(seed))
    found = predict(mapping, XEON, schedule)
    interval = XEON.peak(VNNI.name).interval
    assert found.seconds >= Nest(mapping).calls * interval / XEON.cores
    inside = [row.compute for row in found.rows]
    assert inside == sorted(inside)
    assert all(min(row.read, row.write, row.bytes_in, row.bytes_out) >= 0 for row in found.rows)


def test_an_intrinsic_without_a_rate_is_refused() -> None:
    with pytest.raises(MachineError, match=r"machine 'a100' has no rate for intrinsic 'vnni"):
        predict(_gemm(), amos.machines.get("a100"), Schedule.of({}))
