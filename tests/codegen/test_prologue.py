"""Kernels of operators whose sources are computed, on every road."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amos
from amos.codegen.amx import tiles
from amos.codegen.scheduling import schedule_candidate
from amos.cuda.codegen import emulate
from amos.cuda.codegen.emulate import compiler, draw_inputs
from amos.cuda.codegen.kernel import launch_of
from amos.cuda.plan import GpuPlan
from amos.errors import BuildError
from amos.ir import Operator
from amos.machine.limits import CpuLimits
from amos.plan import Candidate
from amos.plan.nest import Nest
from amos.plan.strided import StridedOperand, source_forms
from amos.plan.structure import Structure
from amos.runtime.kernel import Kernel
from amos.runtime.values import draw_values, reference
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs

LAST = "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c], {}) * weight[k,c,r,s]"
FIRST = "out[n,k,p,q] += pad(image[n,c,p*2+r-1,q+s-1], {}) * weight[k,c,r,s]"
GEMM = "out[i,j] += a[i,k] * weight[k,j]"
SIZES = dict(n=1, k=9, p=3, q=7, c=5, r=3, s=3)
BYTES = "amx_tdpbusd_m16n16k64_u8_s8_s32"
BFLOATS = "amx_tdpbf16ps_m16n16k32_bf16_f32"


def quantized(text: str = LAST) -> Operator:
    """A transposed tensor dequantized, shifted and quantized again; folded weights."""
    op = Operator.parse(text.format(7), SIZES, dict(image="u8", weight="s8", out="s32"))
    layout = "image[n,h,w,c]" if text == LAST else "image[n,c,h,w]"
    op = op.with_prologue(layout, "relu(x[n,w,h,c] * scale[c]) + shift[]", {"shift": "s32"})
    return op.with_prologue("weight", "w[k,c,r,s] - zero[k]", {"w": "s8", "zero": "s16"})


def floats(kind: str, text: str = LAST) -> Operator:
    op = Operator.parse(text.format(0.5), SIZES, dict(image=kind, weight=kind, out="f32"))
    layout = "image[n,h,w,c]" if text == LAST else "image[n,c,h,w]"
    return op.with_prologue(layout, "relu(image[n,h,w,c] * scale[c])", {"image": "s8"})


def check(op: Operator, unit: str, draws: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    space = amos.enumerate_mappings(op, unit, rule="gather", commute=True)
    inputs = random_inputs(space[0].operator, rng)
    expected = evaluate(space[0].operator, inputs)
    for _ in range(draws):
        mapping = space[int(rng.integers(len(space)))]
        candidate = Candidate(mapping, ScheduleSpace(mapping).sample(rng))
        got = amos.build(candidate, implementation="generic")(**inputs)
        np.testing.assert_allclose(got, expected, 1e-4, 1e-4, err_msg=str(candidate))
        if expected.dtype.kind == "i":
            np.testing.assert_array_equal(got, expected, str(candidate))


@pytest.mark.parametrize("text", [LAST, FIRST])
@pytest.mark.parametrize("side", ["", "lhs_", "lanes_"])
def test_cpu(side: str, text: str) -> None:
    check(quantized(text), f"vnni_dpbusd_{side}m16k4_u8_s8_s32", 2)


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_cpu_floats(kind: str) -> None:
    unit = {"f32": "avx512_fmadd_m16_f32_f32", "bf16": "avx512bf16_dpbf16ps_m16k2_bf16_f32"}[kind]
    check(floats(kind), unit, 2)


def test_a_source_that_would_be_in_place_is_computed() -> None:
    op = Operator.parse(GEMM, dict(i=8, j=16, k=12))
    unit = "avx512_fmadd_m16_f32_f32"
    (plain,) = amos.enumerate_mappings(op, unit)
    before = op.with_prologue("a", "relu(x[i,k])")
    (mapping,) = amos.enumerate_mappings(before, unit)
    assert source_forms(Nest(plain))[1].in_place or source_forms(Nest(plain))[0].in_place
    copied = {x.origin: x.copied for x in Structure(mapping).sources}
    assert copied[8 * 12] == 8 * 12
    # The model counts the bytes of what is read: floats for bytes.
    wide = amos.enumerate_mappings(quantized(), "vnni_dpbusd_m16k4_u8_s8_s32")[0]
    image = 1 * 3 * 7 * 5
    assert max(x.wider for x in Structure(wide).sources) == (image * 4 + 5 * 4 + 4) / image
    assert {x.wider for x in Structure(plain).sources} == {1.0}
    assert not any(x.vectors for x in Structure(mapping).sources)
    assert "a: gathered from x" in str(
        amos.plan(Candidate(mapping, ScheduleSpace(mapping).smallest()))
    )
    kernel = amos.build(mapping)
    x, weight = np.full((8, 12), -1, np.float32), np.ones((12, 16), np.float32)
    assert (kernel(x, weight) == 0).all()
    assert (kernel(-x, weight) == 12).all()


def test_constants_are_folded_as_they_are_packed() -> None:
    op, rng = quantized(), np.random.default_rng(1)
    kernel = amos.build(amos.enumerate_mappings(op, "vnni_dpbusd_m16k4_u8_s8_s32")[0])
    assert kernel.inputs == ("x", "scale", "shift", "w", "zero")
    inputs = random_inputs(op, rng)
    expected = evaluate(op, inputs)
    for name in ("w", "zero"):
        with pytest.raises(BuildError, match="'weight' is computed of w, zero: pack .* with it"):
            kernel.pack(**{name: inputs[name]})
    with pytest.raises(BuildError, match="'x' is not a constant input; constants are w, zero"):
        kernel.pack(x=inputs["x"])
    np.testing.assert_array_equal(kernel(**inputs), expected)
    kernel.pack(w=inputs["w"], zero=inputs["zero"])
    np.testing.assert_array_equal(kernel(*(inputs[n] for n in ("x", "scale", "shift"))), expected)
    # A tensor that both sides are computed of is still given to each call.
    both = Operator.parse(GEMM, dict(i=3, j=16, k=4))
    both = both.with_prologue("weight", "w[k,j] * s[k]").with_prologue("a", "x[i,k] * s[k]")
    shared = amos.build(amos.enumerate_mappings(both, "avx512_fmadd_m16_f32_f32")[0])
    inputs = random_inputs(both, rng)
    expected = evaluate(both, inputs)
    np.testing.assert_allclose(shared(**inputs), expected, 1e-5, 1e-5)
    shared.pack(w=inputs["w"], s=inputs["s"])
    np.testing.assert_allclose(shared(x=inputs["x"], s=inputs["s"]), expected, 1e-5, 1e-5)


def _scalar(_: object, loop: Any, mutator: Any) -> Any:
    """In place of AMX instructions the loops that they stand for."""
    return mutator.default_mutate(loop)


@pytest.mark.parametrize("unit", [BYTES, BFLOATS])
def test_copies_for_tile_registers(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles._Emitter, "emit", _scalar)
    rng = np.random.default_rng(5)
    for op in (quantized(), quantized(FIRST)) if unit == BYTES else (floats("bf16"),):
        inputs = random_inputs(op, rng)
        expected = evaluate(op, inputs)
        space = list(amos.enumerate_mappings(op, unit, rule="gather"))
        strided = [m for m in space if isinstance(source_forms(Nest(m))[0], StridedOperand)]
        merged = [m for m in strided if len(source_forms(Nest(m))[0].dims) < 4]
        assert merged or op.sources[0].indices[-1].names != ("c",) or unit == BFLOATS
        for mapping in (*strided[-2:], *merged[-2:], *space[:2]):
            candidate = Candidate(mapping, ScheduleSpace(mapping).sample(rng))
            program, module = schedule_candidate(candidate, "native", CpuLimits.here())
            got = Kernel(candidate, program, "generic", module)(**inputs)
            np.testing.assert_allclose(got, expected, 1e-4, 1e-4, err_msg=str(candidate))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize("kind", ["u8", "f32", "bf16"])
def test_exported_c(kind: str, tmp_path: Path) -> None:
    op = quantized() if kind == "u8" else floats(kind)
    if kind == "bf16":
        op = op.with_epilogue("s8(acc * skip[k])")
    unit = {
        "u8": "vnni_dpbusd_m16k4_u8_s8_s32",
        "f32": "avx512_fmadd_m16_f32_f32",
        "bf16": "avx512bf16_dpbf16ps_m16k2_bf16_f32",
    }[kind]
    mapping = amos.enumerate_mappings(op, unit)[-1]
    schedule = ScheduleSpace(mapping).sample(np.random.default_rng(2))
    amos.export(
        Candidate(mapping, schedule), format="c", out=tmp_path, name="before",
        implementation="generic",
    )  # fmt: skip
    header = (tmp_path / "before.h").read_text()
    if kind == "u8":
        assert "before_pack_weight(const int8_t *w, const int16_t *zero, int8_t *packed)" in header
        assert "packed_weight: w, int8, 9x5x3x3; zero, int16, 9, packed into" in header
    built = ["gcc", "-O1", "-march=native", "-o", "t", "before_test.c", "before.c", "-lm"]
    subprocess.run(built, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "t"], cwd=tmp_path).returncode == 0


def _cuda_operator(unit: str, text: str) -> Operator:
    kinds = amos.intrinsics.get(unit).dtypes
    sizes = dict(n=1, k=9, p=3, q=7, c=8, r=3, s=3)
    names = ("image", "weight", "out")
    op = Operator.parse(text.format(3), sizes, dict(zip(names, kinds, strict=True)))
    layout = "image[n,h,w,c]" if text == LAST else "image[n,c,h,w]"
    op = op.with_prologue(layout, "relu(x[n,w,h,c] * scale[c]) + shift[]", {"shift": "s32"})
    return op.with_prologue("weight", "w[k,c,r,s] - zero[k]", {"w": "s8", "zero": "s16"})


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ("wmma_m16n16k16_f16_f32", LAST),
        ("mma_sync_m16n8k32_s8_s32", FIRST),
        ("mma_sync_m16n8k16_bf16_f32", LAST),
        pytest.param("wmma_m16n16k16_f16_f32", FIRST, marks=pytest.mark.slow),
        pytest.param("mma_sync_m16n8k32_s8_s32", LAST, marks=pytest.mark.slow),
        pytest.param("mma_sync_m16n8k16_bf16_f32", FIRST, marks=pytest.mark.slow),
    ],
)
def test_cuda(unit: str, text: str) -> None:
    rng, machine = np.random.default_rng(len(unit)), amos.machines.get("a100")
    op = _cuda_operator(unit, text)
    space = amos.enumerate_mappings(op, unit, rule="gather")
    wide = set()
    for _ in range(2 if text == LAST else 1):
        mapping = space[int(rng.integers(len(space)))]
        plan = GpuPlan.of(mapping, ScheduleSpace(mapping, machine).sample(rng), "sm_80")
        wide |= {source.vector for source in plan.sources}
        assert not any(source.is_async for source in plan.sources)
        assert "computed of x, scale, shift" in str(plan)
        inputs = _exact(plan, rng)
        assert emulate(plan, inputs).problem == ""
        # The check that goes with an export says the same, with code of its own.
        launch = launch_of(plan, "kernel")
        assert [a["role"] for a in launch["arguments"]] == ["prologue"] * 5 + ["output"]
        point = {name: np.arange(1) for name in ("n", "k", "p", "q")}
        where, sums, _ = reference(launch["operator"], inputs, point)
        assert sums[0] == evaluate(plan.mapping.operator, inputs).reshape(-1)[where[0]]
        drawn_values = draw_values(launch, rng)
        assert {name: x.shape for name, x in drawn_values.items()} == {
            x.name: x.shape for x in op.inputs
        }
    assert text == FIRST or max(wide) > 1


def _exact(plan: GpuPlan, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Inputs whose sums are exact: few bits."""
    inputs = draw_inputs(plan, rng)
    small = {"x": 8, "scale": 2, "shift": 3, "w": 4, "zero": 4}
    return {n: np.sign(x) * (np.abs(x) % small[n]) for n, x in inputs.items()} | {
        n: (x % small[n]).astype(x.dtype) for n, x in inputs.items() if x.dtype.kind in "iu"
    }
