"""Generated kernels, executed on the host from their own source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import amos
from amos import operators
from amos.cuda import GpuSchedule
from amos.cuda.codegen import KernelText, draw_inputs, emulate
from amos.cuda.codegen.emulate import Emulation, compiler
from amos.cuda.plan import GpuPlan
from amos.errors import BuildError
from amos.ir import Operator
from amos.machine.gpu_costs import capability
from amos.mapping import Mapping
from amos.plan.nest import Nest

needs_compiler = pytest.mark.skipif(
    compiler() is None, reason="kernels run on the host with g++ or clang++; there is none"
)
#: Every type, both families, shapes of fragments that are not square.
UNITS = {
    "wmma_m16n16k16_f16_f32": "f16",
    "wmma_m32n8k16_f16_f16": ("f16", "f16", "f16"),
    "wmma_m8n32k16_bf16_f32": "bf16",
    "wmma_m16n16k8_tf32_f32": "tf32",
    "wmma_m16n16k16_s8_s32": "s8",
    "wmma_m32n8k16_s8_s32": "s8",
    "wmma_m8n8k4_f64_f64": "f64",
    "mma_sync_m16n8k8_f16_f32": "f16",
    "mma_sync_m16n8k16_f16_f16": ("f16", "f16", "f16"),
    "mma_sync_m16n8k16_bf16_f32": "bf16",
    "mma_sync_m16n8k8_tf32_f32": "tf32",
    "mma_sync_m16n8k32_s8_s32": "s8",
    "mma_sync_m8n8k4_f64_f64": "f64",
    "mma_sync_m16n8k32_e4m3_f32": "e4m3",
    "mma_sync_m16n8k32_e5m2_f32": "e5m2",
}
SMALL = {
    "conv1d": dict(n=2, c=5, k=9, p=11),
    "conv2d": dict(n=2, c=3, k=9, p=5, q=6, stride=2, padding=1),
    "conv3d": dict(n=1, c=2, k=5, d=3, p=4, q=3, t=2, r=2, s=2),
    "transposed_conv2d": dict(n=1, c=3, k=6, p=6, q=6),
    "grouped_conv2d": dict(n=1, g=3, c=4, k=5, p=5, q=4),
    "dilated_conv2d": dict(n=1, c=5, k=7, p=5, q=4),
    "depthwise_conv2d": dict(n=2, c=5, k=2, p=5, q=4),
    "capsule_conv2d": dict(n=1, c=3, k=3, v=4, p=3, q=3, r=3, s=3),
    "batched_conv2d": dict(n=3, c=5, k=6, p=4, q=5),
    "gemm": dict(m=37, n=29, k=50),
    "gemv": dict(m=37, k=75),
    "grouped_fc": dict(n=3, g=3, c=20, k=18),
    "mean": dict(i=21, k=70),
    "variance": dict(i=21, k=70),
    "scan": dict(n=5, k=33),
}


def drawn(op: Operator, unit: str, rule: str, rng: np.random.Generator) -> Mapping:
    space = amos.enumerate_mappings(op, amos.intrinsics.get(unit), rule=rule)
    return space[int(rng.integers(len(space)))]


def program(mapping: Mapping, architecture: str, rng: np.random.Generator) -> GpuPlan:
    """Any cut: tiles that divide nothing, several warps, stages and parts."""
    nest = Nest(mapping)
    live = [loop for loop in nest.spatial if loop.extent > 1]
    atomic = mapping.intrinsic.dtypes[-1] != "float16"
    names = [operand.tensor.name for operand in mapping.intrinsic.sources]
    swizzled = mapping.intrinsic.family == "mma" and rng.integers(2)
    schedule = GpuSchedule(
        tile={x.name: int(rng.integers(1, min(3, x.extent) + 1)) for x in live},
        warps={x.name: int(rng.integers(1, 3)) for x in live[:3]},
        steps=int(rng.integers(1, 4)),
        stages=int(rng.integers(1, 5 if capability(architecture) >= 80 else 3)),
        split=int(rng.integers(1, 4)) if atomic else 1,
        copy_bytes=int(rng.choice([16, 8, 4])),
        padding=dict.fromkeys(names, -1) if swizzled else {},
        order=tuple(map(str, rng.permutation([x.name for x in live]))),
        reduce=tuple(map(str, rng.permutation([x.name for x in nest.reduce if x.extent > 1]))),
        raster=int(rng.integers(1, 4)),
        fragments="interleaved" if rng.integers(2) else "blocked",
    )
    return GpuPlan(mapping, schedule, architecture)


def run(plan: GpuPlan, source: str | None = None) -> Emulation:
    return emulate(plan, draw_inputs(plan, np.random.default_rng(0)), source)


def check(number: int, name: str, unit: str, rule: str) -> None:
    rng = np.random.default_rng(number)
    op = operators.get(name, dtype=UNITS[unit], **SMALL[name])
    mapping = drawn(op, unit, rule, rng)
    needed = max(capability(x) for x in mapping.intrinsic.requires)
    architecture = str(rng.choice([f"sm_{n}" for n in (70, 75, 80, 90) if n >= needed]))
    emulation = run(program(mapping, architecture, rng))
    assert emulation.problem == ""


@needs_compiler
@pytest.mark.parametrize(("number", "name"), list(enumerate(SMALL))[1::2])
def test_operators(number: int, name: str) -> None:
    """Every other operator, in one type after another, under one rule after another."""
    unit = list(UNITS)[number % len(UNITS)]
    check(number, name, unit, ("paper", "access", "gather")[number % 3])


@needs_compiler
@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ("mma_sync_m16n8k16_f16_f32", "a[m,k] * b[n,k]"),
        ("mma_sync_m16n8k8_bf16_f32", "a[k,m] * b[k,n]"),
        ("mma_sync_m16n8k8_tf32_f32", "a[k,m] * b[k,n]"),
        ("mma_sync_m16n8k32_s8_s32", "a[m,k] * b[n,k]"),
    ],
)
def test_swizzled_rows(unit: str, text: str) -> None:
    """What copies write to other places is read from there, along both sides."""
    intrinsic = amos.intrinsics.get(unit)
    kinds = dict(zip(("a", "b", "out"), intrinsic.dtypes, strict=True))
    sizes = dict(m=48, n=40, k=96)
    op = Operator.parse(f"out[m,n] += {text}", extents=sizes, dtypes=kinds, name="gemm")
    mapping = amos.enumerate_mappings(op, intrinsic)[0]
    schedule = GpuSchedule(
        tile={"i1.tile": 2}, warps={"i2.tile": 2}, steps=2, stages=3,
        padding={"Src1": -1, "Src2": -1},
    )  # fmt: skip
    plan = GpuPlan(mapping, schedule, "sm_80")
    source = KernelText(plan).source
    assert source.count(" ^ ") >= 2  # where copies write, and where fragments are read
    assert run(plan).problem == ""
    if unit == "mma_sync_m16n8k16_f16_f32":
        found_out(plan, "copy_async<16>(to + at_row", "copy_async<16>(to + 0 * at_row")


@needs_compiler
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", SMALL)
def test_every_operator_and_type(name: str, unit: str) -> None:
    for number, rule in enumerate(("paper", "access", "gather")):
        check(100 + number, name, unit, rule)


def pipelined(stages: int = 3) -> GpuPlan:
    """A convolution whose weights come by cp.async while its image is gathered."""
    op = operators.get("conv2d", dtype="f16", n=1, c=16, k=32, p=7, q=7)
    space = amos.enumerate_mappings(op, amos.intrinsics.get("wmma_m16n16k16_f16_f32"), rule="paper")
    mapping = next(m for m in space if m.name == "npq-k-crs")
    tiles = {"i1.tile": 2, "i2.tile": 1}
    warps = {"i1.tile": 2, "i2.tile": 2}
    return GpuPlan(mapping, GpuSchedule(tile=tiles, warps=warps, stages=stages), "sm_80")


#: What is taken out of a right kernel, and must be found missing.
HOLES = {
    "a barrier": ("    __syncthreads();\n    const int next", "    const int next"),
    "a wait": ("    wait_copies<1>();\n", ""),
    "a wait too lax": ("wait_copies<1>", "wait_copies<2>"),
    "the edge of the output": ("< 49)", "< 64)"),
    "an alignment": ("copy_async<16>(to + ", "copy_async<16>(to + 1 + "),
    "a slot": ("shared_Src2 + stage % 3", "shared_Src2 + stage % 2"),
    "room": ("shared_memory[", "shared_memory[-128 + "),
    "half a warp": ("    multiply(stage);", "    if (lane < 16) multiply(stage);"),
    "a barrier of the warp": ("    __syncwarp();\n    #pragma", "    #pragma"),
}
#: The same for fewer stages. With one, the next must not be copied before this one was read;
#: with two, accumulators leave through memory that the last stage was read from.
FEWER_HOLES = {
    "before": (1, "    __syncthreads();\n    multiply(stage);", "    multiply(stage);"),
    "behind": (1, "    multiply(stage);\n    __syncthreads();", "    multiply(stage);"),
    "the last": (2, "  wait_copies<0>();\n  __syncthreads();", "  wait_copies<0>();"),
}


@needs_compiler
def test_kernel_without_holes() -> None:
    assert run(pipelined()).equal


@needs_compiler
@pytest.mark.parametrize(
    "hole",
    [pytest.param(h, marks=[pytest.mark.slow] * (2 < n < 6)) for n, h in enumerate(HOLES)],
)
def test_holes_are_found(hole: str) -> None:
    """The emulation is no formality: each of these is an error on a GPU."""
    found_out(pipelined(), *HOLES[hole])


@needs_compiler
@pytest.mark.parametrize("hole", FEWER_HOLES)
def test_holes_with_fewer_stages_are_found(hole: str) -> None:
    stages, before, after = FEWER_HOLES[hole]
    plan = pipelined(stages)
    assert run(plan).equal
    found_out(plan, before, after)


@needs_compiler
def test_places_beyond_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of 2^31 elements and more are indexed with 64 bits; here smaller ones are."""
    op = operators.get("conv2d", dtype="f16", n=2, c=64, k=4096, p=600, q=600)
    space = amos.enumerate_mappings(op, amos.intrinsics.get("wmma_m16n16k16_f16_f32"))
    source = KernelText(GpuPlan(space[0], GpuSchedule(), "sm_80")).source
    (stored,) = (line for line in source.splitlines() if line.strip().startswith("out["))
    assert stored.count("static_cast<long long>") == 4  # 2 * 4096 * 600 * 600 elements
    assert "image + (live ? static_cast" not in source
    monkeypatch.setattr("amos.codegen.device.text._INT", 100)
    plan = pipelined()
    assert "static_cast<long long>" in KernelText(plan).source
    assert run(plan).equal


