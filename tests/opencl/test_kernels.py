"""Kernels compute what operators say: on the host without OpenCL, and on every device here."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amos
from amos.errors import BuildError, ScheduleError
from amos.ir import Operator
from amos.ir.floats import quantize
from amos.machine import Machine
from amos.measure.reference import tolerance
from amos.opencl import OpenClPlan, OpenClSchedule
from amos.opencl.codegen import KernelText
from amos.opencl.model import predict_groups
from amos.plan import Schedule, batch_of
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs
from tests.support.opencl_host import run_kernels

POCL = amos.machines.get("pocl")
assert POCL.opencl is not None
#: As PoCL, but work-items of a group run at the same time.
PARALLEL = replace(POCL, opencl=replace(POCL.opencl, serial=False))
MAD, BYTES = "opencl_mad_m8_f32", dict(a="int8", b="int8", out="int32")
GEMM = "out[i,j] += a[i,k] * b[k,j]"
CONV = "out[p,q,k] += pad(x[p*2+r-1,q+s-1,c]) * w[k,c,r,s]"
#: Text, extents, dtypes, intrinsic: odd extents, so that tiles, vectors and stages are cut.
CASES = {
    "gemm": (GEMM, dict(i=13, j=21, k=19), {}, MAD),
    "wide": (GEMM, dict(i=9, j=32, k=7), {}, "opencl_mad_m16_f32"),
    "convolution": (CONV, dict(p=4, q=7, k=10, r=3, s=3, c=5), {}, "opencl_mad_m4_f32"),
    "nchw": ("out[k,q] += pad(x[c,q+s-1]) * w[k,c,s]", dict(k=5, q=16, c=3, s=3), {}, MAD),
    "bytes": (GEMM, dict(i=7, j=9, k=10), BYTES, "mali_arm_dot_m1k4_s8_s32"),
    "saturated": (GEMM, dict(i=7, j=9, k=10), BYTES, "khr_dot_acc_sat_m1k4_s8_s32"),
    "fused": (GEMM, dict(i=5, j=11, k=6), {}, MAD),
    "while": ("while[i,float4] += a[i,c] * barrier[c,float4]", dict(i=5, float4=9, c=6), {}, MAD),
}


def _operator(name: str) -> Operator:
    text, extents, dtypes, _ = CASES[name]
    tensors = dict.fromkeys(("a", "b", "x", "w", "out", "while", "barrier"), "float32") | dtypes
    used = {key: kind for key, kind in tensors.items() if f"{key}[" in text}
    operator = Operator.parse(text, extents=extents, dtypes=used, name=name)
    if name == "fused":
        operator = operator.with_prologue("a", "relu(x[i,k] * scale[k])")
        operator = operator.with_epilogue("s8(gelu(acc) * factor[j] + acc)")
    return operator


def _plans(name: str, count: int, machine: Machine = POCL) -> list[OpenClPlan]:
    rng = np.random.default_rng(len(name))
    mapping = amos.enumerate_mappings(_operator(name), CASES[name][3])[0]
    space = ScheduleSpace(mapping, machine)
    plans = []
    for number, drawn in enumerate(space.draw(count, rng)):
        fragments = ("interleaved", "blocked")[number % 2]
        schedule = Schedule.of(drawn.as_dict() | {"raster": number + 2, "fragments": fragments})
        plans.append(OpenClPlan.of(mapping, schedule, machine))
    return plans


@pytest.mark.long
def test_kernels_on_the_host(tmp_path: Path) -> None:
    """Of every kind, whatever the schedule, and in whichever order work-items run."""
    plans = [plan for name in CASES for plan in (*_plans(name, 2), *_plans(name, 1, PARALLEL))]
    inputs = [random_inputs(p.mapping.operator, np.random.default_rng(1)) for p in plans]
    assert any(p.local_bytes and p.items > 1 for p in plans)
    assert any(not p.local_bytes for p in plans)
    for plan, values, runs in zip(plans, inputs, run_kernels(plans, inputs, tmp_path), strict=True):
        expected = evaluate(plan.mapping.operator, values)
        allowed = tolerance(plan.mapping.operator, expected)
        for (result,) in runs:
            difference = np.abs(result.astype(np.float64) - expected).max()
            assert difference <= allowed, str(plan)


#: Reductions of a product's output: with and without lanes of a vector that meet, and ends.
REDUCTIONS = (
    "top[i] max= acc",
    "low[j] min= relu(acc) then s32(acc * 2)",
    "all[] += acc",
    "half[i] max= f16(acc)",
    "each[i,j] = acc * 2",
)


def _reducing(dtype: str = "f32") -> tuple[Operator, str]:
    kinds, unit = (BYTES, CASES["bytes"][3]) if dtype == "s8" else ({}, MAD)
    tensors = dict.fromkeys(("a", "b", "out"), "float32") | kinds
    op = Operator.parse(GEMM, extents=dict(i=7, j=21, k=6), dtypes=tensors, name="reducing")
    for text in REDUCTIONS:
        op = op.with_result(text)
    return op, unit


@pytest.mark.parametrize("dtype", ["f32", "s8"])
def test_reductions_of_the_output_on_the_host(dtype: str, tmp_path: Path) -> None:
    op, unit = _reducing(dtype)
    mapping = amos.enumerate_mappings(op, unit)[0]
    drawn = ScheduleSpace(mapping, POCL).draw(3, np.random.default_rng(0))
    plans = [OpenClPlan.of(mapping, each, POCL) for each in drawn]
    inputs = random_inputs(op, np.random.default_rng(1))
    expected = evaluate(op, inputs)
    assert isinstance(expected, tuple)
    for plan, runs in zip(plans, run_kernels(plans, [inputs] * 3, tmp_path), strict=True):
        for results in runs:
            for got, right in zip(results, expected, strict=True):
                np.testing.assert_array_equal(got, right, str(plan))
    # Elements of a vector that meet in one are combined before one of them is put to it.
    source = KernelText(plans[0]).source
    assert ("part_0" in source) == (dtype == "f32")


def test_reductions_in_fewer_bits_are_refused() -> None:
    op = _operator("gemm").with_result("top[i] max= acc then f16(acc)")
    mapping = amos.enumerate_mappings(op, MAD)[0]
    with pytest.raises(BuildError, match="in its own result, as s32 or f32, and top.* leaves f16"):
        OpenClPlan.of(mapping, OpenClSchedule(), POCL)


def test_barriers_stand_in_loops_that_all_work_items_run() -> None:
    """No barrier is under a condition or in the copies of a work-item."""
    (plan, *_) = [p for p in _plans("gemm", 12) if p.local_bytes and p.items > 1]
    depth, depths = 0, []
    for line in KernelText(plan).source.splitlines():
        depths += [depth] if "barrier(" in line else []
        depth += line.count("{") - line.count("}")
    assert depths == [2, 2]
    assert "fma(" not in KernelText(plan).source


def test_reads_of_borders_are_no_branches_and_divide_nothing() -> None:
    """A read that may leave its tensor is moved into it, and the steps of a stage are nested."""
    mapping = amos.enumerate_mappings(_operator("convolution"), CASES["convolution"][3])[0]
    order = ("r", "s", "c")
    schedule = OpenClSchedule(items={"q": 7}, place={"Src2": "local"}, steps=15, reduce=order)
    source = KernelText(OpenClPlan.of(mapping, schedule, POCL)).source
    assert "x[valid ? " in source
    assert "&&" not in source
    # A core addresses with 64 bits.
    assert "for (long step_s = 0; step_s < 3; ++step_s) {" in source
    stages = source[source.index("for (int stage") :]
    assert "/" not in stages
    assert "if (item == 0) {" in source
    parallel = KernelText(OpenClPlan.of(mapping, schedule, PARALLEL)).source
    assert "e += 7" in parallel
    assert "for (int step_s = 0; step_s < 3; ++step_s) {" in parallel
    assert "const int s = e % 3;" in parallel  # neighbours in memory, of consecutive work-items
    assert "if (item == 0) {" not in parallel


def test_rows_that_vectors_do_not_divide_are_read_and_stored_wide() -> None:
    """Only the vector at the end of a row is under conditions; the last stage ends early."""
    mapping = amos.enumerate_mappings(_operator("gemm"), MAD)[0]
    schedule = OpenClSchedule(tile={"i": 2}, items={"i1.tile": 2}, steps=4)
    lines = KernelText(OpenClPlan.of(mapping, schedule, POCL)).source.splitlines()
    heads = [n for n, line in enumerate(lines) if line.lstrip().startswith("if ((first_i")]
    read, stored = (
        lines[head + 1 : lines.index(_indent(lines[head]) + "} else {", head)]
        for head in heads[:1] + heads[-1:]
    )
    for interior, vector in ((read, "const loose_float8 *"), (stored, "__global loose_float8 *")):
        assert sum(vector in line for line in interior) == 1
        assert not any("valid" in line or "if (" in line for line in interior)
    reduction = mapping.operator.extents["k"]
    assert f"    const int steps = stage < {reduction // 4} ? 4 : {reduction % 4};" in lines
    assert not any(f"< {reduction})" in line for line in lines)


@pytest.mark.parametrize("machine", [POCL, PARALLEL])
def test_groups_that_reach_no_border_copy_without_conditions(machine: Machine) -> None:
    """Others copy the ends of rows by elements."""
    mapping = amos.enumerate_mappings(_operator("gemm"), MAD)[0]
    schedule = OpenClSchedule(items={"i1.tile": 2}, place={"Src2": "local"}, steps=4)
    lines = KernelText(OpenClPlan.of(mapping, schedule, machine)).source.splitlines()
    head = next(n for n, line in enumerate(lines) if line.lstrip().startswith("if ((first_i1"))
    end = lines.index(_indent(lines[head]) + "} else {", head)
    copies = [line for line in lines[head + 1 : end] if "local_Src2)[" in line]
    assert len(copies) == 1
    assert not any("valid" in line or "if (" in line for line in lines[head + 1 : end])


def _layer(schedule: OpenClSchedule) -> OpenClPlan:
    op = amos.operators.resolve("vgg16:V8", {}, "f32")
    return OpenClPlan.of(amos.enumerate_mappings(op, MAD)[0], schedule, POCL)


LAYER = OpenClSchedule(
    tile={"i1.tile": 2, "p": 2, "q": 2},
    items={"i1.tile": 4, "p": 7},
    place={"Src1": "local", "Src2": "local"},
    reduce=("r", "s", "c"),
    steps=128,
)


def test_a_core_copies_rows_of_scalars_as_they_lie() -> None:
    lines = [line.strip() for line in KernelText(_layer(LAYER)).source.splitlines()]
    copy = next(line for line in lines if "*)local_Src1)[" in line)
    place, _, read = copy.partition(" = ")
    # The innermost loop of the copy moves by one element on both sides.
    (head, *_) = (lines[n - 1] for n, line in enumerate(lines) if "at_reduction = " in line)
    assert head.startswith("for (long at_step_c_")
    assert "[at_step_c_ + " in place
    assert read.endswith(" + at_step_c_];")


def test_a_core_runs_all_steps_of_a_work_item_in_turn() -> None:
    # PoCL would run each step for all work-items, unless a condition depends on the work-item.
    lines = [line.strip() for line in KernelText(_layer(LAYER)).source.splitlines()]
    barrier = lines.index("barrier(CLK_LOCAL_MEM_FENCE);")
    assert lines[barrier + 1] == "if (item >= 0) {"


def test_stages_may_end_with_inner_loops() -> None:
    plan = _layer(replace(LAYER, reduce=("c", "r", "s"), steps=144))
    space = ScheduleSpace(plan.mapping, POCL)
    assert {72, 96, 128, 144} <= {*space.variables["steps"]}
    assert "%" not in KernelText(plan).source.partition("barrier")[2].partition("barrier")[0]


def test_the_model_counts_rows_and_divisions_of_copies() -> None:
    # 144 steps of c are stages that end within c, whose steps are divided; 128 are not.
    rates = [
        predict_groups(
            (plan := _layer(schedule)).structure,
            POCL,
            batch_of(plan.structure, [plan.schedule]),
        ).staging[0]
        for schedule in (
            replace(LAYER, steps=144),
            LAYER,
            replace(LAYER, reduce=("c", "r", "s"), steps=144),
        )
    ]
    assert rates[0] > 2 * rates[1] > 2 * rates[2]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def test_the_model_counts_pages_of_reads_in_place() -> None:
    """Rows of a page or more are copied; steps within a page are read where they are."""
    near, far = (
        Operator.parse(GEMM, dict(i=2048, j=j, k=2048), dict.fromkeys(("a", "b", "out"), "f32"))
        for j in (64, 2048)
    )
    tile = OpenClSchedule(tile={"i": 6, "i1.tile": 2}, items={"i": 32})
    copied = replace(tile, place={"Src2": "local"}, steps=128)
    ratios = []
    for operator in (near, far):
        mapping = amos.enumerate_mappings(operator, MAD)[0]
        seconds = [amos.predict(mapping, POCL, each).seconds for each in (tile, copied)]
        ratios.append(seconds[0] / seconds[1])
    assert ratios[0] < 1.2
    assert ratios[1] > 1.3 * ratios[0]


def test_local_memory_and_work_items_are_constraints() -> None:
    """What a group stages fits, and a plan that does not is refused by name."""
    mapping = amos.enumerate_mappings(_operator("gemm"), MAD)[0]
    small = amos.machines.get("mali_g72")
    assert small.opencl is not None
    space = ScheduleSpace(mapping, small)
    for schedule in space.draw(40, np.random.default_rng(0)):
        plan = OpenClPlan.of(mapping, schedule, small)
        assert plan.local_bytes <= small.opencl.local_bytes
        assert plan.register_bytes <= small.opencl.item_bytes
    wide = OpenClSchedule(items={"i": 8, "i1.tile": 2}, place={"Src2": "local"})
    with pytest.raises(BuildError, match="work-items in a group, but 4 at most"):
        OpenClPlan.of(mapping, wide, _limited(group_items=4))
    with pytest.raises(BuildError, match="bytes of local memory in a group, but 32 at most"):
        OpenClPlan.of(mapping, wide, _limited(local_bytes=32))


def _limited(**limits: Any) -> Machine:
    assert POCL.opencl is not None
    return replace(POCL, opencl=replace(POCL.opencl, **limits))


def test_what_has_no_kernel_is_refused() -> None:
    """By the space and by the plan, in the same words."""
    vector = amos.enumerate_mappings(_operator("gemm"), "avx2_fmadd_m8_f32_f32")[0]
    with pytest.raises(ScheduleError, match="no implementation in OpenCL C"):
        ScheduleSpace(vector, POCL).draw(1, np.random.default_rng(0))
    with pytest.raises(BuildError, match="no implementation in OpenCL C"):
        OpenClPlan.of(vector, OpenClSchedule(), POCL)


@pytest.mark.skipif(importlib.util.find_spec("pyopencl") is None, reason="pyopencl is not here")
def test_kernels_on_a_device() -> None:
    """Measured by a worker, equal to NumPy's result."""
    measure = amos.MeasureOptions(executor="opencl")
    result = amos.explore(_operator("gemm"), MAD, machine="pocl", trials=4, measure=measure)
    assert [trial.measurement.failure for trial in result.trials if trial.measurement] == [""] * 4


