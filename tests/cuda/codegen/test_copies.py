"""Where copies go: the digits of a copy's number, and addresses that compilers see to be shared."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import amos
from amos import operators
from amos.cuda import GpuSchedule
from amos.cuda.codegen import KernelText, compilers
from amos.cuda.codegen.copies import _Gather
from amos.cuda.codegen.expression import at_most, text
from amos.cuda.codegen.toolchain import portable_code
from amos.cuda.plan import GpuPlan


@given(
    st.sampled_from([32, 64, 96, 128, 256, 512]),
    st.lists(st.sampled_from([1, 2, 3, 4, 5, 8, 16]), min_size=1, max_size=5),
)
def test_digits_of_thread_and_turn(threads: int, extents: list[int]) -> None:
    """Each digit is that of the number itself, whatever the threads and extents."""
    copies = 1
    for extent in extents:
        copies *= extent
    gather = SimpleNamespace(
        source=SimpleNamespace(copies=copies, turns=-(-copies // threads)),
        plan=SimpleNamespace(threads=threads),
    )
    weight = 1
    for extent in extents:
        value = _Gather._digit(cast("_Gather", gather), weight, extent)
        code = compile(text(value).replace("/", "//"), "digit", "eval")
        for e in {*range(min(copies, 700)), copies - 1}:
            known = {"e": e, "thread": e % threads, "i": e // threads}
            found = eval(code, known)  # noqa: S307 - our own arithmetic
            assert found == e // weight % extent <= at_most(value)
        weight *= extent


def test_unrolled_copies_share_an_address() -> None:
    """With as many threads as a row of fragments has copies, no place is taken apart anew."""
    op = operators.resolve("gemm", extents=dict(m=128, n=128, k=256))
    unit = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    (mapping,) = amos.enumerate_mappings(op, unit)
    loops = ("i1.tile", "i2.tile")
    each = dict.fromkeys(loops, 2)
    schedule = GpuSchedule(tile=each, warps=each, steps=4, stages=3)
    source = KernelText(GpuPlan(mapping, schedule, "sm_80")).source
    assert "const int at_row = (thread / 2) % 16;" in source
    assert not re.search(r"= \(?e\b", source)


@pytest.mark.parametrize(
    "unit", ["wmma_m8n32k16_bf16_f32", "wmma_m16n16k8_tf32_f32", "wmma_m8n8k4_f64_f64"]
)
def test_fragments_come_from_shared_memory(unit: str) -> None:
    """Not by generic loads, which the functions of the headers become for these types."""
    if not any("sm_80" in found.architectures for found in compilers()):
        pytest.skip("no CUDA compiler for sm_80 here")
    intrinsic = amos.intrinsics.get(unit)
    op = operators.get("gemm", m=64, n=64, k=64, dtype=tuple(intrinsic.dtypes))
    (mapping,) = amos.enumerate_mappings(op, intrinsic)
    code = portable_code(KernelText(GpuPlan(mapping, GpuSchedule(), "sm_80")).source, "sm_80")
    moves = re.findall(r"wmma\.(?:load|store)\.[^\s]*", code)
    assert len(moves) >= 3 and all(".shared." in move for move in moves)
