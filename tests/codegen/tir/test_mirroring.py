"""Outputs that are written backwards, or at an index that a loop of one step shares."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import amos
from amos.codegen.tir.mirroring import mirror
from amos.cuda import GpuSchedule
from amos.cuda.codegen import draw_inputs, emulate
from amos.cuda.codegen.emulate import compiler
from amos.cuda.plan import GpuPlan
from amos.export import export
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
FMA = amos.intrinsics.get("avx2_fmadd_m8_f32_f32")
#: Output index, extents of i and j, and where NumPy puts the element of i and j.
CASES: list[tuple[str, int, int, Callable[[int, int], tuple[int, ...]]]] = [
    ("i+j", 1, 31, lambda i, j: (j,)),
    ("5*i+j", 1, 31, lambda i, j: (j,)),
    ("i+j", 31, 1, lambda i, j: (i,)),
    ("j-3*i+2", 1, 9, lambda i, j: (j + 2,)),
    ("2-i,30-j", 3, 31, lambda i, j: (2 - i, 30 - j)),
    ("j,7-i", 8, 5, lambda i, j: (j, 7 - i)),
    ("i*4-j+3", 8, 4, lambda i, j: (4 * i - j + 3,)),
    ("40-i*5+j", 8, 4, lambda i, j: (40 - 5 * i + j,)),
    ("60-i*5-j", 8, 4, lambda i, j: (60 - 5 * i - j,)),
]
NAMES = [case[0] for case in CASES]


def product(
    case: tuple[str, int, int, Callable[[int, int], tuple[int, ...]]], depth: int = 5, **kinds: str
) -> Operator:
    index, i, j, _ = case
    return Operator.parse(
        f"out[{index}] += a[i,k] * b[j,k]", extents=dict(i=i, j=j, k=depth), dtypes=kinds
    )


def expected(
    case: tuple[str, int, int, Callable[[int, int], tuple[int, ...]]],
    inputs: dict[str, np.ndarray],
    shape: tuple[int, ...],
) -> np.ndarray:
    """What the operator says, element by element."""
    _, rows, columns, place = case
    mirrored = np.zeros(shape)
    for i, j in np.ndindex(rows, columns):
        mirrored[place(i, j)] += inputs["a"][i].astype(float) @ inputs["b"][j].astype(float)
    return mirrored


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@pytest.mark.parametrize("unit", [FMA, VNNI], ids=lambda unit: unit.family)
def test_kernels(
    case: tuple[str, int, int, Callable[[int, int], tuple[int, ...]]], unit: Intrinsic
) -> None:
    space = amos.enumerate_mappings(product(case), unit, rule="gather", commute=True)
    rng = np.random.default_rng(0)
    mapping = space[int(rng.integers(len(space)))]
    inputs = random_inputs(mapping.operator, rng)
    right = expected(case, inputs, mapping.operator.output.tensor.shape)
    np.testing.assert_allclose(evaluate(mapping.operator, inputs), right, atol=1e-4)
    np.testing.assert_allclose(amos.simulate(mapping, inputs), right, atol=1e-4)
    kernel = amos.build(mapping, ScheduleSpace(mapping).sample(rng))
    np.testing.assert_allclose(kernel(**inputs), right, atol=1e-4)


@pytest.mark.skipif(compiler() is None, reason="kernels run on the host with g++ or clang++")
@pytest.mark.parametrize("case", [CASES[4], CASES[3]], ids=lambda case: case[0])
def test_cuda(case: tuple[str, int, int, Callable[[int, int], tuple[int, ...]]]) -> None:
    unit = amos.intrinsics.get("mma_sync_m16n8k16_f16_f32")
    op = product(case, depth=20, a="f16", b="f16", out="f32")
    mapping = amos.enumerate_mappings(op, unit, rule="gather")[0]
    plan = GpuPlan(mapping, GpuSchedule(steps=2, stages=2), "sm_80")
    assert emulate(plan, draw_inputs(plan, np.random.default_rng(0))).problem == ""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86-64")
def test_exported_c_with_an_epilogue(tmp_path: Path) -> None:
    """The test program's own loops agree, and what an epilogue reads turns with them."""
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("no make and C compiler here")
    op = product(CASES[4], a="u8", b="s8", out="s32").with_epilogue(
        "acc + bias[i] + other[30-j]", dtypes=dict(bias="s32", other="s32")
    )
    mapping = amos.enumerate_mappings(op, VNNI, rule="gather")[0]
    candidate = Candidate(mapping, ScheduleSpace(mapping).smallest())
    export(candidate, "c", tmp_path, name="kernel", implementation="generic")
    command = ["make", "-f", "kernel.mk", "test", "CFLAGS=-O1 -fwrapv -Wno-psabi"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "elements are right" in done.stdout, done.stdout + done.stderr


def test_what_counts_up_stays() -> None:
    mapping = amos.enumerate_mappings(product(CASES[0]), FMA, commute=True)[0]
    assert mirror(mapping) is mapping
