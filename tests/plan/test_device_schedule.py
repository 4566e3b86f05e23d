"""The order of groups and the fragments of a worker, on all parallel devices."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

import amos
from amos.cuda import GpuPlan, GpuSchedule
from amos.cuda.codegen import KernelText
from amos.errors import ScheduleError, TaskMappingError
from amos.ir.tasks import custom, spatial
from amos.mapping import Mapping
from amos.opencl import OpenClPlan, OpenClSchedule
from amos.opencl.codegen import KernelText as OpenClText
from amos.plan import Schedule
from amos.plan.device_schedule import DeviceSchedule
from amos.schedule import ScheduleSpace
from amos.schedule.constraints import In

A100, POCL = amos.machines.get("a100"), amos.machines.get("pocl")
MMA = "mma_sync_m16n8k16_f16_f32"


def gemm(m: int, n: int, k: int = 64, unit: str = MMA) -> Mapping:
    kind = "f32" if unit.startswith("opencl") else "f16"
    op = amos.operators.get("gemm", dtype=kind, m=m, n=n, k=k)
    return amos.enumerate_mappings(op, unit)[0]


def plans(**own: Any) -> tuple[GpuPlan, OpenClPlan]:
    """Eight rows and six columns of groups, on both targets."""
    cuda = GpuSchedule(tile={"i1.tile": 2}, warps={"i1.tile": 3, "i2.tile": 2}, **own)
    opencl = OpenClSchedule(tile={"m": 2}, items={"m": 3, "i1.tile": 2}, **own)
    return (
        GpuPlan(gemm(16 * 48, 8 * 12), cuda, "sm_80"),
        OpenClPlan.of(gemm(48, 8 * 12, unit="opencl_mad_m8_f32"), opencl, POCL),
    )


@pytest.mark.parametrize(("raster", "expected"), [(1, 1), (2, 2), (8, 8), (12, 4), (5, 1)])
def test_rows_of_groups_take_turns_at_each_column(raster: int, expected: int) -> None:
    for plan in plans(raster=raster):
        assert plan.raster == expected
        order = [plan.grid_tasks.tasks(group)[0] for group in range(48)]
        first = [(row, column) for column in range(2) for row in range(expected)]
        assert order[: 2 * expected] == first
        assert sorted(order) == [(row, column) for row in range(8) for column in range(6)]
        assert (f"{expected} rows take turns" in str(plan)) == (expected > 1)


@pytest.mark.parametrize("fragments", ["blocked", "interleaved"])
def test_every_fragment_is_of_one_worker(fragments: str) -> None:
    for plan in plans(fragments=fragments, raster=4):
        tasks = plan.tasks
        owned = [tasks.tasks(worker) for worker in range(tasks.workers)]
        assert len({task for each in owned for task in each}) == prod(tasks.shape)
        distance = 3 if fragments == "interleaved" else 1
        assert owned[0] == [(0, 0), (distance, 0)]
        assert ("interleaved" in str(plan)) == (fragments == "interleaved")


def test_defaults_are_not_written_so_that_earlier_records_stay_as_they_are() -> None:
    for kind in (GpuSchedule, OpenClSchedule):
        assert not {"raster", "fragments"} & kind(tile={"i1.tile": 2}).as_dict().keys()
        schedule = kind(raster=4, fragments="interleaved")
        assert kind.of(schedule.as_dict()) == schedule
        with pytest.raises(ScheduleError, match="expected blocked or interleaved"):
            kind.of({"fragments": "cyclic"})
        with pytest.raises(ScheduleError, match="a whole number, 1 or more"):
            kind(raster=0)


def test_default_fragments_and_rasters_leave_the_text_as_it_is() -> None:
    """Nothing but the places of blocks and fragments differs."""
    plain, raster, mixed = (
        KernelText(each[0]).source.splitlines()
        for each in (plans(), plans(raster=4), plans(fragments="interleaved"))
    )
    changed = [b for a, b in zip(plain, raster, strict=True) if a != b]
    assert len(changed) == 2
    assert all("const int first_" in line for line in changed)
    assert len(plain) == len(mixed)
    assert any("t_i1_tile * 3" in line for line in mixed)


def test_users_state_grids_of_their_own() -> None:
    """Of both targets; rows are taken in another order here."""
    grid = custom((8, 6), 48, lambda group, turn: (group * 7 % 8, group // 8))
    for plan, kernel in zip(plans(), (KernelText, OpenClText), strict=True):
        lines = kernel(plan, grid=grid).source.splitlines()
        rows = [line for line in lines if "int first_" in line]
        assert any("* 7) % 8" in line for line in rows)
        with pytest.raises(TaskMappingError, match="expected 48 blocks and a tile of"):
            kernel(plan, grid=spatial(6, 8))


def seconds(size: int, raster: int) -> float:
    # Rows of blocks along i1 are 128 elements, of which 40 MB of cache hold 8 of 16384 × 2 bytes.
    tile, warps = {"i1.tile": 4, "i2.tile": 8}, {"i1.tile": 2, "i2.tile": 2}
    schedule = GpuSchedule(tile=tile, warps=warps, stages=3, steps=2, raster=raster)
    return amos.predict(gemm(size, size, size), A100, schedule).seconds


def test_the_model_predicts_rasters_to_save_reads_of_large_matrices_alone() -> None:
    assert seconds(2048, 8) == seconds(2048, 1)
    assert seconds(16384, 8) < 0.9 * seconds(16384, 1)


def test_blocks_that_run_together_read_a_column_once() -> None:
    """A product of 8192 is bound by Tensor Cores, not by memory."""
    assert 3.5e-3 < seconds(8192, 1) < 6e-3


def test_searches_on_gpus_choose_a_raster() -> None:
    space = ScheduleSpace(gemm(512, 512), A100)
    assert space.variables["raster"] == (1, 2, 4, 8)
    drawn = space.draw(20, np.random.default_rng(0))
    assert all(isinstance(each, DeviceSchedule) for each in drawn)
    assert len({each.as_dict().get("raster", 1) for each in drawn}) > 1
    assert all(Schedule.of(each.as_dict()) == each for each in drawn)


def test_rasters_that_come_to_the_same_kernel_are_one_candidate() -> None:
    """One or two rows of blocks, or one column, leave fewer turns than asked."""
    space = ScheduleSpace(gemm(512, 512), A100)
    drawn = space.draw(200, np.random.default_rng(0))
    plans = [GpuPlan.of(space.mapping, each, "sm_80") for each in drawn]
    assert all(plan.raster == plan.schedule.raster for plan in plans)
    assert all(plan.raster == 1 for plan in plans if [*plan.blocks.values()][-1] == 1)
    assert any(plan.raster > 1 for plan in plans)
    texts = [KernelText(plan).source for plan in plans]
    assert len({*texts}) == len({*drawn}) == len(drawn)
    fixed = space.fix([In("raster", (8,), "given")])
    assert {x.as_dict()["raster"] for x in fixed.draw(20, np.random.default_rng(0))} == {8}
