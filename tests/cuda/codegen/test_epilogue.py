"""Epilogues of CUDA kernels: every bit is NumPy's, and every kernel compiles."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import amos
from amos import machines, operators
from amos.cuda.codegen import KernelText, draw_inputs, emulate
from amos.cuda.codegen.emulate import compiler
from amos.cuda.codegen.toolchain import compiler_for, portable_code
from amos.cuda.plan import GpuPlan
from amos.errors import ToolchainError
from amos.schedule import ScheduleSpace
from tests.support.epilogues import EPILOGUES

needs_compiler = pytest.mark.skipif(
    compiler() is None, reason="kernels run on the host with g++ or clang++; there is none"
)
TEXTS = EPILOGUES[:16]
UNITS = {
    "wmma_m16n16k16_s8_s32": "s8",
    "mma_sync_m16n8k32_s8_s32": "s8",
    "wmma_m16n16k16_f16_f32": "f16",
    "mma_sync_m16n8k16_bf16_f32": "bf16",
}


def program(text: str, dtypes: dict[str, str], unit: str, seed: int) -> GpuPlan:
    """A convolution whose tiles divide nothing, on a schedule of its space."""
    rng = np.random.default_rng(seed)
    op = operators.get("conv2d", dtype=UNITS[unit], n=2, c=5, k=19, p=3, q=7, r=2, s=3)
    op = op.with_epilogue(text, dtypes)
    space = amos.enumerate_mappings(op, amos.intrinsics.get(unit))
    mapping = space[int(rng.integers(len(space)))]
    schedules = ScheduleSpace(mapping, machines.get("a100"))
    assert "split" not in schedules.variables or set(schedules.variables["split"]) == {1}
    return GpuPlan.of(mapping, schedules.sample(rng), "sm_80")


def inputs(plan: GpuPlan, seed: int) -> dict[str, np.ndarray]:
    """A scale for all that leaves more of the sums than their sign."""
    drawn = draw_inputs(plan, np.random.default_rng(seed))
    scalars = {n: np.full_like(x, 0.25) for n, x in drawn.items() if x.shape == () and n == "scale"}
    return drawn | scalars


@needs_compiler
@pytest.mark.parametrize(
    ("number", "text"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case[0] % 2)) for case in enumerate(TEXTS)],
)
def test_every_bit_is_that_of_numpy(number: int, text: tuple[str, dict[str, str]]) -> None:
    plan = program(*text, list(UNITS)[number % len(UNITS)], number)
    emulation = emulate(plan, inputs(plan, number))
    assert emulation.problem == ""
    assert len(np.unique(emulation.expected[0])) > 1


@needs_compiler
def test_nan_is_kept() -> None:
    plan = program("clip(max(acc * scale[k], low[q]), -9, 9)", {}, "wmma_m16n16k16_s8_s32", 0)
    drawn = inputs(plan, 0)
    drawn["scale"][3] = drawn["low"][2] = np.nan
    emulation = emulate(plan, drawn)
    nan = np.isnan(emulation.expected[0])
    assert nan[:, 3].all() and nan[..., 2].all() and not nan.all()
    assert emulation.problem == ""


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[0])
def test_every_epilogue_and_type(unit: str, text: tuple[str, dict[str, str]]) -> None:
    for seed in range(3):
        plan = program(*text, unit, seed)
        assert emulate(plan, inputs(plan, seed)).problem == ""


@needs_compiler
@pytest.mark.parametrize(
    ("before", "after"), [("f_greater(", "f_less("), ("__float2int_rn", "static_cast<int>")]
)
def test_another_arithmetic_is_found_out(before: str, after: str) -> None:
    plan = program(*TEXTS[0], "wmma_m16n16k16_s8_s32", 0)
    source = KernelText(plan).source
    *helpers, body = source.partition('extern "C"')
    assert before in body
    wrong = "".join([*helpers, body.replace(before, after)])
    assert not emulate(plan, draw_inputs(plan, np.random.default_rng(0)), wrong).equal


@pytest.mark.parametrize(
    ("number", "architecture"),
    [
        (0, "sm_90"),
        (3, "sm_80"),
        (5, "sm_90"),
        pytest.param(0, "sm_80", marks=pytest.mark.slow),
        pytest.param(3, "sm_90", marks=pytest.mark.slow),
        pytest.param(5, "sm_80", marks=pytest.mark.slow),
    ],
)
def test_compiles(number: int, architecture: str) -> None:
    """No product and sum are fused, whatever the compiler would like to."""
    try:
        compiler_for(architecture)
    except ToolchainError as error:
        pytest.skip(str(error))
    plan = program(*TEXTS[number], list(UNITS)[number % len(UNITS)], number)
    source = KernelText(plan).source
    done = compiler_for(architecture).compile(source, architecture)
    assert done.instructions.total() > 0 and done.spills == 0
    ptx = portable_code(source, architecture)
    assert re.search(r"mul\.rn\.f32", ptx) and not re.search(r"fma\.rn\.f32", ptx)


def test_arguments() -> None:
    """The epilogue's tensors follow the sources; the output has the result's type."""
    plan = program(*TEXTS[1], "wmma_m16n16k16_s8_s32", 0)
    kinds: dict[str, Any] = plan.arguments
    assert kinds == {
        "image": "int8", "weight": "int8", "scale": "float32", "skip": "uint8", "out": "int8"
    }  # fmt: skip
    assert (plan.stored_dtype, plan.accumulator) == ("int8", "int32")
