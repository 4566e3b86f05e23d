"""The model: footprints by counting, the level equation by hand, and what must be monotone."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import amos
from amos.errors import MachineError
from amos.ir import Operator
from amos.machine import Costs, Level, Machine, Peak, fitted
from amos.mapping import Mapping
from amos.perfmodel import MODELS, batch, evaluate, predict
from amos.perfmodel.traffic import CoreNest, LoopNestBatch
from amos.plan import Schedule, Structure, batch_of
from amos.plan.nest import Nest
from amos.plan.staging import StagedOperand, staged_destination, staged_sources
from amos.schedule import In, ScheduleSpace

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
XEON = amos.machines.get("xeon_6240")

CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=4, q=6, k=32, c=6, r=2, s=3),
    shapes=dict(image=(1, 4, 6, 6)),
)
MAPPINGS = list(amos.enumerate_mappings(CONV, VNNI, rule="gather"))

seeds = st.integers(0, 2**32 - 1)


def _touched(op: StagedOperand, covered: dict[str, int]) -> int:
    """Different elements that the loops and the lanes reach, counted one by one."""
    lanes = {g.lane: g.lanes for g in op.nest.groups.values()}
    used = {name for dim in op.dims for name in dim.index.names}
    ranges = {n: extent for n, extent in (covered | lanes).items() if n in used}
    found = set()
    for values in product(*map(range, ranges.values())):
        at = dict.fromkeys(used, 0) | dict(zip(ranges, values, strict=True))
        found.add(tuple(dim.index.evaluate(at) for dim in op.dims))
    return len(found)


@settings(max_examples=12)
@given(st.sampled_from(MAPPINGS), seeds)
def test_footprints_are_exact_without_gaps(mapping: Mapping, seed: int) -> None:
    structure = Structure(mapping)
    nest, loops = structure.nest, (*structure.spatial, *structure.reduce)
    space = ScheduleSpace(mapping, tiling="divisors")
    single = [In(name, (1,)) for name in space.variables if name.startswith("block.")]
    row = space.fix(single).sample(np.random.default_rng(seed)).batch(structure)
    part = CoreNest(LoopNestBatch(structure, row), None, line=1)
    order = [loops[n] for n in (*row.order[0], *row.reduce[0])]
    tiles = dict(zip([x.name for x in structure.spatial], row.tile[0].tolist(), strict=True))
    staged = (*staged_sources(nest), staged_destination(nest))
    for op, operand in zip(staged, structure.operands, strict=True):
        for depth in range(len(order) + 1):
            covered = tiles | {loop.name: loop.extent for loop in order[depth:]}
            counted = _touched(op, covered) * operand.size
            assert part.footprint(operand)[depth, 0] == counted, (op.name, depth)


@settings(max_examples=20)
@given(st.sampled_from(MAPPINGS), seeds)
def test_blocks_and_tiles_cover_their_loops(mapping: Mapping, seed: int) -> None:
    """What is inside the outermost depth is at least the loop, and less than one span more."""
    structure = Structure(mapping)
    row = ScheduleSpace(mapping).sample(np.random.default_rng(seed)).batch(structure)
    part = CoreNest(LoopNestBatch(structure, row), None, line=1)
    for number, loop in enumerate(structure.spatial):
        covered, span = part.cover(number)[0, 0], row.span[0, number]
        assert loop.extent <= covered < loop.extent + span
        assert part.cover(number)[-1, 0] == row.tile[0, number]
    calls = part.trips[-1, 0] * part.steps.tile[:, 0].prod()
    assert calls >= structure.nest.calls


def test_padding_costs_calls() -> None:
    """Five rows in tiles of two are six."""
    op = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=5, j=16, k=8))
    mapping = amos.enumerate_mappings(op, VNNI)[0]
    machine = _machine(Level("DRAM", 0, 1e9, 1e9))
    one, two = (predict(mapping, machine, Schedule.of({"tile.i": t})) for t in (1, 2))
    assert one.rows[0].compute == 5 * 2 * 5.0
    assert two.rows[0].compute == 6 * 2 * 2.5


def test_a_cut_tile_makes_fewer_calls_and_waits_as_long() -> None:
    """Twenty-five rows in tiles of eight are four tiles, the last one of a single row."""
    op = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=25, j=16, k=8))
    mapping = amos.enumerate_mappings(op, VNNI)[0]
    machine = _machine(Level("DRAM", 0, 1e9, 1e9))
    assert predict(mapping, machine, Schedule.of({"tile.i": 8})).rows[0].compute == 25 * 2
    slow = replace(machine, peaks={VNNI.name: Peak(latency=16.0, interval=1.0)})
    assert predict(mapping, slow, Schedule.of({"tile.i": 8})).rows[0].compute == 4 * 2 * 16


#: Constants of a CPU that was measured.
COSTS = fitted("GenuineIntel")


def _gemm() -> Mapping:
    op = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=2, j=16, k=8))
    return amos.enumerate_mappings(op, VNNI)[0]


def _machine(*levels: Level, cores: int = 1) -> Machine:
    peak = Peak(latency=5.0, interval=1.0)
    return Machine("paper", cores, 1.0, levels, {VNNI.name: peak}, launch=0.5, line=1)


LEVELS = (Level("L1", 200, 64.0, 32.0), Level("DRAM", 0, 16.0, 8.0))


@pytest.mark.parametrize("model", MODELS)
def test_the_level_equation_by_hand(model: str) -> None:
    """Two rows of 16 lanes, two steps of four bytes: four calls."""
    found = predict(_gemm(), _machine(*LEVELS), Schedule.of({}), model=model)
    zero, one, two = found.rows
    # No register tile, so each call waits for the one before it.
    assert (zero.level, zero.trips, zero.compute) == ("intrinsic", 4, 4 * 5.0)
    # Out of L1 a call reads 4 bytes into each of 16 lanes, and 64 bytes of weights.
    assert (one.bytes_in, one.bytes_out) == (4 * (4 * 16 + 64), 2 * 64)
    assert (one.compute, one.read, one.write) == (20.0, 512 / 64, 128 / 32)
    # One row of each operand fits the 200 bytes of L1; the weights stay there.
    assert (two.trips, two.bytes_in, two.bytes_out) == (2, 2 * 8 + 128, 2 * 64)
    assert (two.compute, two.read, two.write) == (20.0, 144 / 16, 128 / 8)
    if model == "amos":
        assert found.seconds == max(20.0, 9.0, 16.0)
    else:
        # Reads and writes of a level share its buffers.
        assert (found.staging, found.launch) == (0.0, 0.5)
        assert found.seconds == max(20.0, 9.0 + 16.0) + found.launch
    assert found.bound == "issue of the intrinsic"


def test_a_register_tile_hides_the_latency() -> None:
    machine = _machine(Level("DRAM", 0, 1e9, 1e9))
    one, two = (predict(_gemm(), machine, Schedule.of({"tile.i": tile})) for tile in (1, 2))
    assert (one.rows[0].compute, two.rows[0].compute) == (20.0, 10.0)


def test_what_fits_a_cache_is_not_loaded_again() -> None:
    levels = (Level("L1", 4096, 64.0, 32.0), LEVELS[1])
    found = predict(_gemm(), _machine(*levels), Schedule.of({}))
    assert (found.rows[2].bytes_in, found.rows[2].bytes_out) == (0, 0)
    assert found.rows[1].bytes_in == 512


def test_calls_in_close_order_take_longer_than_a_probe_says() -> None:
    machine = _machine(Level("DRAM", 0, 1e9, 1e9))
    dense = replace(machine, costs=replace(machine.costs, dense=4.0))
    one, two = (predict(_gemm(), dense, Schedule.of({"tile.i": tile})) for tile in (1, 2))
    # Calls that wait for each other are in no such order.
    assert (one.rows[0].compute, two.rows[0].compute) == (20.0, 16.0)


def test_what_comes_from_far_is_hidden_less() -> None:
    """Both ways of a level add up, and what the second cache lacks adds to the rest."""
    caches = (Level("L1", 64, 8.0, 8.0), Level("L2", 128, 8.0, 8.0))
    machine = _machine(*caches, Level("DRAM", 0, 4.0, 4.0))
    costs = replace(machine.costs, far=1.0)
    found = predict(_gemm(), replace(machine, costs=costs), Schedule.of({}))
    calls, *levels = found.rows
    first, second, memory = (level.read + level.write for level in levels)
    assert min(first, second, memory) > 0
    near = max(calls.compute, first, second)
    assert found.seconds == pytest.approx(near + memory + found.launch)
    hidden = replace(machine, costs=replace(costs, far=math.inf))
    least = predict(_gemm(), hidden, Schedule.of({})).seconds
    assert least == pytest.approx(max(near, memory) + found.launch)


def test_a_cache_keeps_part_of_what_does_not_fit() -> None:
    """Two rows of 8 activations and 128 weights do not fit 200 bytes of L1 together."""
    levels = (Level("L1", 140, 64.0, 32.0), LEVELS[1])
    strict = _machine(*levels)
    found = predict(_gemm(), strict, Schedule.of({})).rows[2].bytes_in
    some, more = (
        predict(_gemm(), replace(strict, costs=replace(strict.costs, retain=n)), Schedule.of({}))
        for n in (4.0, 1.0)
    )
    assert found > some.rows[2].bytes_in > more.rows[2].bytes_in >= 0


def test_a_copy_costs_what_its_steps_do() -> None:
    """Gathering columns: short steps are unrolled, long ones find each element by itself.

    Where loops are fused, as in a copy ahead of the nest, no two steps share divisions.
    """
    op = Operator.parse(
        "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
        extents=dict(n=1, p=4, q=6, k=32, c=16, r=2, s=3),
        shapes=dict(image=(1, 4, 6, 16)),
    )
    mapping = next(
        m for m in amos.enumerate_mappings(op, VNNI, rule="access") if m.groups["r1"] == ("r", "s")
    )
    structure = Structure(mapping)
    image = next(op for op in structure.sources if op.copied)
    assert (image.copy, image.divisions, image.guarded, image.live) == ("digits", 1, True, 0.75)
    machine = replace(_machine(*LEVELS), costs=replace(COSTS, find=50.0))
    base = ScheduleSpace(mapping).smallest().as_dict()

    def staging(where: str, vector: int, find: float = 50.0) -> float:
        costs = replace(machine.costs, find=find)
        values = base | {f"stage.{image.name}": where, "vector": vector}
        return predict(mapping, replace(machine, costs=costs), Schedule.of(values)).staging

    assert 0 < staging("tile", 8) < staging("tile", 64)
    assert staging("whole", 8) > 3 * staging("tile", 8)
    assert staging("whole", 64, find=100.0) > staging("whole", 64)


def test_padding_is_staged_too() -> None:
    """Tiles of three steps make four of them six, and so much more is gathered."""
    op = Operator.parse(
        "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
        extents=dict(n=1, p=4, q=6, k=32, c=16, r=2, s=3),
        shapes=dict(image=(1, 4, 6, 16)),
    )
    mapping = next(
        m for m in amos.enumerate_mappings(op, VNNI, rule="access") if m.groups["r1"] == ("r", "s")
    )
    base = ScheduleSpace(mapping).smallest().as_dict() | {"stage.Src1": "whole"}
    even, padded = (
        predict(
            mapping, replace(_machine(*LEVELS), costs=COSTS), Schedule.of(base | {"tile.p": n})
        ).staging
        for n in (2, 3)
    )
    assert padded == pytest.approx(1.5 * even)


def test_overlapping_windows_that_outgrow_the_registers_are_loaded_again() -> None:
    """Steps of a window in one stretch of code read the same fragments, which stay loaded."""

    def slower(tile: int, reduce: str, **more: str) -> float:
        values: dict[str, int | str] = {"tile.p": tile, "reduce": reduce, **more}
        base: dict[str, int | str] = {"order": "i1.tile p q", "parallel": 1}
        mapping, schedule = _convolution(56, base | values)
        free, dear = (
            predict(
                mapping,
                replace(_machine(*LEVELS), costs=Costs(reload=cost, unrolled=240.0)),
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
    # Where addresses depend on the loop that is shared out, compilers load them anew.
    assert slower(28, "r1.tile s r", order="p q i1.tile") == 1.0
    staged = {"order": "p q i1.tile", "stage.Src1": "tile"}
    assert slower(28, "r1.tile s r", **staged) == slower(28, "r1.tile s r")


def _convolution(p: int, values: dict[str, int | str], lane: str = "c") -> tuple[Mapping, Schedule]:
    op = Operator.parse(
        "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
        extents=dict(n=1, p=p, q=8, k=32, c=16, r=3, s=3),
        shapes=dict(image=(1, p, 8, 16)),
    )
    mapping = next(
        m for m in amos.enumerate_mappings(op, VNNI, rule="access") if m.groups["r1"] == (lane,)
    )
    base: dict[str, int | str] = ScheduleSpace(mapping).smallest().as_dict()
    return mapping, Schedule.of(base | values)


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
    mapping, schedule = _convolution(8, {"reduce": reduce, "tile.p": tile})
    structure = Structure(mapping)
    left = batch.not_padding(structure, schedule.batch(structure))
    assert np.broadcast_to(left, 1)[0] == pytest.approx(share)
    caches, pads = (
        _machine(Level("L1", 1 << 20, 64.0, 32.0, scratchpad=pad), LEVELS[1])
        for pad in (False, True)
    )
    full = predict(mapping, pads, schedule).rows[0].compute
    assert predict(mapping, caches, schedule).rows[0].compute == pytest.approx(share * full)


def test_a_copy_is_made_once_for_a_core_where_it_fits() -> None:
    """Rows of tiles overlap by a window: copying each for itself copies more."""

    def staging(p: int, capacity: int) -> float:
        levels = (Level("L1", capacity, 1e12, 1e12, units=2), Level("DRAM", 0, 1e12, 1e12))
        values: dict[str, int | str] = {"stage.Src1": "tile", "order": "p q i1.tile", "parallel": 1}
        mapping, schedule = _convolution(p, values, "s")
        machine = replace(_machine(*levels, cores=2), costs=COSTS)
        return predict(mapping, machine, schedule).staging

    # Four rows and a border of two, against four times one row and its border.
    assert staging(8, 1 << 20) == pytest.approx(staging(8, 64) * 6 / 12)
    # Seven steps do not divide evenly.
    assert staging(7, 1 << 20) == staging(7, 64) > 0


def test_packed_constants_are_one_stream() -> None:
    mapping, _ = _convolution(8, {})
    image, weight = Structure(mapping).sources
    assert (image.packed, weight.packed) == (False, True)


@settings(max_examples=8)
@given(st.sampled_from(MAPPINGS), seeds, st.sampled_from(MODELS))
def test_a_batch_is_its_rows(mapping: Mapping, seed: int, model: str) -> None:
    space, rng, structure = ScheduleSpace(mapping), np.random.default_rng(seed), Structure(mapping)
    drawn = [space.sample(rng) for _ in range(7)]
    alone = [predict(mapping, XEON, schedule, model=model).seconds for schedule in drawn]
    with pytest.MonkeyPatch.context() as patch:
        for chunk in (3, 100):
            patch.setattr(batch, "_CHUNK", chunk)
            found = evaluate(structure, XEON, batch_of(structure, drawn), model)
            assert found.seconds.tolist() == pytest.approx(alone, rel=1e-12)


def test_slow_memory_binds_and_is_named() -> None:
    machine = _machine(Level("DRAM", 0, 1.0, 1e9))
    found = predict(_gemm(), machine, Schedule.of({}), model="amos")
    assert found.seconds == 512
    assert found.bound == "DRAM reads of `a`: 26x the compute time"
    machine = _machine(Level("DRAM", 0, 1e9, 1.0))
    found_out = predict(_gemm(), machine, Schedule.of({}))
    assert found_out.bound == "DRAM writes of `out`: 6.4x the compute time"
    assert list(found.levels.index) == ["intrinsic", "DRAM"]
    assert found.levels["binding"].tolist() == [False, True]


def test_cores_share_the_work() -> None:
    level = Level("DRAM", 0, 1e9, 1e9)
    one, two, many = (
        predict(_gemm(), _machine(level, cores=n), Schedule.of({"parallel": 1})) for n in (1, 2, 64)
    )
    assert one.rows[0].compute == 2 * two.rows[0].compute == 2 * many.rows[0].compute


def test_a_loop_of_one_step_is_not_shared_out() -> None:
    """As in generated code: the outermost loop that is left goes to the cores."""
    op = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=4, j=64, k=8))
    mapping = amos.enumerate_mappings(op, VNNI)[0]
    machine = _machine(Level("DRAM", 0, 1e9, 1e9), cores=2)
    structure = Structure(mapping)
    outer = [loop.name for loop in structure.spatial]
    order = " ".join(sorted(outer, key=lambda name: name != "i"))
    whole: dict[str, int | str] = {"tile.i": 4, "order": order}
    row = Schedule.of(whole | {"parallel": 1}).batch(structure)
    assert LoopNestBatch(structure, row).parallel.tolist() == [4.0]
    assert LoopNestBatch(structure, row).region.tolist() == [2]
    one = predict(mapping, replace(machine, cores=1), Schedule.of(whole))
    assert predict(mapping, machine, Schedule.of(whole)).rows[0].compute == one.rows[0].compute / 2


@settings(max_examples=40)
@given(st.sampled_from(MAPPINGS), seeds, st.sampled_from([2.0, 3.0, 10.0]))
def test_a_slower_machine_is_never_faster(mapping: Mapping, seed: int, factor: float) -> None:
    schedule = ScheduleSpace(mapping).sample(np.random.default_rng(seed))
    before = predict(mapping, XEON, schedule).seconds
    levels = tuple(
        replace(
            level,
            read_bandwidth=level.read_bandwidth / factor,
            write_bandwidth=level.write_bandwidth / factor,
            core_read=level.core_read / factor,
            core_write=level.core_write / factor,
        )
        for level in XEON.levels
    )
    peaks = {
        name: Peak(peak.latency * factor, peak.interval * factor)
        for name, peak in XEON.peaks.items()
    }
    memory, compute = replace(XEON, levels=levels), replace(XEON, peaks=peaks)
    clock, launch = XEON.clock / factor, XEON.launch * factor
    everything = replace(memory, peaks=peaks, launch=launch, clock=clock)
    assert before <= predict(mapping, memory, schedule).seconds
    assert before <= predict(mapping, compute, schedule).seconds
    assert predict(mapping, everything, schedule).seconds == pytest.approx(before * factor)


@settings(max_examples=40)
@given(st.sampled_from(MAPPINGS), seeds)
def test_nothing_beats_the_peak(mapping: Mapping, seed: int) -> None:
    schedule = ScheduleSpace(mapping).sample(np.random.default_rng(seed))
    found = predict(mapping, XEON, schedule)
    interval = XEON.peak(VNNI.name).interval
    assert found.seconds >= Nest(mapping).calls * interval / XEON.cores
    inside = [row.compute for row in found.rows]
    assert inside == sorted(inside)
    assert all(min(row.read, row.write, row.bytes_in, row.bytes_out) >= 0 for row in found.rows)


def test_a_rate_of_loops_makes_an_estimate() -> None:
    """Figures are the same, and say what they are worth; no share of a peak is shown."""
    loops = replace(XEON, peaks={VNNI.name: replace(XEON.peak(VNNI.name), generic=True)})
    schedule = ScheduleSpace(MAPPINGS[0]).sample(np.random.default_rng(0))
    native, said = (predict(MAPPINGS[0], machine, schedule) for machine in (XEON, loops))
    assert (native.generic, native.note) == (False, "")
    assert said == replace(native, generic=True)
    assert said.note.startswith("an estimate: loops stand for the instruction")
    assert said.note in amos.viz.text(said) and "an estimate" not in amos.viz.text(native)
    figure = amos.viz.roofline(amos.Candidate(MAPPINGS[0], schedule), loops)
    assert " of " not in figure.layout.title.text


def test_an_intrinsic_without_a_rate_is_refused() -> None:
    with pytest.raises(MachineError, match=r"machine 'a100' has no rate for intrinsic 'vnni"):
        predict(_gemm(), amos.machines.get("a100"), Schedule.of({}))
    with pytest.raises(MachineError, match="model 'best': expected one of amos, amos"):
        predict(_gemm(), XEON, Schedule.of({}), model="best")
