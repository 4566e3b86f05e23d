"""Schedule variables of a GPU: what must help, what must hurt, and by what reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import amos
from amos.cuda.blocks import Blocks
from amos.cuda.plan import GpuPlan
from amos.cuda.schedule import GpuBatch
from amos.errors import MachineError
from amos.explore.sampled import best_sampled
from amos.machine import Costs, GpuCosts, Machine, catalogue
from amos.machine.gpu_costs import multiprocessor
from amos.mapping import Mapping
from amos.perfmodel import Prediction, batch, evaluate, predict
from amos.plan import Schedule, Structure, Value, batch_of
from amos.schedule import ScheduleSpace

WMMA, MMA = (
    amos.intrinsics.get(name) for name in ("wmma_m16n16k16_f16_f32", "mma_sync_m16n8k16_f16_f32")
)
A100, V100 = (catalogue.get(name, [WMMA]) for name in ("a100", "v100"))
XEON = amos.machines.get("xeon_6240")
CONV = amos.Operator.parse(
    "out[n,k,p,q] += pad(image[n,c,p+r-1,q+s-1]) * weight[k,c,r,s]",
    extents=dict(n=4, k=64, p=14, q=14, c=32, r=3, s=3),
    shapes=dict(image=(4, 32, 14, 14)),
)
MAPPINGS = [
    mapping
    for unit in (WMMA, MMA)
    for mapping in amos.enumerate_mappings(CONV, unit, rule="access")
]
seeds = st.integers(0, 2**32 - 1)


def _gemm(m: int, n: int, k: int, dtype: str = "f16") -> Mapping:
    op = amos.operators.resolve("gemm", extents=dict(m=m, n=n, k=k), dtype=dtype)
    return amos.enumerate_mappings(op, WMMA)[0]


LARGE, LONG = _gemm(2048, 2048, 2048), _gemm(64, 64, 16384)
TILED: dict[str, Value] = {
    "bind": "warps",
    "order": "i1.tile i2.tile",
    "reduce": "r1.tile",
    "parallel": 2,
    "tile.i1.tile": 4,
    "tile.i2.tile": 2,
    "warps.i1.tile": 2,
    "warps.i2.tile": 4,
    "unroll": 2,
    "pipeline": 3,
    "align.Src1": 8,
    "align.Src2": 8,
}


def _predict(mapping: Mapping, machine: Machine = A100, /, **values: Value) -> Prediction:
    names = {name.replace("__", "."): value for name, value in values.items()}
    return predict(mapping, machine, Schedule.of(TILED | names))


def _seconds(mapping: Mapping, machine: Machine = A100, /, **values: Value) -> float:
    return _predict(mapping, machine, **values).seconds


@settings(max_examples=25)
@given(st.sampled_from(MAPPINGS), seeds, st.sampled_from([A100, V100]))
def test_a_batch_of_blocks_is_its_plans(mapping: Mapping, seed: int, machine: Machine) -> None:
    """Grid, stages, copies and shared memory, to the byte."""
    if machine is V100 and mapping.intrinsic is MMA:
        return
    drawn = ScheduleSpace(mapping, machine).draw(3, np.random.default_rng(seed))
    structure = Structure(mapping)
    blocks = Blocks(structure, machine.multiprocessor, batch_of(structure, drawn))
    assert machine.multiprocessor == multiprocessor(machine.architecture)
    for row, schedule in enumerate(drawn):
        plan = GpuPlan.of(mapping, schedule, f"sm_{machine.architecture}")
        assert blocks.grid[row] == plan.grid[0] * plan.grid[1]
        assert (blocks.threads[row], blocks.depth[row]) == (plan.threads, plan.depth)
        assert (blocks.share[row], blocks.parts[row]) == (plan.share, plan.parts)
        assert blocks.shared_bytes[row] == plan.shared_bytes
        assert blocks.registers[row] == plan.registers
        for number, source in enumerate(plan.sources):
            assert blocks.pieces[number][row] == source.vector * source.size
            assert blocks.copies[number][row] == source.turns


@settings(max_examples=6)
@given(st.sampled_from(MAPPINGS), seeds)
def test_a_batch_is_its_rows(mapping: Mapping, seed: int) -> None:
    machine = catalogue.get("a100", [mapping.intrinsic])
    space, rng = ScheduleSpace(mapping, machine), np.random.default_rng(seed)
    drawn, structure = [space.sample(rng) for _ in range(7)], Structure(mapping)
    alone = [predict(mapping, machine, schedule) for schedule in drawn]
    with pytest.MonkeyPatch.context() as patch:
        for chunk in (3, 100):
            patch.setattr(batch, "_CHUNK", chunk)
            predicted = evaluate(structure, machine, batch_of(structure, drawn))
            expected = [prediction.seconds for prediction in alone]
            assert predicted.seconds.tolist() == pytest.approx(expected, rel=1e-12)
    for prediction in alone:
        level, kind, seconds = prediction.binding
        assert prediction.bound
        row = next(row for row in prediction.rows if row.level == level)
        assert getattr(row, kind) == seconds
        assert prediction.seconds >= max(seconds, prediction.staging, prediction.launch)
        assert list(prediction.levels.index) == ["intrinsic", "shared", "L2", "HBM"]


@pytest.mark.parametrize("machine", [A100, V100])
def test_rows_in_different_banks_are_never_slower(machine: Machine) -> None:
    stages = 3 if machine is A100 else 1
    for tile in (1, 2, 4):
        single, free, four = (
            _seconds(
                LARGE, machine, align__Src1=n, align__Src2=n, tile__i1__tile=tile, pipeline=stages
            )
            for n in (0, 8, 16)
        )
        assert free <= single <= four
        assert free < four


def test_two_stages_hide_latency() -> None:
    """One warp a block, and few blocks: all that is left is waiting for copies."""
    few: dict[str, Value] = {"warps__i1__tile": 1, "warps__i2__tile": 1, "tile__i1__tile": 2}
    single, two, three = (_predict(LONG, pipeline=n, **few) for n in (1, 2, 3))
    assert two.seconds < 0.8 * single.seconds
    assert three.seconds < two.seconds
    assert "latency of copies, not hidden by another stage" in single.bound
    assert "latency of copies, one stage ahead" in two.bound
    for vector in (16, 8, 4):
        for unroll in (1, 2, 4):
            assert _seconds(LONG, pipeline=2, copy_bytes=vector, unroll=unroll, **few) <= _seconds(
                LONG, pipeline=1, copy_bytes=vector, unroll=unroll, **few
            )


def test_stages_take_shared_memory_from_other_blocks() -> None:
    structure = Structure(LARGE)
    small: dict[str, Value] = TILED | {"tile.i1.tile": 2, "tile.i2.tile": 1, "unroll": 4}
    rows = batch_of(structure, [Schedule.of(small | {"pipeline": n}) for n in (1, 2, 4)])
    occupancy = Blocks(structure, A100.multiprocessor, rows).occupancy
    assert occupancy.tolist() == sorted(occupancy, reverse=True)
    assert occupancy[0] > occupancy[-1] >= 1
    with pytest.raises(MachineError, match="shared of v100 overflow"):
        _seconds(LARGE, V100, pipeline=4, unroll=4)


def test_a_wider_copy_is_never_slower() -> None:
    for unroll in (1, 2, 4):
        for stages in (1, 3):
            wide = [
                _seconds(LARGE, copy_bytes=n, unroll=unroll, pipeline=stages) for n in (16, 8, 4)
            ]
            assert wide == sorted(wide)
            assert wide[0] < wide[-1]


def test_splitting_helps_where_blocks_are_few() -> None:
    assert _seconds(LONG, split=8) < 0.5 * _seconds(LONG, split=1)
    assert _seconds(LARGE, split=8) > 1.1 * _seconds(LARGE, split=1)
    prediction = _predict(LONG, split=8)
    assert ("L2 write", "8 parts of the reduction added by atomics") in prediction.reasons
    assert prediction.launch > A100.launch + A100.gpu.clear


def test_the_last_wave_counts() -> None:
    """One block more than there are multiprocessors takes twice as long to multiply."""
    shape: dict[str, Value] = {"warps__i1__tile": 2, "warps__i2__tile": 2, "tile__i1__tile": 5}
    units = A100.levels[0].units
    fit, over = (_gemm(160 * n, 64, 4096) for n in (units, units + 1))
    single, two = (
        _predict(mapping, tile__i2__tile=2, pipeline=4, unroll=2, **shape)
        for mapping in (fit, over)
    )
    assert two.rows[0].compute == pytest.approx(2 * single.rows[0].compute)
    assert any("blocks fill 100% of their waves" in text for _, text in single.reasons)


def test_long_loops_of_copies_wait_for_memory() -> None:
    """A thread holds a few copies in registers; ``cp.async`` has them all on their way."""
    values = TILED | {"warps.i1.tile": 1, "warps.i2.tile": 1, "copy_bytes": 4, "unroll": 1}
    structure = Structure(LARGE)
    for stages, machine, waits in ((1, A100, 16 / 4 + 1), (3, A100, 1), (2, V100, 16 / 4 + 1)):
        batch = batch_of(structure, [Schedule.of(values | {"pipeline": stages})])
        blocks = Blocks(structure, machine.multiprocessor, GpuBatch.of(batch))
        assert [int(count[0]) for count in blocks.copies] == [16, 8]
        assert blocks.waits[0] == waits


def test_unaligned_rows_are_copied_faster_in_pieces() -> None:
    """A product of 2039 cubed takes 1.4 instead of 2 times as long as one of 2048 cubed."""
    best = {}
    for size, realign in ((2048, "off"), (2039, "off"), (2039, "on")):
        structure = Structure(_gemm(size, size, size))
        drawn = ScheduleSpace(LARGE, A100).draw(400, np.random.default_rng(0))
        options = [Schedule.of(x.as_dict() | {"realign": realign}) for x in drawn]
        best[size, realign] = evaluate(structure, A100, batch_of(structure, options)).seconds.min()
    aligned, narrow, wide = best.values()
    assert aligned < wide < 0.85 * narrow


def test_bank_conflicts_are_said() -> None:
    prediction = _predict(LARGE, align__Src1=16, align__Src2=16)
    assert ("shared read", "bank conflicts of `a` reads: 4x") in prediction.reasons
    assert "bank conflicts of `b` reads: 4x" in prediction.bound
    none = _predict(LARGE)
    assert not any("conflicts" in text for _, text in none.reasons)


@settings(max_examples=20)
@given(st.sampled_from(MAPPINGS), seeds)
def test_nothing_beats_the_peak_and_slower_is_slower(mapping: Mapping, seed: int) -> None:
    machine = catalogue.get("a100", [mapping.intrinsic])
    schedule = ScheduleSpace(mapping, machine).sample(np.random.default_rng(seed))
    before = predict(mapping, machine, schedule).seconds
    interval = machine.peak(mapping.intrinsic.name).interval
    assert before >= Structure(mapping).nest.calls * interval / machine.cores
    levels = tuple(
        replace(x, read_bandwidth=x.read_bandwidth / 2, write_bandwidth=x.write_bandwidth / 2)
        for x in machine.levels
    )
    slower = [
        replace(machine, clock=machine.clock / 2),
        replace(machine, levels=levels),
        replace(machine, gpu=replace(machine.gpu, l2_latency=300, memory_latency=900)),
    ]
    for slow in slower:
        assert predict(mapping, slow, schedule).seconds >= before * (1 - 1e-12)


@pytest.mark.parametrize(("machine", "least"), [(A100, 0.5), (V100, 0.5)])
def test_a_large_product_comes_near_the_peak(machine: Machine, least: float) -> None:
    """Libraries reach some 80 % with 4096 cubed; a kernel without swizzling less."""
    mapping = _gemm(4096, 4096, 4096)
    best = best_sampled(mapping, machine, 1500, np.random.default_rng(0))
    assert best is not None
    calls = Structure(mapping).nest.calls
    ideal = calls * machine.peak(WMMA.name).interval / machine.cores
    assert least < ideal / best[0].seconds < 1


@pytest.mark.parametrize("machine", [A100, V100])
def test_a_small_layer_is_split(machine: Machine) -> None:
    """Seven by seven at batch 1 has fewer tiles than the GPU has multiprocessors."""
    op = amos.operators.conv2d(n=1, c=512, k=512, p=7, q=7, r=3, s=3, dtype="f16")
    mapping = next(
        m for m in amos.enumerate_mappings(op, WMMA) if m.groups["r1"] == ("c", "r", "s")
    )
    best = best_sampled(mapping, machine, 400, np.random.default_rng(0))
    assert best is not None and best[1].schedule.split > 1


def test_a_cpu_has_no_use_for_any_of_it() -> None:
    """What only a GPU has does not change one bit, and neither do a GPU's constants for a CPU."""
    unit = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
    op = amos.operators.resolve("resnet18:C5")
    costly = replace(XEON, gpu=GpuCosts(l2_latency=9000, copy=500))
    rng, count = np.random.default_rng(0), 0
    for mapping in amos.enumerate_mappings(op, unit, rule="access"):
        structure, space = Structure(mapping), ScheduleSpace(mapping, XEON)
        drawn = batch_of(structure, space.draw(40, rng))
        ones = np.ones(len(drawn), dtype=np.int64)
        more = replace(
            GpuBatch.of(drawn),
            warps=2 * np.ones_like(drawn.tile),
            padding=np.full((len(drawn), 2), 8),
            stages=3 * ones,
        )
        for model in ("amos", "amos+"):
            same = evaluate(structure, XEON, drawn, model).seconds
            assert same.tobytes() == evaluate(structure, costly, more, model).seconds.tobytes()
        count += len(drawn)
    assert count >= 200


def test_a_gpu_has_no_use_for_the_costs_of_a_cpu() -> None:
    costly = replace(A100, costs=Costs(overlap=1.0, reload=3.0, window=1.0))
    assert _seconds(LARGE, A100) == _seconds(LARGE, costly)


def test_costs_of_a_gpu_are_read_and_checked() -> None:
    assert catalogue.get("v100").gpu.l2_latency == 193
    text = 'gpu = {copy = "x"}\n'
    with pytest.raises(MachineError, match=r"gpu\.copy: expected a number"):
        catalogue.from_toml(text + GOOD)
    with pytest.raises(MachineError, match="gpu: copy is negative"):
        catalogue.from_toml("gpu = {copy = -1}\n" + GOOD)
    with pytest.raises(MachineError, match="sm_bandwidth and overlap must be positive"):
        GpuCosts(overlap=0)
    assert multiprocessor(100) == multiprocessor(90)


GOOD = """
name = "m"
source = "s"
cores = 4
clock = 1e9
level = [{name = "DRAM", units = 1, capacity = 0, read_bandwidth = 1.0, write_bandwidth = 1.0}]
peak = {}
"""
