"""Where copies go: addresses that compilers see to be shared."""

from __future__ import annotations

import re

import pytest

import amos
from amos import operators
from amos.cuda import GpuSchedule
from amos.cuda.codegen import KernelText, compilers
from amos.cuda.codegen.toolchain import portable_code
from amos.cuda.plan import GpuPlan


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
