"""An operator's sums wrap around; what saturates may only take those that cannot overflow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import amos
from amos import intrinsics
from amos.errors import MappingError
from amos.intrinsics.meaning import scalar_unit

NAME = "vnni_dpbusds_m16k4_u8_s8_s32"
#: 255 · -128 is the largest product; so many of them just fit into 32 bits.
SAFE = 2**31 // (255 * 128)


def _op(depth: int) -> amos.Operator:
    return amos.Operator.parse("o[j] += a[k] * b[j,k]", extents={"j": 1, "k": depth}, name="dot")


def test_what_cannot_overflow_is_mapped_and_computes_the_same() -> None:
    op, unit = _op(SAFE), intrinsics.get(NAME)
    assert amos.check_matching(op, unit, [[1, 0], [0, 1]])
    (mapping,) = amos.enumerate_mappings(op, unit)
    # The worst case there is: it ends a hair above the smallest number.
    inputs = {"a": np.full(SAFE, 255, np.uint8), "b": np.full((1, SAFE), -128, np.int8)}
    op = mapping.operator
    typed = amos.Operator.parse(
        "o[j] += a[k] * b[j,k]",
        extents=op.extents,
        dtypes={"a": "uint8", "b": "int8", "o": "int32"},
    )
    (mapping,) = amos.enumerate_mappings(typed, unit)
    got = amos.simulate(mapping, inputs)
    assert got.tolist() == [-255 * 128 * SAFE]


@pytest.mark.parametrize("order", [None, (0, 1)])
def test_what_may_overflow_is_refused_with_the_reason(order: tuple[int, int] | None) -> None:
    unit = intrinsics.get(NAME)
    reason = (
        f"dot cannot use {NAME}: its sums wrap around, the intrinsic's saturate, and {SAFE + 1} "
        f"products can leave int32; up to {SAFE} products cannot"
    )
    with pytest.raises(MappingError, match=reason):
        amos.check_matching(_op(SAFE + 1), unit, [[1, 0], [0, 1]], order=order)
    with pytest.raises(MappingError, match=reason):
        amos.enumerate_mappings(_op(SAFE + 1), unit)
    wraps = intrinsics.get(NAME.replace("dpbusds", "dpbusd"))
    assert len(amos.enumerate_mappings(_op(SAFE + 1), wraps)) == 1


def test_each_end_of_the_range_counts_by_itself() -> None:
    """Bytes without a sign into a word with one: products are never negative."""
    unit = replace(
        intrinsics.get("arm_udot_m4k4_u8_u32"),
        name="unsigned",
        arithmetic=intrinsics.Arithmetic(saturate=True),
    )
    most = (2**32 - 1) // 255**2
    amos.enumerate_mappings(_op(most), unit)
    with pytest.raises(MappingError, match=f"up to {most} products cannot"):
        amos.enumerate_mappings(_op(most + 1), unit)


def test_the_executed_statement_saturates() -> None:
    run = scalar_unit(intrinsics.get(NAME))
    start = np.full(1, 2**31 - 5, np.int64)
    sources = [np.full(4, 255, np.int64), np.full((1, 4), 127, np.int64)]
    assert run(start, sources).tolist() == [2**31 - 1]
