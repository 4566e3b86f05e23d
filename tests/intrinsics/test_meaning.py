"""The executed meaning, against numbers worked out by hand and exact fractions."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

from amos import intrinsics
from amos.errors import IntrinsicError
from amos.intrinsics import execute
from amos.ir.floats import quantize
from amos.selfcheck.data import draw_fragments

HIGH, LOW = 2**31 - 1, -(2**31)


def test_dpbusds_saturates_and_dpbusd_wraps() -> None:
    operands: dict[str, np.ndarray] = {
        "Src1": np.full(4, 255, np.uint8),
        "Src2": np.full((16, 4), 127, np.int8),
        "Dst": np.full(16, HIGH - 4, np.int32),
    }
    plain = execute(intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32"), operands)
    clamped = execute(intrinsics.get("vnni_dpbusds_m16k4_u8_s8_s32"), operands)
    assert set(plain.tolist()) == {HIGH - 4 + 4 * 255 * 127 - 2**32}
    assert set(clamped.tolist()) == {HIGH}
    operands |= {"Src2": np.full((16, 4), -128, np.int8), "Dst": np.full(16, LOW + 4, np.int32)}
    assert set(execute(intrinsics.get("vnni_dpbusds_m16k4_u8_s8_s32"), operands).tolist()) == {LOW}


def _round(value: Fraction) -> float:
    """The nearest float32, ties to even, of an exact value in the normal range."""
    guess = np.float32(float(value))
    near = [np.nextafter(guess, np.float32(s * np.inf)) for s in (-1, 1)] + [guess]
    best = min(near, key=lambda x: (abs(Fraction(float(x)) - value), int(x.view(np.int32)) & 1))
    return float(best)


def test_fused_multiply_add_rounds_once() -> None:
    unit = intrinsics.get("avx512_fmadd_m16_f32_f32")
    rng = np.random.default_rng(3)
    a = rng.standard_normal(200).astype(np.float32)
    b = rng.standard_normal((200, 16)).astype(np.float32)
    # Half of the accumulators all but cancel the product, or vanish beside it.
    c = (rng.standard_normal((200, 16)) * 2.0 ** rng.integers(-40, 4, (200, 1))).astype(np.float32)
    c[::2] = -(a[::2, None] * b[::2])
    got = execute(unit, {"Src1": a, "Src2": b, "Dst": c})
    for call, lane in np.ndindex(200, 16):
        x, y, z = (Fraction(float(v)) for v in (a[call], b[call, lane], c[call, lane]))
        assert float(got[call, lane]) == _round(x * y + z)


def test_bfloat16_pairs_are_added_from_the_last() -> None:
    unit = intrinsics.get("avx512bf16_dpbf16ps_m8k2_bf16_f32")
    tiny = np.float32(2.0**-130)  # subnormal
    operands = {
        "Src1": np.array([1.0, 1.0], np.float32),
        "Src2": np.tile(np.array([2.0**24, 1.0], np.float32), (8, 1)),
        "Dst": np.full(8, 1.0, np.float32),
    }
    assert set(execute(unit, operands).tolist()) == {2.0**24 + 2.0}
    operands |= {"Src2": np.zeros((8, 2), np.float32), "Dst": np.full(8, tiny)}
    assert set(execute(unit, operands).tolist()) == {0.0}


def test_half_precision_overflows_where_it_should() -> None:
    for name, want in (
        ("wmma_m16n16k16_f16_f32", 16 * 65504.0**2),
        ("wmma_m16n16k16_f16_f16", np.inf),
    ):
        unit = intrinsics.get(name)
        kind = np.float32 if name.endswith("f32") else np.float16
        operands = {s: np.full((16, 16), 65504, np.float16) for s in ("Src1", "Src2")}
        got = execute(unit, operands | {"Dst": np.zeros((16, 16), kind)})
        assert set(got.reshape(-1).tolist()) == {want}


_ELEMENTWISE = re.compile(r"avx\w*_vp?(add|sub|mul|max|min)[a-z]+_(acc_|row_)?m\d+(k\d+)?_\w+")
_FUNCTIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
_FUNCTIONS |= {"max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("name", intrinsics.names())
def test_every_meaning_is_a_multiply_add_or_what_its_name_says(name: str) -> None:
    """On data that no rounding touches, against plain sums over the index ranges."""
    unit = intrinsics.get(name)
    rng = np.random.default_rng(0)
    operands = {
        load.tensor.name: quantize(rng.integers(0, 3, load.tensor.shape).astype(float), kind)
        for load, kind in zip(unit.operands, unit.dtypes, strict=True)
    }
    if any(kind == "bool" for kind in unit.dtypes):
        operands |= {x: np.minimum(operands[x], 1) for x in ("Src1", "Src2")}
    arrays = [operands[load.tensor.name].astype(float) for load in unit.sources]
    if match := _ELEMENTWISE.fullmatch(name):
        first = operands["Dst"].astype(float) if match[2] else arrays[0]
        want = _FUNCTIONS[match[1]](first, arrays[-1])
        if match[2] == "row_":
            want = _FUNCTIONS[match[1]](first, _FUNCTIONS[match[1]].reduce(arrays[0]))
        want = want.astype(unit.destination.tensor.dtype).astype(float)
    else:
        letters = {it.name: chr(ord("a") + n) for n, it in enumerate(unit.iterations)}
        parts = ["".join(letters[i.names[0]] for i in load.indices) for load in unit.operands]
        want = operands["Dst"] + np.einsum(f"{','.join(parts[:-1])}->{parts[-1]}", *arrays)
    np.testing.assert_array_equal(execute(unit, operands).astype(float), want)


def test_sums_wrap_around_and_maxima_follow_the_sign() -> None:
    big, small = np.full(64, 200, np.uint8), np.full(64, 100, np.uint8)
    operands = {"Src1": big, "Src2": small, "Dst": np.zeros(64, np.uint8)}
    assert set(execute(intrinsics.get("avx512_vpaddb_m64_u8_u8"), operands).tolist()) == {44}
    assert set(execute(intrinsics.get("avx512_vpmaxub_m64_u8_u8"), operands).tolist()) == {200}
    signed = {name: array.view(np.int8) for name, array in operands.items()}
    assert set(execute(intrinsics.get("avx512_vpmaxsb_m64_s8_s8"), signed).tolist()) == {100}


def test_many_calls_are_single_calls() -> None:
    unit = intrinsics.get("arm_smmla_m2n2k8_s8_s32")
    operands = draw_fragments(unit, np.random.default_rng(0))
    at_once = execute(unit, operands)
    for call, row in enumerate(at_once):
        np.testing.assert_array_equal(execute(unit, {k: v[call] for k, v in operands.items()}), row)


def test_fragments_are_checked() -> None:
    unit = intrinsics.get("arm_smmla_m2n2k8_s8_s32")
    operands = draw_fragments(unit, np.random.default_rng(0))
    with pytest.raises(IntrinsicError, match="expected fragments Src1, Src2, Dst, got Src1"):
        execute(unit, {"Src1": operands["Src1"]})
    with pytest.raises(IntrinsicError, match="'Src1': expected int8 of shape .*got uint8"):
        execute(unit, operands | {"Src1": operands["Src1"].astype(np.uint8)})
