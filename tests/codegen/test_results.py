"""Several results of one kernel, and reductions of the output, held against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import amos
from amos.cuda import GpuSchedule
from amos.cuda.codegen import KernelText, draw_inputs, emulate
from amos.cuda.codegen.emulate import compiler
from amos.cuda.codegen.toolchain import compiler_for, compilers
from amos.cuda.fragment_tiles import tiles_of
from amos.cuda.plan import GpuPlan
from amos.errors import BuildError, ScheduleError
from amos.intrinsics.virtual import unit
from amos.ir import Operator
from amos.measure.reference import tolerance
from amos.plan import Candidate, Schedule
from amos.runtime import build
from amos.schedule import ScheduleSpace, candidate_of
from amos.streams import StreamSchedule
from amos.streams.plan import StreamPlan
from amos.streams.vta import program
from amos.validate import evaluate, random_inputs

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
AMX = "amx_tdpbusd_m16n16k64_u8_s8_s32"
FMA = "avx512_fmadd_m16_f32_f32"
GEMM = "out[i,j] += a[i,k] * weight[j,k]"
CONV = "out[n,p,q,k] += image[n,p+r,q+s,c] * weight[k,r,s,c]"
NCHW = "out[n,k,p,q] += image[n,c,p+r,q+s] * weight[k,c,r,s]"
BYTES = dict(a="uint8", image="uint8", weight="int8", out="int32")
FLOATS = dict(a="float32", weight="float32", out="float32")
#: Operator, intrinsic, and results whose lanes, tiles and cores they keep apart or put together.
CASES = [
    (GEMM, dict(i=24, j=64, k=16), VNNI, BYTES, "u8(acc * s[j])",
     ["f[j,i] = acc * s[j]", "top[i] max= acc", "tot[j] += u8(acc * s[j])",
      "all[] min= acc then f16(gelu(acc * 0.001))"]),
    (GEMM, dict(i=7, j=21, k=9), VNNI, BYTES, None,
     ["top[i] max= acc", "low[j] min= acc * 0.5", "all[] += acc", "f[i//7, j, i%7] = bf16(acc)"]),
    (CONV, dict(n=2, p=7, q=5, k=32, r=2, s=1, c=8), VNNI, BYTES, "u8(relu(acc * s[k]))",
     ["mean[n,k] += acc * 0.0286", "sums[k,n] += u8(relu(acc * s[k]))", "top[n,p,q] max= acc"]),
    (NCHW, dict(n=2, k=5, p=4, q=6, r=1, s=2, c=6), VNNI, BYTES, None,
     ["mean[n,k] += acc then s8(acc * 0.01 + b[k])", "top[q] max= acc then s8(acc >> 4)",
      "rows[n,p] += bf16(acc)"]),
    (GEMM, dict(i=20, j=18, k=30), AMX, BYTES, "s8(acc * s[])",
     ["top[i] max= acc", "tot[j] += acc", "f[j,i] = acc"]),
    (GEMM, dict(i=13, j=40, k=12), FMA, FLOATS, "acc + b[j]",
     ["top[i] max= acc + b[j]", "tot[i] += acc + b[j]", "q[i,j] = u8(acc * 30 + 128)"]),
]  # fmt: skip


def _operator(number: int) -> Operator:
    text, extents, _, dtypes, epilogue, results = CASES[number]
    op = Operator.parse(text, extents, {n: k for n, k in dtypes.items() if f"{n}[" in text})
    op = op if epilogue is None else op.with_epilogue(epilogue)
    for result in results:
        op = op.with_result(result)
    return op


def _compare(op: Operator, got: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    assert len(got) == len(expected) == len(op.results)
    for number, (actual, reference) in enumerate(zip(got, expected, strict=True)):
        assert (actual.shape, actual.dtype) == (reference.shape, reference.dtype)
        allowed = tolerance(op, reference, number)
        difference = np.abs(actual.astype(np.float64) - reference.astype(np.float64))
        assert difference.max(initial=0) <= allowed, op.results[number].name


@pytest.mark.parametrize("number", range(len(CASES)))
def test_kernels_compute_what_numpy_does(number: int) -> None:
    op, name = _operator(number), CASES[number][2]
    rng = np.random.default_rng(number)
    space = amos.enumerate_mappings(op, name, "gather")
    inputs = random_inputs(op, rng)
    expected = evaluate(op, inputs)
    for which in rng.permutation(len(space))[:2]:
        mapping = space[int(which)]
        _compare(op, amos.simulate(mapping, inputs), expected)
        drawn = candidate_of(mapping, None)
        if name != AMX:  # a tile of its fragments is long in generic code
            drawn = Candidate(mapping, ScheduleSpace(mapping).sample(rng))
        kernel = build(drawn, implementation="generic")
        _compare(op, kernel(**inputs), expected)


def test_sums_of_a_split_reduction() -> None:
    op = Operator.parse(
        GEMM, dict(i=1, j=13, k=4 * 515), {n: BYTES[n] for n in ("a", "weight", "out")}
    )
    op = op.with_result("top[i] max= acc").with_result("all[] += acc")
    mapping = amos.enumerate_mappings(op, VNNI)[0]
    space, rng = ScheduleSpace(mapping), np.random.default_rng(0)
    schedule = space.repair(space.sample(rng).as_dict() | {"split": 2}, rng)
    assert schedule.as_dict()["split"] == 2
    inputs = random_inputs(op, rng)
    kernel = build(Candidate(mapping, schedule), implementation="generic")
    _compare(op, kernel(**inputs), evaluate(op, inputs))


def test_arrays_of_the_caller() -> None:
    op = _operator(1)
    mapping = amos.enumerate_mappings(op, VNNI)[0]
    kernel = build(mapping, implementation="generic")
    inputs = random_inputs(op, np.random.default_rng(3))
    expected = evaluate(op, inputs)
    names = "out, top, low, all, f"
    # A bfloat16 array is the kernel's to make: NumPy has no such dtype.
    fewer = replace(op, further=op.further[:-1])
    plain = build(amos.enumerate_mappings(fewer, VNNI)[0], implementation="generic")
    out = tuple(np.full(x.shape, 9, x.dtype) for x in expected[:4])
    assert plain(**inputs, out=out) is out
    for actual, reference in zip(out, expected, strict=False):
        np.testing.assert_array_equal(actual, reference)
    for wrong in (out[0], out[:2]):
        with pytest.raises(BuildError, match="expected a tuple of 4 arrays"):
            plain(**inputs, out=wrong)
    with pytest.raises(BuildError, match=f"expected a tuple of 5 arrays \\({names}\\)"):
        kernel(**inputs, out=out)
    with pytest.raises(BuildError, match="output 'top': shares memory with output 'out'"):
        plain(**inputs, out=(out[0], out[0].reshape(-1)[:7], *out[2:]))


def test_mappings_are_those_without_them() -> None:
    op = _operator(2)
    plain = Operator.parse(
        CASES[2][0], CASES[2][1], {n: BYTES[n] for n in ("image", "weight", "out")}
    )
    names = [mapping.name for mapping in amos.enumerate_mappings(plain, VNNI)]
    assert [mapping.name for mapping in amos.enumerate_mappings(op, VNNI)] == names


#: Results of CUDA kernels; ``top`` is part of a larger tensor, and so is ``f``.
GPU_RESULTS = [
    "f[q, p, k, n + 1] = bf16(acc * s[k])", "top[n, p*2 + 1] max= acc", "least[] min= acc * -0.5",
    "pool[k, n] += relu(acc) * 0.25 then acc * b[k]",
    "total[q] += u8(acc) then sigmoid(acc * 1e-4)", "low[k, p] min= s8(acc) then acc * 3",
]  # fmt: skip


@pytest.mark.skipif(compiler() is None, reason="kernels run on the host with a C++ compiler")
@pytest.mark.parametrize(
    ("name", "epilogue"),
    [
        ("wmma_m16n16k16_s8_s32", None),
        ("mma_sync_m16n8k32_s8_s32", "u8(acc * 0.1)"),
        ("wmma_m16n16k16_f16_f32", "f16(gelu(acc))"),
        ("wmma_m16n16k16_f16_f16", None),
        ("mma_sync_m16n8k16_f16_f16", "acc * 0.5"),
        ("mma_sync_m8n8k4_f64_f64", None),
        ("mma_sync_m16n8k16_bf16_f32", None),
    ],
)
def test_cuda_kernels_compute_what_numpy_does(name: str, epilogue: str | None) -> None:
    kind, sums = name.split("_")[-2:]
    op = amos.operators.get("conv2d", dtype=(kind, kind, sums), n=2, c=5, k=19, p=3, q=7, r=2, s=3)
    op = op if epilogue is None else op.with_epilogue(epilogue)
    for result in GPU_RESULTS:
        op = op.with_result(result)
    rng = np.random.default_rng(1)
    space = amos.enumerate_mappings(op, name, "gather")
    mapping = space[int(rng.integers(len(space)))]
    schedules = ScheduleSpace(mapping, amos.machines.get("a100"))
    assert "split" not in schedules.variables or set(schedules.variables["split"]) == {1}
    plan = GpuPlan.of(mapping, schedules.sample(rng), "sm_80")
    inputs = draw_inputs(plan, rng)
    emulated = emulate(plan, inputs)
    assert emulated.problem == ""
    for got in emulated.outputs:
        _compare(op, got, evaluate(op, inputs))
    if epilogue is None or name != "wmma_m16n16k16_f16_f32":
        return
    # Without what is launched before, or with another function, some results are others.
    source = KernelText(plan).source
    ending = "{ const int sum = low["
    spoiled = {"if (thread < ": "if (-1 > ", "atomicMax(": "atomicMin(", ending: f"if (0) {ending}"}
    for before, after in spoiled.items():
        assert before in source
        problem = emulate(plan, inputs, source.replace(before, after)).problem
        assert ", result " in problem and "elements differ" in problem


@pytest.mark.skipif(compiler() is None, reason="kernels run on the host with a C++ compiler")
@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("mma_sync_m16n8k16_f16_f32", [(1, 2), (4, 8, 16), (1, 2, 4, 8, 16)]),
        ("wmma_m16n16k16_f16_f32", [(1, 2, 4, 8), (16,), (1, 2, 4, 8, 16)]),
        ("wmma_m8n32k16_f16_f16", [(1, 2, 4, 8, 16), (), (1, 2, 4, 8, 16)]),
    ],
)
def test_lanes_that_meet_in_one_element(name: str, bits: list[tuple[int, ...]]) -> None:
    """They put theirs together before one of them adds it, and less goes to the cache."""
    plain = Operator.parse("out[i,j] += a[i,k] * b[k,j]", dict(i=29, j=37, k=32))
    op = plain
    for result in ("top[i] max= acc", "low[j] += relu(acc) then acc * 2", "all[] min= acc"):
        op = op.with_result(result)
    mapping = amos.enumerate_mappings(op, name)[0]
    plan = GpuPlan(mapping, GpuSchedule(), "sm_80")
    assert [tiles_of(plan.structure)[-1].meeting(x.store.names) for x in op.further] == bits
    inputs, source = draw_inputs(plan, np.random.default_rng(0)), KernelText(plan).source
    assert source.count("__shfl_xor_sync") == sum(map(len, bits))
    assert emulate(plan, inputs).problem == ""
    spoiled = source.replace("__shfl_xor_sync(0xffffffffu, part, 1)", "part")
    assert "elements differ" in emulate(plan, inputs, spoiled).problem
    a100 = amos.machines.get("a100")
    if name in a100.peaks:
        bare, whole = (
            amos.predict(amos.enumerate_mappings(x, name)[0], a100).seconds for x in (plain, op)
        )
        assert bare < whole < 1.5 * bare


def test_a_reduction_that_a_cuda_kernel_has_no_room_for() -> None:
    op = Operator.parse("out[i,j] += a[i,k] * b[k,j]", dict(i=16, j=16, k=64))
    mapping = amos.enumerate_mappings(
        op.with_result("top[i] += acc then u8(acc)"), "wmma_m16n16k16_f16_f32"
    )[0]
    words = r"in its own result, as s32 or f32, and top\[i\] \+= acc then u8\(acc\) leaves u8$"
    with pytest.raises(BuildError, match=words):
        GpuPlan(mapping, GpuSchedule(), "sm_80")
    with pytest.raises(ScheduleError, match=words):
        ScheduleSpace(mapping, amos.machines.get("a100")).sample(np.random.default_rng(0))


#: Accumulators that expressions widen, by the instruction's dtypes.
SHORT = [("u8", "s8", "s16"), ("f16", "f16", "f16"), ("f64", "f64", "f64"), ("u8", "u8", "u8")]


@pytest.mark.parametrize("kinds", SHORT)
def test_accumulators_of_other_types(kinds: tuple[str, str, str]) -> None:
    op = Operator.parse(
        GEMM, dict(i=5, j=13, k=9), dict(zip(("a", "weight", "out"), kinds, strict=True))
    )
    for result in ("f[j,i] = acc * s[j]", "top[i] max= acc", "tot[j] += acc then u8(acc * 0.1)"):
        op = op.with_result(result)
    own = unit(
        "Dst[i1] += Src1[r1] * Src2[i1, r1]",
        dict(i1=8, r1=4),
        dict(zip(("Src1", "Src2", "Dst"), kinds, strict=True)),
    )
    rng = np.random.default_rng(0)
    inputs, space = random_inputs(op, rng), amos.enumerate_mappings(op, own, "gather")
    expected = evaluate(op, inputs)
    mapping = space[int(rng.integers(len(space)))]
    _compare(op, amos.simulate(mapping, inputs), expected)
    drawn = Candidate(mapping, ScheduleSpace(mapping).sample(rng))
    _compare(op, build(drawn, implementation="generic")(**inputs), expected)


def test_results_of_cuda_kernels_compile() -> None:
    if not any("sm_90" in each.architectures for each in compilers()):
        pytest.skip("there is no CUDA compiler")
    op = amos.operators.get("conv2d", dtype="f16", n=2, c=5, k=19, p=3, q=7, r=2, s=3)
    for result in GPU_RESULTS:
        op = op.with_result(result)
    mapping = amos.enumerate_mappings(op, "mma_sync_m16n8k16_f16_f32")[0]
    plan = GpuPlan(mapping, GpuSchedule(), "sm_90")
    done = compiler_for("sm_90").compile(KernelText(plan).source, "sm_90")
    assert done.instructions["HMMA"] > 0


def test_a_split_reduction_has_no_whole_sums_on_a_gpu() -> None:
    op = Operator.parse("out[i,j] += a[i,k] * b[k,j]", dict(i=16, j=16, k=64))
    mapping = amos.enumerate_mappings(
        op.with_result("top[i] max= acc * 2"), "wmma_m16n16k16_f16_f32"
    )[0]
    with pytest.raises(BuildError, match=r"has no whole sum in any block, .* acc \* 2 needs"):
        GpuPlan(mapping, GpuSchedule(split=2), "sm_80")


def test_streams_store_one_result() -> None:
    op = Operator.parse(
        "out[i,j] += a[i,k] * weight[j,k]",
        dict(i=16, j=16, k=16),
        dict(a="int8", weight="int8", out="int32"),
    )
    mapping = amos.enumerate_mappings(
        op.with_result("top[i] max= acc"), "vta_gemm_m1n16k16_s8_s32"
    )[0]
    with pytest.raises(BuildError, match=r"VTA stores one result, not also top\[i\] max= acc$"):
        program(StreamPlan.of(mapping, StreamSchedule(), amos.machines.get("vta_pynq")))


def test_indices_that_are_shared_with_what_is_computed_once() -> None:
    """TVM took what two results share from where it was not computed yet."""
    op = Operator.parse(
        "out[p,i,k] += a[p,n] * pad(weight[i - 1,n*5,k - 3])",
        dict(p=2, k=3, n=29, i=5),
        dict(a="bfloat16", weight="bfloat16", out="float32"),
    )
    op = op.with_output("result[i%3 + i//3*3, k, p]")
    op = op.with_result("top[p*3 + 1] += u8(sigmoid(acc) * f16(skip[k]))", {"skip": "int8"})
    op = op.with_result("y[i%2, k%2*2 + k//2*3, i//2*3 + 3] max= bf16(gelu(3 / (acc * acc + 1)))")
    space = amos.enumerate_mappings(op, "avx512_fmadd_m16_bf16_f32", "gather", commute=True)
    schedule = Schedule.of(
        {"order": "p", "parallel": 1, "reduce": "n", "stage.Src1": "tile", "tile.p": 1, "unroll": 1}
    )
    inputs = random_inputs(op, np.random.default_rng(4))
    kernel = build(Candidate(space[0], schedule), implementation="generic")
    _compare(op, kernel(**inputs), evaluate(op, inputs))