def found_out(plan: GpuPlan, before: str, after: str) -> None:
    source = KernelText(plan).source
    assert before in source
    try:
        assert not run(plan, source.replace(before, after)).equal
    except BuildError as error:
        assert "on the host" in str(error)


def test_refusals() -> None:
    op = operators.get("gemm", dtype="f16", m=64, n=64, k=1 << 20)
    wmma = amos.enumerate_mappings(op, amos.intrinsics.get("wmma_m16n16k16_f16_f32"))[0]
    tiles, warps = {"i1.tile": 4, "i2.tile": 4}, {"i1.tile": 8, "i2.tile": 8}
    large = dict(tile=tiles, warps={"i1.tile": 8}, steps=4, stages=4)
    cases: list[tuple[str, dict[str, Any], list[str]]] = [
        ("volta", {}, ["'volta'", "sm_80"]),
        ("sm_7000", {}, ["'sm_7000'", "newest known"]),
        ("sm_60", {}, ["wmma_m16n16k16_f16_f32", "sm_70", "sm_60"]),
        ("sm_70", dict(stages=3), ["3 stages", "cp.async", "sm_80"]),
        ("sm_80", dict(warps=warps), ["2048 threads", "1024"]),
        ("sm_80", dict(padding={"Src2": -1}), ["Src2", "WMMA", "swizzled"]),
        ("sm_80", dict(padding={"Src1": 4}), ["Src1", "4 elements", "16 bytes"]),
        ("sm_80", dict(split=1 << 20), ["65536 blocks along y", "65535"]),
        ("sm_80", large, ["bytes of shared memory", str(163 * 1024)]),
    ]
    for architecture, values, words in cases:
        with pytest.raises(BuildError) as caught:
            GpuPlan(wmma, GpuSchedule(**values), architecture)
        assert all(word in str(caught.value) for word in words), caught.value
    host = amos.enumerate_mappings(
        operators.get("gemm", dtype="u8s8"), amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
    )[0]
    with pytest.raises(BuildError, match="Tensor Cores only"):
        GpuPlan(host, GpuSchedule(), "sm_80")
    last = operators.get("gemm", dtype="f16").with_epilogue("relu(acc)")
    mapping = amos.enumerate_mappings(last, amos.intrinsics.get("wmma_m16n16k16_f16_f32"))[0]
    with pytest.raises(BuildError, match="whole sum"):
        GpuPlan(mapping, GpuSchedule(split=2), "sm_80")
    half = operators.get("gemm", dtype=("f16", "f16", "f16"))
    mapping = amos.enumerate_mappings(half, amos.intrinsics.get("wmma_m16n16k16_f16_f16"))[0]
    with pytest.raises(BuildError, match="atomically"):
        GpuPlan(mapping, GpuSchedule(split=2), "sm_80")


def test_wide_copies_where_the_tensor_allows() -> None:
    """Eight halves at once along what is contiguous; one where windows move off alignment.

    The fused reduction is in the order of the image, so that with channels last the
    weights (k, c, r, s) are not contiguous along it.
    """
    wmma = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    for layout, wide in (("NHWC", (8, 1)), ("NCHW", (1, 8))):
        op = operators.get("conv2d", dtype="f16", c=64, k=64, p=14, q=14, layout=layout)
        space = amos.enumerate_mappings(op, wmma, rule="paper")
        mapping = next(
            m
            for m in space
            if set(m.groups["i1"]) == {"n", "p", "q"} and set(m.groups["r1"]) == {"c", "r", "s"}
        )
        plan = GpuPlan(mapping, GpuSchedule(), "sm_80")
        assert tuple(s.vector for s in plan.sources) == wide
