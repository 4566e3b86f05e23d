"""Types that NumPy lacks, against the package that TVM takes them from."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from amos.errors import OperatorError
from amos.ir.floats import limits, pack, quantize, unpack

OTHER = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


def _values(kind: str) -> np.ndarray:
    rng = np.random.default_rng(1)
    scale = 2.0 ** rng.integers(-20, 18, 4000)
    top = limits(kind)[1]
    ends = np.array([0.0, -0.0, 1.0, top, -top, top * 1.01, np.inf, -np.inf, 2.0**-9, 2.0**-17])
    with np.errstate(over="ignore"):
        return np.concatenate([rng.standard_normal(4000) * scale, ends]).astype(np.float32)


@pytest.mark.parametrize("kind", sorted(OTHER))
def test_rounding_agrees(kind: str) -> None:
    values = _values(kind)
    with np.errstate(over="ignore"):
        want = values.astype(OTHER[kind]).astype(np.float32)
    np.testing.assert_array_equal(quantize(values, kind), want)


@pytest.mark.parametrize("kind", sorted(OTHER))
def test_bits_agree(kind: str) -> None:
    values = quantize(_values(kind), kind)
    values = values[np.isfinite(values)]
    want = values.astype(OTHER[kind])
    np.testing.assert_array_equal(pack(values, kind), want.view(np.uint8))


def test_scales_of_blocks_are_powers_of_two() -> None:
    """Zero, which fills what lies beyond a tensor, is the smallest scale; ml_dtypes has NaN."""
    rng = np.random.default_rng(1)
    values = rng.uniform(1, 2, 4000) * 2.0 ** rng.integers(-126, 128, 4000)
    ends = [1.0, 1.5, 3.0, -1.0, 2.0**127, 1.6 * 2.0**127, np.inf, np.nan, 2.0**-127]
    values = np.concatenate([values, ends]).astype(np.float32)
    want = values.astype(ml_dtypes.float8_e8m0fnu)
    got = quantize(values, "e8m0")
    np.testing.assert_array_equal(got, want.astype(np.float32))
    np.testing.assert_array_equal(pack(got, "e8m0"), want.view(np.uint8))
    assert quantize(np.zeros(1), "e8m0").tolist() == [limits("e8m0")[0]] == [2.0**-127]
    assert pack(np.zeros(1, np.float32), "e8m0").tolist() == [0]
    assert np.isnan(quantize(np.array([1.7e308, np.inf, -1e-320]), "e8m0")).all()


@pytest.mark.parametrize("kind", ["int8", "uint32", "float16", "float64", "tfloat32", "bfloat16"])
def test_unpack_is_the_inverse(kind: str) -> None:
    values = quantize(np.arange(12.0), kind).reshape(3, 4)
    np.testing.assert_array_equal(unpack(pack(values, kind), kind, (3, 4)), values)


def test_nibbles_and_bits_are_packed_from_the_lowest() -> None:
    assert pack(np.array([1, -1, -8, 7], np.int8), "int4").tolist() == [0xF1, 0x78]
    assert pack(np.array([1, 0, 0, 0, 0, 0, 0, 1], np.uint8), "bool").tolist() == [0x81]
    with pytest.raises(OperatorError, match="3 elements of int4 do not fill whole bytes"):
        pack(np.zeros(3, np.int8), "int4")
    with pytest.raises(OperatorError, match="cannot be unpacked"):
        unpack(np.zeros(1, np.uint8), "int4", (2,))


def test_tf32_keeps_ten_bits() -> None:
    assert quantize(np.array([1 + 2.0**-10, 1 + 2.0**-11]), "tf32").tolist() == [1 + 2.0**-10, 1.0]
