"""Schedules of warps: what a thread block may hold, counted by hand."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import amos
from amos.cuda import GpuSchedule
from amos.cuda.schedule import GpuBatch
from amos.errors import ScheduleError, UnknownNameError
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.mapping import Mapping
from amos.perfmodel import evaluate
from amos.plan import Schedule, Structure, batch_of
from amos.plan.strided import destination_form, source_forms
from amos.schedule import ScheduleSpace
from amos.schedule.space import spaces_of

WMMA = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
A100, V100 = amos.machines.get("a100"), amos.machines.get("v100")
XEON = amos.machines.get("xeon_6240")
GEMM = amos.operators.resolve("gemm", extents=dict(m=1024, n=1024, k=1024))
(MAPPING,) = amos.enumerate_mappings(GEMM, WMMA)
CONV = amos.enumerate_mappings(amos.operators.resolve("resnet18:C5"), WMMA)


def _numbers(space: ScheduleSpace, schedule: Schedule) -> tuple[int, int, int]:
    """Threads, registers and bytes of shared memory of one thread block."""
    assert isinstance(schedule, GpuSchedule)
    loops = [loop.name for loop in space.context.spatial]
    tile = {name: schedule.tile[name] for name in loops}
    span = {name: tile[name] * schedule.blocks[name] for name in loops}
    threads = 32 * prod(schedule.blocks[name] for name in loops)
    fragments, used = [], 0
    for op in (*source_forms(space.nest), destination := destination_form(space.nest)):
        mine = [n for n in loops if any(n in dim.index.names for dim in op.dims)]
        fragments.append(prod(tile[n] for n in mine))
        if op != destination:
            rows = 16 * prod(span[n] for n in mine)
            used += rows * (16 + schedule.padding[op.name]) * 2
    live = fragments[-1] + min(fragments[:-1]) + 1
    # 256 values of 32 bits, or twice 256 of 16 bits, on 32 threads: eight registers.
    registers = threads * (live * 8 + 56)
    return (
        threads,
        registers,
        used * schedule.steps * schedule.stages,
    )


@pytest.mark.parametrize("machine", [A100, V100])
def test_a_thread_block_fits(machine: Machine) -> None:
    capacity = {"a100": 163 << 10, "v100": 96 << 10}[machine.name]
    for mapping in (MAPPING, *CONV[::6]):
        space = ScheduleSpace(mapping, machine)
        drawn = space.draw(60, np.random.default_rng(0))
        assert len(drawn) == 60
        for schedule in drawn:
            threads, registers, used = _numbers(space, schedule)
            assert threads <= 1024
            assert registers <= 65536
            assert used <= capacity
            values = space.values(schedule)
            assert values["threads"] == threads
            assert values["registers.block"] == registers
            assert values["registers.thread"] * threads == registers
            assert values["shared.used"] == used


@pytest.mark.parametrize("mapping", [MAPPING, *CONV[::6]])
def test_the_model_finds_no_overflow_in_what_is_feasible(mapping: Mapping) -> None:
    structure = Structure(mapping)
    drawn = ScheduleSpace(mapping, A100).draw(100, np.random.default_rng(1))
    assert np.isfinite(evaluate(structure, A100, batch_of(structure, drawn)).seconds).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"warps.i1.tile": 8, "warps.i2.tile": 8}, "2048 threads in a block, but 1024 at most"),
        (
            {"warps.i1.tile": 8, "warps.i2.tile": 4, "tile.i1.tile": 2, "tile.i2.tile": 4},
            "147456 registers for a thread block, but 65536 are there",
        ),
        (
            {"warps.i1.tile": 8, "tile.i1.tile": 5, "pipeline": 4, "unroll": 4},
            "335872 bytes of shared in use by one thread block, but 166912 are there",
        ),
        (
            {"warps.i1.tile": 4, "tile.i1.tile": 8, "pipeline": 3, "unroll": 2, "align.Src1": 16},
            "199680 bytes",
        ),
        ({"tile.i1.tile": 5, "tile.i2.tile": 5}, "304 registers for a thread, but 255 are there"),
        ({"align.Src1": 3}, "align.Src1 = 3 is not one of (0, 8, 16)"),
    ],
)
def test_what_is_broken_is_named(changes: dict[str, int], words: str) -> None:
    space = ScheduleSpace(MAPPING, A100)
    schedule = Schedule.of(space.smallest().as_dict() | changes)
    with pytest.raises(ScheduleError) as caught:
        space.check(schedule)
    assert words in str(caught.value)


def test_only_architectures_with_asynchronous_copies_have_a_pipeline() -> None:
    assert ScheduleSpace(MAPPING, A100).variables["pipeline"] == (1, 2, 3, 4)
    assert ScheduleSpace(MAPPING, V100).variables["pipeline"] == (1,)


def test_a_split_needs_a_step_for_each_part() -> None:
    short = amos.operators.resolve("gemm", extents=dict(m=256, n=256, k=48))
    (mapping,) = amos.enumerate_mappings(short, WMMA)
    assert ScheduleSpace(mapping, A100).variables["split"] == (1, 2)
    # Of nine, three and three steps the outermost ones count.
    space = next(s for s in (ScheduleSpace(m, A100) for m in CONV) if len(s.context.reduce) > 1)
    extents = {loop.name: loop.extent for loop in space.context.reduce}
    for schedule in space.draw(200, np.random.default_rng(0)):
        assert schedule.reduce and schedule.split <= extents[schedule.reduce[0]]
    order = next(x for x in space.variables["reduce"] if str(x).startswith("r "))
    wrong = Schedule.of(space.smallest().as_dict() | {"split": 8, "reduce": order})
    with pytest.raises(ScheduleError, match="a reduction of 3 steps in 8 parts"):
        space.check(wrong)


def test_vectors_divide_rows() -> None:
    assert ScheduleSpace(MAPPING, A100).variables["copy_bytes"] == (16, 8, 4)
    narrow = amos.intrinsics.get("wmma_m32n8k16_s8_s32")
    machine = amos.machines.get("a100")
    op = amos.operators.resolve("gemm", extents=dict(m=256, n=256, k=256), dtype="s8")
    (mapping,) = amos.enumerate_mappings(op, narrow)
    assert ScheduleSpace(mapping, machine).variables["copy_bytes"] == (8, 4)
    assert ScheduleSpace(mapping, machine).variables["align.Src1"] == (0, 16, 32)


def test_the_warps_of_a_block_are_not_blocks_of_a_core() -> None:
    space = ScheduleSpace(MAPPING, A100)
    loops = [loop.name for loop in space.context.spatial]
    schedule = Schedule.of(space.smallest().as_dict() | {f"warps.{n}": 2 for n in loops})
    space.check(schedule)
    batch = batch_of(Structure(MAPPING), [schedule])
    assert isinstance(batch, GpuBatch)
    assert batch.block is None
    assert batch.warps is not None and batch.warps.tolist() == [[2, 2]]


def test_a_machine_without_shared_memory_has_none_of_it() -> None:
    host = ScheduleSpace(CONV[0], None)
    assert not {"bind", "pipeline", "align.Src1"} & host.variables.keys()
    assert host.variables["split"] == (1,)


@pytest.mark.parametrize(
    ("unit", "machine", "own"),
    [
        (WMMA, A100, {"warps", "copy_bytes", "bind", "align", "pipeline", "raster"}),
        (amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32"), XEON, {"block", "vector"}),
    ],
)
def test_the_optimizations_of_amos_are_all_variables(
    unit: Intrinsic, machine: Machine, own: set[str]
) -> None:
    """AMOS, Table 3a: tile, fuse, bind, parallel, cache, unroll and vectorize."""
    always = {"tile", "order", "reduce", "parallel", "unroll", "split", "stage"}
    fused = []
    for mapping in amos.enumerate_mappings(amos.operators.resolve("resnet18:C5"), unit):
        space = ScheduleSpace(mapping, machine)
        if space.context.gathered and space.context.reduce:
            # Copies are realigned only where rows are contiguous, but not aligned.
            kinds = {name.partition(".")[0] for name in space.variables} - {"copy", "realign"}
            assert kinds == always | own
        parts = [c for c in space.csp.constraints if c.rule == "C2"]
        assert all(c.type == "PROD" for c in parts)
        fused += [c for c in parts if len(c.names) > 2]
    assert fused


@pytest.mark.parametrize(
    "key", ["warps.i1.tile", "warps_i1_tile", "block.i1.tile", "block_i1_tile"]
)
def test_variables_are_fixed_by_their_keys_and_those_of_earlier_records(key: str) -> None:
    (space,) = spaces_of([MAPPING], A100, [(key, 4), ("vector", 8)]).values()
    schedule = space.sample(np.random.default_rng(0)).as_dict()
    assert (schedule["warps.i1.tile"], schedule["copy_bytes"]) == (4, 8)


def test_a_variable_that_a_space_lacks_is_named_as_it_was_written() -> None:
    with pytest.raises(UnknownNameError, match="unknown schedule variable 'block.x'"):
        spaces_of([MAPPING], A100, [("block.x", 4)])