@pytest.mark.skipif(importlib.util.find_spec("pyopencl") is None, reason="pyopencl is not here")
def test_reductions_on_a_device() -> None:
    """NaN stays, and cores that put to one element at once lose nothing."""
    from amos.opencl.runtime.kernel import OpenClKernel

    op, unit = _reducing()
    space = amos.enumerate_mappings(op, unit)
    inputs = random_inputs(op, np.random.default_rng(1))
    inputs["a"][3, 2] = np.nan
    expected = evaluate(op, inputs)
    for schedule in ScheduleSpace(space[0], POCL).draw(4, np.random.default_rng(0)):
        kernel = OpenClKernel(amos.Candidate(space[0], schedule), POCL, "")
        arguments = kernel.prepare(inputs)
        kernel.run(arguments)
        for got, right in zip(kernel.result(arguments), expected, strict=True):
            np.testing.assert_array_equal(got, right)


@pytest.mark.skipif(importlib.util.find_spec("pyopencl") is None, reason="pyopencl is not here")
@pytest.mark.parametrize("cast", ["f16", "bf16"])
@pytest.mark.parametrize("stored", ["f32", "f16", "bf16"])
def test_floats_of_16_bits_on_a_device(cast: str, stored: str) -> None:
    """As numbers within expressions, and as elements of tensors."""
    from amos.opencl.runtime.kernel import OpenClKernel

    op = Operator.parse("out[i] += a[] * b[i]", dict(i=9), dict.fromkeys("ab", "float32"))
    op = op.with_dtypes(dict(out="float32"))
    op = op.with_prologue("b[i]", f"{cast}(x[i]) * y[i]", dict(x="f32", y=cast))
    op = op.with_epilogue(f"{stored}({cast}(acc * 0.3) + z[i])", dict(z=stored))
    x = np.array([-2.3, 1e-3, 7e4, 0.1, np.nan, -np.inf, 1e-7, 3.14159, -70000.0], np.float32)
    inputs = dict(x=x, a=np.ones((), np.float32)) | {
        name: quantize(np.array([1, -6e-8, 1, 3, 1, 1, 0.5, -2, 1]), str(tensor.dtype))
        for tensor in op.inputs
        if (name := tensor.name) in "yz"
    }
    mapping = amos.enumerate_mappings(op, MAD)[0]
    kernel = OpenClKernel(amos.Candidate(mapping, OpenClSchedule()), POCL, "")
    arguments = kernel.prepare({tensor.name: inputs[tensor.name] for tensor in op.inputs})
    kernel.run(arguments)
    np.testing.assert_array_equal(kernel.result(arguments), evaluate(op, inputs))
