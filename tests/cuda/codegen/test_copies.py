"""Where copies go, addresses that compilers see to be shared, and which block does what."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import amos
from amos import operators
from amos.cuda import GpuSchedule
from amos.cuda.codegen import KernelText, compilers
from amos.cuda.codegen.emulate import compiler, draw_inputs, emulate
from amos.cuda.codegen.toolchain import portable_code
from amos.cuda.plan import GpuPlan
from amos.errors import TaskMappingError
from amos.ir.tasks import repeat, spatial
from amos.schedule import ScheduleSpace


def test_unrolled_copies_share_an_address() -> None:
    """With as many threads as a row of fragments has copies, no place is taken apart anew."""
    op = operators.resolve("gemm", extents=dict(m=128, n=128, k=256))
    unit = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    (mapping,) = amos.enumerate_mappings(op, unit)
    loops = ("i1.tile", "i2.tile")
    extents = dict.fromkeys(loops, 2)
    schedule = GpuSchedule(tile=extents, warps=extents, steps=4, stages=3)
    source = KernelText(GpuPlan(mapping, schedule, "sm_80")).source
    assert "const int at_row = (thread / 2) % 16;" in source
    assert not re.search(r"= \(?e\b", source)


def _product(size: int, unit: str, dtype: str, **values: Any) -> GpuPlan:
    op = operators.resolve("gemm", extents=dict(m=size, n=size - 2, k=size + 2), dtype=dtype)
    (mapping,) = amos.enumerate_mappings(op, unit)
    warps = dict.fromkeys(("i1.tile", "i2.tile"), 2)
    return GpuPlan(mapping, GpuSchedule(warps=warps, steps=2, **values), "sm_80")


@pytest.mark.parametrize(
    ("unit", "dtype", "stages"),
    [("mma_sync_m16n8k16_f16_f32", "f16", 2), ("wmma_m16n16k16_s8_s32", "s8", 1)],
)
def test_unaligned_rows_are_shifted_into_place(unit: str, dtype: str, stages: int) -> None:
    """Rows that begin anywhere, and end before a piece does."""
    plan = _product(43, unit, dtype, stages=stages, realign="on")
    assert [(x.is_realigned, x.vector * x.size, x.is_async) for x in plan.sources] == [
        (True, 16, False)
    ] * 2
    assert "read_unaligned(" in KernelText(plan).source
    if compiler() is None:
        pytest.skip("no C++ compiler here to run a kernel on the host")
    assert not emulate(plan, draw_inputs(plan, np.random.default_rng(0))).problem


def test_aligned_rows_are_copied_as_they_lie() -> None:
    """The option changes nothing where nothing is gained, and is off by default."""
    unit = "mma_sync_m16n8k16_f16_f32"
    plain = _product(43, unit, "f16")
    assert [x.vector for x in plain.sources] == [1, 1]
    assert "read_unaligned" not in KernelText(plain).source
    op = operators.resolve("gemm", extents=dict(m=48, n=48, k=48), dtype="f16")
    (mapping,) = amos.enumerate_mappings(op, unit)
    texts = {
        KernelText(GpuPlan(mapping, GpuSchedule(realign=realign), "sm_80")).source
        for realign in ("off", "on")
    }
    assert len(texts) == 1
    assert "realign" not in ScheduleSpace(mapping, amos.machines.get("a100")).variables


def test_blocks_in_an_order_of_ones_own_compute_the_same() -> None:
    plan = _product(66, "mma_sync_m16n8k16_f16_f32", "f16")
    assert plan.grid_tasks == spatial(3, 4)
    columns = spatial(1, 2) * spatial(3, 1) * spatial(1, 2)
    source = KernelText(plan, grid=columns).source
    assert source != KernelText(plan).source
    with pytest.raises(TaskMappingError, match=r"12 blocks and a tile of \(3, 4\) for each, got 6"):
        KernelText(plan, grid=spatial(3, 2))
    halved = (spatial(12) * repeat(2)).clip(12).reshape(3, 4)
    with pytest.raises(TaskMappingError, match="12 blocks in 2 turns"):
        KernelText(plan, grid=halved)
    if compiler() is None:
        pytest.skip("no C++ compiler here to run a kernel on the host")
    assert not emulate(plan, draw_inputs(plan, np.random.default_rng(0)), source).problem


@pytest.mark.parametrize(
    "unit", ["wmma_m8n32k16_bf16_f32", "wmma_m16n16k8_tf32_f32", "wmma_m8n8k4_f64_f64"]
)
def test_fragments_come_from_shared_memory(unit: str) -> None:
    """Not by generic loads, which the functions of the headers become for these types."""
    if not any("sm_80" in compiler.architectures for compiler in compilers()):
        pytest.skip("no CUDA compiler for sm_80 here")
    intrinsic = amos.intrinsics.get(unit)
    op = operators.get("gemm", m=64, n=64, k=64, dtype=tuple(intrinsic.dtypes))
    (mapping,) = amos.enumerate_mappings(op, intrinsic)
    code = portable_code(KernelText(GpuPlan(mapping, GpuSchedule(), "sm_80")).source, "sm_80")
    moves = re.findall(r"wmma\.(?:load|store)\.[^\s]*", code)
    assert len(moves) >= 3 and all(".shared." in move for move in moves)
