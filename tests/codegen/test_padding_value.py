"""Kernels of operators whose padding is not zero, whatever lanes and tiles make longer."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amos
from amos import machines
from amos.codegen.amx import tiles
from amos.codegen.scheduling import schedule_candidate
from amos.cuda.codegen import KernelText, emulate
from amos.cuda.codegen.emulate import compiler, draw_inputs
from amos.cuda.plan import GpuPlan
from amos.ir import Operator
from amos.machine.limits import CpuLimits
from amos.mapping import Mapping
from amos.plan import Candidate, CpuSchedule, Schedule
from amos.plan.nest import Nest
from amos.plan.strided import StridedOperand, source_forms
from amos.plan.structure import Structure
from amos.runtime.kernel import Kernel
from amos.schedule import ScheduleSpace
from amos.schedule.constraints import In
from amos.validate import evaluate, random_inputs

LAST = "out[n,p,q,k] += pad(image[n,p+r-1,q+s-2,c], {}) * weight[k,c,r,s]"
BOTH = "out[n,k,p,q] += pad(image[n,c,p*2+r-1,q+s-1], {}) * pad(weight[k+1,c,r-1,s], {})"
DEPTHWISE = "out[n,p,q,c] += pad(image[n,p+r-1,q+s-1,c], {}) * weight[c,r,s]"
SUM = "out[i,j] += pad(image[i+c-2], {}) * weight[j]"
SIZES = dict(n=1, k=9, p=3, q=7, c=5, r=3, s=3)
CASES = {
    "channels last": (LAST, SIZES),
    "both": (BOTH, SIZES),
    "depthwise": (DEPTHWISE, dict(n=1, p=5, q=6, c=16, r=3, s=3)),
    "sum of a window": (SUM, dict(i=5, j=6, c=10)),
}
VNNI = [f"vnni_dpbusd_{side}m16k4_u8_s8_s32" for side in ("", "lhs_", "lanes_")]
BYTES = "amx_tdpbusd_m16n16k64_u8_s8_s32"
BFLOATS = "amx_tdpbf16ps_m16n16k32_bf16_f32"


def operator(
    name: str, kinds: tuple[str, str, str], *values: float, packed: bool = True
) -> Operator:
    text, extents = CASES[name]
    dtypes = dict(zip(("image", "weight", "out"), kinds, strict=True))
    filled = text.format(*values, *values)
    return Operator.parse(filled, extents, dtypes, constants=("weight",) if packed else ())


def schedules(mapping: Mapping, rng: np.random.Generator) -> list[Schedule]:
    """One that copies vectors, if there is one, and any other."""
    space = ScheduleSpace(mapping)
    fixed = [space.fix([In("copy", ("vectors",))])] if "copy" in space.variables else []
    return [each.sample(rng) for each in (*fixed, space)]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_cpu(name: str, packed: bool) -> None:
    rng = np.random.default_rng(len(name))
    op = operator(name, ("u8", "s8", "s32"), 128, -3, packed=packed)
    inputs = random_inputs(op, rng)
    expected = evaluate(op, inputs)
    for unit in VNNI[::2] if packed else VNNI[:2]:
        space = amos.enumerate_mappings(op, unit, rule="gather", commute=True)
        if not len(space):
            continue
        mapping = space[int(rng.integers(len(space)))]
        candidate = Candidate(mapping, schedules(mapping, rng)[0])
        kernel = amos.build(candidate, implementation="generic")
        np.testing.assert_array_equal(kernel(**inputs), expected, str(candidate))


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_cpu_floats(kind: str) -> None:
    unit = {"f32": "avx512_fmadd_m16_f32_f32", "bf16": "avx512bf16_dpbf16ps_m16k2_bf16_f32"}[kind]
    rng = np.random.default_rng(0)
    op = operator("channels last", (kind, kind, "f32"), 0.5)
    inputs = random_inputs(op, rng)
    space = amos.enumerate_mappings(op, unit, rule="gather")
    mapping = space[int(rng.integers(len(space)))]
    for schedule in schedules(mapping, rng):
        kernel = amos.build(Candidate(mapping, schedule), implementation="generic")
        np.testing.assert_allclose(kernel(**inputs), evaluate(op, inputs), 1e-4, 1e-4)


def test_vectors_with_the_value_in_them() -> None:
    op = operator("depthwise", ("u8", "s8", "s32"), 200)
    space = amos.enumerate_mappings(op, VNNI[2])
    mapping = next(m for m in space if m.groups == {"i1": ("c",), "r1": ("s",)})
    schedule = schedules(mapping, np.random.default_rng(0))[0]
    kernel = amos.build(Candidate(mapping, schedule), implementation="generic")
    assert "T.Shuffle" in kernel.source and "T.Broadcast(T.uint8(200)" in kernel.source
    inputs = random_inputs(op, np.random.default_rng(1))
    np.testing.assert_array_equal(kernel(**inputs), evaluate(op, inputs))


def test_only_zeros_are_skipped() -> None:
    kinds, rng = ("u8", "s8", "s32"), np.random.default_rng(0)
    skipped = {}
    for value in (0, 128):
        op = operator("channels last", kinds, value)
        space = amos.enumerate_mappings(op, VNNI[0])
        mapping = next(m for m in space if m.groups == {"i1": ("k",), "r1": ("c",)})
        smallest = CpuSchedule.of(ScheduleSpace(mapping).smallest().as_dict())
        schedule = replace(smallest, reduce=("r", "s", "r1.tile"))
        kernel = amos.build(Candidate(mapping, schedule), implementation="generic")
        inputs = random_inputs(op, rng)
        np.testing.assert_array_equal(kernel(**inputs), evaluate(op, inputs))
        # The indices p+r-1 and q+s-2 are asked whether a step is in the image.
        skipped[value] = kernel.source.count("if ") - kernel.source.count("else")
        assert len(Structure(mapping).borders) == (2 if value == 0 else 0)
    assert skipped[128] < skipped[0]


def _scalar(_: object, loop: Any, mutator: Any) -> Any:
    """In place of AMX instructions the loops that they stand for."""
    return mutator.default_mutate(loop)


@pytest.mark.parametrize("unit", [BYTES, BFLOATS])
@pytest.mark.parametrize("name", CASES)
def test_copies_for_tile_registers(name: str, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles._Emitter, "emit", _scalar)
    kinds = ("u8", "s8", "s32") if unit == BYTES else ("bf16", "bf16", "f32")
    op, rng = operator(name, kinds, 128, 3), np.random.default_rng(len(name))
    inputs = random_inputs(op, rng)
    expected = evaluate(op, inputs)
    space = list(amos.enumerate_mappings(op, unit, rule="gather"))
    strided = [m for m in space if isinstance(source_forms(Nest(m))[0], StridedOperand)]
    for mapping in (*strided[-2:], *space[:2]):
        candidate = Candidate(mapping, ScheduleSpace(mapping).sample(rng))
        program, module = schedule_candidate(candidate, "native", CpuLimits.here())
        got = Kernel(candidate, program, "generic", module)(**inputs)
        np.testing.assert_allclose(got, expected, 1e-5, 1e-5, err_msg=str(candidate))


def test_lanes_beyond_a_sum_that_weights_do_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a tensor are read as they lie only where what follows them adds nothing."""
    monkeypatch.setattr(tiles._Emitter, "emit", _scalar)
    sizes = dict(i=5, j=6, c=10)
    kinds = dict(a="u8", b="s8", out="s32")
    texts: dict[str, dict[str, tuple[int, ...]]] = {
        "out[i,j] += a[i,c] * b[j]": {"a": (5, 64)},
        "out[i,j] += a[i+c] * b[j]": {},
        "out[i,j] += pad(a[i+c-2]) * b[j]": {},
        "out[i,j] += pad(a[i,c-2], 9) * b[j]": {},
    }
    for text, shapes in texts.items():
        op = Operator.parse(text, sizes, kinds, shapes=shapes)
        (mapping, *_), rng = amos.enumerate_mappings(op, BYTES, "gather"), np.random.default_rng(0)
        candidate = Candidate(mapping, ScheduleSpace(mapping).sample(rng))
        program, module = schedule_candidate(candidate, "native", CpuLimits.here())
        inputs = random_inputs(op, rng)
        got = Kernel(candidate, program, "generic", module)(**inputs)
        np.testing.assert_array_equal(got, evaluate(op, inputs), text)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("unit", "kinds", "values", "name"),
    [
        ("wmma_m16n16k16_f16_f32", ("f16", "f16", "f32"), (0.5, -1.5), "channels last"),
        ("mma_sync_m16n8k32_s8_s32", ("s8", "s8", "s32"), (-128, 3), "both"),
        ("mma_sync_m16n8k16_bf16_f32", ("bf16", "bf16", "f32"), (-0.75, 2), "both"),
    ],
)
def test_cuda(unit: str, kinds: tuple[str, str, str], values: tuple[float, ...], name: str) -> None:
    rng, machine = np.random.default_rng(3), machines.get("a100")
    space = amos.enumerate_mappings(operator(name, kinds, *values), unit, rule="gather")
    mapping = space[int(rng.integers(len(space)))]
    plan = GpuPlan.of(mapping, ScheduleSpace(mapping, machine).sample(rng), "sm_80")
    assert emulate(plan, draw_inputs(plan, rng)).problem == ""


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_cuda_copies_that_pass_no_register() -> None:
    op = Operator.parse(
        "out[p,k] += pad(image[p+r-1,c], -2) * weight[r,c,k]",
        dict(p=19, k=16, r=3, c=32),
        dict(image="s8", weight="s8", out="s32"),
    )
    machine, rng = machines.get("a100"), np.random.default_rng(0)
    space = amos.enumerate_mappings(op, "mma_sync_m16n8k32_s8_s32")
    mapping = next(m for m in space if m.groups["r1"] == ("c",))
    for schedule in ScheduleSpace(mapping, machine).draw(40, rng):
        plan = GpuPlan.of(mapping, schedule, "sm_80")
        text = KernelText(plan).source
        if "else copy_async" in text:
            assert f"{0xFEFEFEFE}u" in text  # four bytes of -2
            assert emulate(plan, draw_inputs(plan, rng)).problem == ""
            return
    raise AssertionError("no schedule copies asynchronously")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize(("kind", "value"), [("u8", 128), ("f32", 0.1)])
def test_exported_c(kind: str, value: float, tmp_path: Path) -> None:
    kinds = ("u8", "s8", "s32") if kind == "u8" else ("f32", "f32", "f32")
    value = float(np.float32(value))
    op = operator("channels last", kinds, value)
    unit = VNNI[0] if kind == "u8" else "avx512_fmadd_m16_f32_f32"
    mapping = amos.enumerate_mappings(op, unit)[-1]
    schedule = schedules(mapping, np.random.default_rng(0))[0]
    amos.export(
        Candidate(mapping, schedule), format="c", out=tmp_path, name="padded",
        implementation="generic",
    )  # fmt: skip
    built = ["gcc", "-O1", "-march=native", "-o", "t", "padded_test.c", "padded.c", "-lm"]
    subprocess.run(built, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "t"], cwd=tmp_path).returncode == 0
