"""The operator library on the CPU's instructions, at shapes that fit them badly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import amos
from amos.ir import Operator
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs

#: Instructions, and the dtypes that operators ask for to use them.
UNITS = {
    "vnni_dpbusd_m16k4_u8_s8_s32": "u8s8",
    "vnni_dpbusd_lhs_m16k4_u8_s8_s32": "u8s8",
    "vnni_dpbusd_signed_m16k4_s8_s32": "s8",
    "avx512bf16_dpbf16ps_m16k2_bf16_f32": "bf16",
    "avx512_fmadd_m16_f32_f32": "f32",
}
#: Parameters that are extents of windows or of outer loops stay small.
_SMALL = ("r", "s", "t", "n", "g", "b", "h")
_SHAPES = ("ones", "twos", "primes", "beyond a fragment", "drawn")
_SKIPPED = ("stride", "dilation", "padding", "h", "w")


def _shape(name: str, kind: str, rng: np.random.Generator) -> dict[str, int]:
    """Extents of an operator: all 1, below a fragment, prime, just beyond one, or drawn."""
    defaults = amos.operators.builder(name).defaults
    skipped = _SKIPPED if "r" in defaults else ()
    extents = [k for k, v in defaults.items() if isinstance(v, int) and k not in skipped]

    def size(key: str) -> int:
        if kind in ("ones", "twos"):
            return 1 if kind == "ones" else 2
        if kind == "drawn":
            return int(rng.integers(1, 5))
        if key in _SMALL or len(extents) > 7:
            return 3
        return int(rng.choice([5, 7, 11, 13] if kind == "primes" else [16, 17, 18]))

    return {key: size(key) for key in extents}


def _operator(name: str, kind: str, dtype: str, rng: np.random.Generator) -> Operator:
    extra = {"padding": 0, "stride": 1} if name == "transposed_conv2d" else {}
    return amos.operators.get(name, **_shape(name, kind, rng), **extra, dtype=dtype)


def _check(name: str, kind: str, unit: str, rng: np.random.Generator, mappings: int) -> None:
    """Build drawn mappings under drawn schedules and compare each with NumPy."""
    op = _operator(name, kind, UNITS[unit], rng)
    space = amos.enumerate_mappings(op, amos.intrinsics.get(unit), rule="gather", commute=True)
    assert len(space)
    for number in rng.integers(0, len(space), mappings):
        mapping = space[int(number)]
        schedule = ScheduleSpace(mapping).sample(rng)
        inputs = random_inputs(mapping.operator, rng)
        expected = evaluate(mapping.operator, inputs)
        got = amos.build(mapping, schedule)(**inputs)
        where = f"{mapping.operator}: {mapping.name}, {schedule}"
        assert got.dtype == expected.dtype and got.shape == expected.shape, where
        if got.dtype.kind in "iu":
            assert np.array_equal(got, expected), where
        else:
            scale = max(1.0, float(np.abs(expected).max()))
            assert np.abs(got - expected).max() <= 1e-5 * scale, where


def _summing() -> list[str]:
    """Operators of two sources that they multiply, as these instructions do."""
    two = [n for n in amos.operators.names() if len(amos.operators.get(n).sources) == 2]
    return [name for name in two if name != "add"]


def _cases() -> Iterator[tuple[str, str, str]]:
    """Every operator on one of the instructions at one of the shapes, in turns."""
    units = list(UNITS)
    for n, name in enumerate(_summing()):
        yield name, _SHAPES[(n + n // len(units)) % len(_SHAPES)], units[n % len(units)]


@pytest.mark.parametrize(("name", "kind", "unit"), list(_cases()))
def test_an_operator_on_an_instruction(name: str, kind: str, unit: str) -> None:
    _check(name, kind, unit, np.random.default_rng(len(name) + len(unit)), mappings=1)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", _SHAPES)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", _summing())
def test_every_shape_of_every_operator(name: str, unit: str, kind: str) -> None:
    for seed in range(2):
        _check(name, kind, unit, np.random.default_rng(seed), mappings=3)


@pytest.mark.features
def test_signed_bytes_are_exact_at_their_limits() -> None:
    """Every pair of extreme bytes, which no saturating or absolute-value trick survives."""
    op = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=3, j=17, k=9))
    (mapping,) = amos.enumerate_mappings(op, "vnni_dpbusd_signed_m16k4_s8_s32")
    limits = np.array([-128, -127, -1, 0, 1, 127], np.int8)
    a, weight = np.resize(limits, (3, 9)), np.resize(limits[::-1], (17, 9)).astype(np.int8)
    weight[0], a[0] = -128, -128
    expected = a.astype(np.int64) @ weight.T.astype(np.int64)
    np.testing.assert_array_equal(amos.build(mapping)(a, weight), expected)
