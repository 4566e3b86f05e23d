"""Epilogues: the reference against plain arithmetic, and kernels against the reference."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

import amos
from amos.intrinsics.virtual import unit
from amos.ir import Operator
from amos.ir.floats import quantize
from amos.plan import Schedule
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs
from tests.support.epilogues import EPILOGUES, REQUANTIZE

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
FMA = amos.intrinsics.get("avx512_fmadd_m16_f32_f32")
KEPT = {"n": 1, "c": 5, "p": 5, "q": 3, "r": 2, "s": 2, "dtype": "u8s8"}


def _conv(k: int, layout: str) -> Operator:
    return amos.operators.get("conv2d", k=k, layout=layout, **KEPT)


@pytest.mark.features
@pytest.mark.parametrize("number", range(len(EPILOGUES)))
def test_kernels_are_exact(number: int) -> None:
    """In place and moved, whole and padded in turns: every bit is that of NumPy."""
    text, dtypes = EPILOGUES[number]
    rng = np.random.default_rng(len(text))
    op = _conv((32, 19)[number % 2], ("NHWC", "NCHW")[number // 2 % 2]).with_epilogue(text, dtypes)
    space = amos.enumerate_mappings(op, VNNI, rule="gather")
    mapping = space[int(rng.integers(len(space)))]
    inputs = random_inputs(mapping.operator, rng)
    expected = evaluate(mapping.operator, inputs)
    assert len(np.unique(expected)) > 1
    np.testing.assert_array_equal(amos.simulate(mapping, inputs), expected)
    got = amos.build(mapping, ScheduleSpace(mapping).sample(rng))(**inputs)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_the_reference_is_plain_arithmetic() -> None:
    op = _conv(8, "NHWC")
    inputs = random_inputs(op.with_epilogue(REQUANTIZE, {"bias": "s32"}), np.random.default_rng(0))
    acc = evaluate(op, {name: inputs[name] for name in ("image", "weight")})
    got = evaluate(op.with_epilogue(REQUANTIZE, {"bias": "s32"}), inputs)
    scaled = (acc + inputs["bias"]).astype(np.float32) * inputs["scale"]
    shifted = np.maximum(scaled, np.float32(0)) + inputs["zero"]
    np.testing.assert_array_equal(got, np.clip(np.rint(shifted), 0, 255).astype(np.uint8))


def test_ties_go_to_even_and_ends_are_clamped() -> None:
    op = Operator.parse(
        "out[i] += a[i,c] * weight[c]",
        extents=dict(i=16, c=1),
        dtypes=dict(a="uint8", weight="int8", out="int32"),
    )
    a = np.arange(16, dtype=np.uint8).reshape(16, 1)
    weight = np.ones(1, np.int8)
    for text, low, high in (("u8(acc * 0.5 - 2)", 0, 255), ("s8(acc * 40.5 - 300)", -128, 127)):
        fused = op.with_epilogue(text)
        factor, shift = (0.5, -2) if low == 0 else (40.5, -300)
        expected = [min(max(round(x * factor + shift), low), high) for x in range(16)]
        np.testing.assert_array_equal(evaluate(fused, {"a": a, "weight": weight}), expected)
        unit = amos.intrinsics.get("vnni_dpbusd_lhs_m16k4_u8_s8_s32")
        kernel = amos.build(amos.enumerate_mappings(fused, unit)[0])
        np.testing.assert_array_equal(kernel(a, weight), expected)


def test_elements_that_are_not_written_stay_zero() -> None:
    op = Operator.parse(
        "out[i*2,j] += a[i,k] * weight[j,k]",
        extents=dict(i=3, j=5, k=4),
        shapes=dict(out=(7, 6)),
    ).with_epilogue("u8(acc * scale[j] + 9)")
    mapping = amos.enumerate_mappings(op, VNNI)[0]
    inputs = random_inputs(mapping.operator, np.random.default_rng(1))
    expected = evaluate(mapping.operator, inputs)
    assert not expected[1::2].any() and not expected[:, 5].any() and expected[::2, :5].any()
    np.testing.assert_array_equal(amos.build(mapping)(**inputs), expected)


def test_floats_are_accumulated_and_finished() -> None:
    op = amos.operators.get("gemm", m=5, n=37, k=9, dtype="f32")
    op = op.with_epilogue("bf16(relu(acc + bias[n]))")
    mapping = amos.enumerate_mappings(op, FMA)[0]
    inputs = random_inputs(mapping.operator, np.random.default_rng(2))
    expected = evaluate(mapping.operator, inputs)
    got = amos.build(mapping)(**inputs)
    np.testing.assert_array_equal(quantize(got, "bf16"), got)
    np.testing.assert_allclose(got, expected, rtol=2**-7)


def test_no_accumulator_passes_through_memory() -> None:
    """Where the output is the destination, a tile of accumulators is stored as bytes."""
    op = _conv(32, "NHWC").with_epilogue(REQUANTIZE, {"bias": "s32"})
    mapping = next(m for m in amos.enumerate_mappings(op, VNNI) if m.name == "k-c")
    values = ScheduleSpace(mapping).smallest().as_dict() | {"tile.q": 3, "tile.i1.tile": 2}
    kernel = amos.build(mapping, Schedule.of(values))
    if kernel.implementation != "native":
        pytest.skip("this CPU has no avx512_vnni, so the instruction itself cannot run")
    assert "vcvtdq2ps" in kernel.assembly and "vcvtsi2ss" not in kernel.assembly
    # One instruction rounds and converts, one narrows and saturates.
    assert "vcvtps2dq" in kernel.assembly and "vpmovusdb" in kernel.assembly
    assert "vrndscaleps" not in kernel.assembly and "vminps" not in kernel.assembly


def test_inputs_of_the_epilogue_are_checked() -> None:
    op = _conv(16, "NHWC").with_epilogue(REQUANTIZE, {"bias": "s32"})
    mapping = amos.enumerate_mappings(op, VNNI)[0]
    kernel = amos.build(mapping, implementation="generic")
    inputs = random_inputs(mapping.operator, np.random.default_rng(0))
    assert kernel.inputs == ("image", "weight", "bias", "scale", "zero")
    with pytest.raises(amos.AmosError, match="input 'bias': expected int32 of shape"):
        kernel(**(inputs | {"bias": inputs["bias"].astype(np.int64)}))
    del inputs["scale"]
    with pytest.raises(amos.AmosError, match="missing input scale"):
        kernel(**inputs)


def test_a_named_integer_of_which_a_copy_of_the_loop_knows_more() -> None:
    """A cut tile has its loops twice; TVM refuses a name that has other ranges in the two."""
    op = Operator.parse(
        "out[r*2 + 3, p*2] += a[r*2] * b[p]",
        {"r": 17, "p": 2},
        {"a": "uint8", "b": "int8", "out": "int32"},
    ).with_epilogue("s32(silu(abs(scale[])) * acc)", {"scale": "int8"})
    meaning = "Dst[i1] += Src1[r1] * Src2[i1, r1]"
    kinds = {"Src1": "uint8", "Src2": "int8", "Dst": "int32"}
    (mapping,) = amos.enumerate_mappings(op, unit(meaning, {"i1": 16, "r1": 4}, kinds))
    values = ScheduleSpace(mapping).smallest().as_dict()
    kernel = amos.build(mapping, Schedule.of(values | {"tile.r": 6, "block.r": 2, "vector": 32}))
    inputs = random_inputs(op, np.random.default_rng(0))
    np.testing.assert_array_equal(kernel(**inputs), evaluate(op, inputs))


def test_a_quotient_beyond_the_end_is_no_zero_to_divide_by() -> None:
    """TVM found it to be zero where a copy reads nothing, and refused the kernel."""
    op = Operator.parse(
        "out[5*j + h, k] += a[j, k, c] * b[c, h]",
        dict(j=2, h=5, c=4, k=3),
        dict(a="float32", b="float32", out="float32"),
        shapes=dict(out=(10, 5)),
    ).with_epilogue("exp(acc / (bias[h] / 3))", {"bias": "int16"})
    virtual = unit(
        "Dst[i1] += Src1[r1] * Src2[i1, r1]",
        dict(i1=2, r1=5),
        dict.fromkeys(("Src1", "Src2", "Dst"), "float32"),
    )
    mapping = amos.enumerate_mappings(op, virtual, rule="paper")[0]
    values: dict[str, int | str] = {"copy": "vectors", "order": "k j i1.tile", "parallel": 1}
    values |= {"stage.Src1": "whole", "stage.Src2": "tile", "vector": 32}
    values |= {"tile.i1.tile": 2, "tile.j": 2, "tile.k": 2}
    inputs = random_inputs(op, np.random.default_rng(0))
    inputs["bias"] = np.arange(1, 6, dtype=np.int16) * 100
    kernel = amos.build(mapping, Schedule.of(values), implementation="generic")
    np.testing.assert_array_equal(kernel(**inputs), evaluate(op, inputs))


#: NaN in the accumulator, in what it is compared with, and in both.
COMPARED = [
    *("max(acc, 0)", "min(6, acc)", "clip(acc, 0, 6)", "hardsigmoid(acc)", "abs(acc)"),
    *("max(acc, low[n])", "min(low[n], acc)", "max(acc * 2, low[n] + 1)", "bf16(relu(acc))"),
]


@pytest.mark.features
@pytest.mark.parametrize("text", COMPARED)
def test_nan_stays_nan(text: str) -> None:
    op = Operator.parse(
        "out[m,n] += a[m,k] * weight[k,n]",
        extents=dict(m=4, n=32, k=4),
        dtypes=dict(a="float32", weight="float32", out="float32"),
    ).with_epilogue(text)
    mapping = amos.enumerate_mappings(op, FMA, commute=True)[0]
    inputs = random_inputs(mapping.operator, np.random.default_rng(0))
    inputs["a"][2] = np.nan
    nan = np.zeros((4, 32), bool)
    nan[2] = True
    if "low" in inputs:
        inputs["low"][5::7] = np.nan
        nan[:, 5::7] = True
    expected = evaluate(mapping.operator, inputs)
    np.testing.assert_array_equal(np.isnan(expected), nan)
    np.testing.assert_array_equal(amos.build(mapping)(**inputs), expected)


@pytest.mark.features
def test_a_bound_takes_one_instruction_though_nan_stays() -> None:
    """The instruction gives its second operand where one is NaN: a number goes first."""

    def instructions(text: str) -> Counter[str]:
        op = Operator.parse(
            "out[m,n] += a[m,k] * weight[k,n]",
            extents=dict(m=4, n=32, k=4),
            dtypes=dict(a="float32", weight="float32", out="float32"),
        ).with_epilogue(text)
        kernel = amos.build(amos.enumerate_mappings(op, FMA, commute=True)[0])
        return Counter(re.findall(r"^\s+v(max|min|cmp|blend)\w*p[sd]\b", kernel.assembly, re.M))

    plain, bounded = instructions("acc"), instructions("max(acc, 0)")
    zero = set(bounded - plain)
    assert zero in ({"max"}, {"cmp"})  # on AVX2 a comparison with zero is a mask
    assert set(instructions("clip(acc, 0, 6)") - plain) == {*zero, "min"}
    assert instructions("max(acc, low[n])")["cmp"] > plain["cmp"]


@pytest.mark.parametrize("text", ["top[m] max= acc", "least[n] min= acc * scale[n]"])
def test_a_further_maximum_is_nan_where_an_element_is(text: str) -> None:
    op = Operator.parse(
        "out[m,n] += a[m,k] * weight[k,n]",
        extents=dict(m=6, n=32, k=4),
        dtypes=dict(a="float32", weight="float32", out="float32"),
    ).with_result(text)
    mapping = amos.enumerate_mappings(op, FMA, commute=True)[0]
    inputs = random_inputs(mapping.operator, np.random.default_rng(0))
    inputs["weight"][1, 3] = np.nan
    _, expected = evaluate(mapping.operator, inputs)
    assert np.isnan(expected).sum() == (6 if text[0] == "t" else 1)
    np.testing.assert_array_equal(amos.build(mapping)(**inputs)[1], expected)
