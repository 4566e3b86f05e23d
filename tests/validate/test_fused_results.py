"""Reductions of what a producer stores, as further results of it."""

from __future__ import annotations

import pytest

from amos.validate.fusion import fusable
from tests.validate.test_fusion import GEMM, SIZES


@pytest.mark.parametrize(
    ("consumer", "kind", "how"),
    [
        ("z[i] += y[i,j] then u8(acc * s[i])", "s32", "z[i] += u8(acc) then u8(acc * s[i])"),
        ("z[j] max= y[i,j]", "u8", "z[j] max= u8(acc) then u8(acc)"),
        ("z[j] min= y[i,j] then acc + 1", "s16", "z[j] min= s16(u8(acc)) then acc + 1"),
        ("z[] += y[i,j] then relu(acc)", "f16", "z[] += f16(f32(u8(acc))) then relu(f16(acc))"),
    ],
)
def test_what_stands_behind_a_reduction(consumer: str, kind: str, how: str) -> None:
    verdict = fusable(f"{GEMM} then u8(acc)", consumer, SIZES, {"y": "s32", "z": kind})
    assert verdict.how.startswith(f"as the further result {how}"), verdict


@pytest.mark.parametrize(
    ("consumer", "kind", "reason"),
    [
        ("z[i] += y[i,j]", "u8", "would be int32, and the consumer's result is uint8"),
        ("z[i] += y[i,j] then relu(acc)", "s16", "the consumer's result is int16"),
        ("z[i] += y[i,j]", "s64", "no expression gives int64"),
    ],
)
def test_what_no_reduction_of_results_is(consumer: str, kind: str, reason: str) -> None:
    verdict = fusable(f"{GEMM} then u8(acc)", consumer, SIZES, {"y": "s32", "z": kind})
    assert not verdict and reason in str(verdict)
