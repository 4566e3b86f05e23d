"""Which implementation of an intrinsic is chosen, and what TVM is told about it."""

from __future__ import annotations

import re

import numpy as np
import pytest

import amos
from amos.codegen.tir.arrays import to_tensor
from amos.codegen.tir.tensor_intrin import holdable, implementation, register_tensor_intrin
from amos.errors import BuildError
from amos.intrinsics import Intrinsic, Memory

pytestmark = pytest.mark.features

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")


def test_a_scalar_stays_a_scalar() -> None:
    """The multiplier of a fused multiply-add has no dimension, in TVM neither."""
    assert to_tensor(np.ones((), np.float32), "float32").shape == ()
    assert to_tensor(np.ones((2, 3), np.float32).T, "bfloat16").shape == (3, 2)


def test_native_needs_the_feature_and_an_implementation() -> None:
    assert implementation(VNNI, frozenset({"avx512_vnni", "fpu"})) == "native"
    assert implementation(VNNI, frozenset({"fpu"})) == "generic"
    wmma = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    assert implementation(wmma, frozenset(wmma.requires)) == "generic"


def test_native_implementations_belong_to_intrinsics() -> None:
    for name in amos.intrinsics.names():
        for kind, source in amos.intrinsics.implementations(name).items():
            assert (source.intrinsic, source.kind) == (name, kind)


@pytest.mark.parametrize("name", amos.intrinsics.names())
def test_every_intrinsic_has_a_generic_implementation(name: str) -> None:
    unit = amos.intrinsics.get(name)
    try:
        holdable(unit)
    except BuildError as error:
        pytest.skip(str(error))
    registered = register_tensor_intrin(unit, "generic")
    assert registered.startswith(f"amos.{name}.generic.")
    assert register_tensor_intrin(unit, "generic") == registered


def test_a_dtype_that_no_buffer_holds_is_refused() -> None:
    unit = Intrinsic.define(
        "test_nibbles",
        "Dst[i1] += Src1[r1] * Src2[i1, r1]",
        {"i1": 4, "r1": 4},
        {"Src1": "int4", "Src2": "int4", "Dst": "int32"},
        [
            Memory("Src1", "load", "memory", ("r1",), "a", ("1",)),
            Memory("Src2", "load", "memory", ("i1", "r1"), "b", ("4", "1")),
            Memory("Dst", "store", "memory", ("i1",), "c", ("1",)),
        ],
        family="test",
        source="a test",
    )
    message = "test_nibbles: operand 'Src1' has dtype int4, which no CPU kernel can hold"
    with pytest.raises(BuildError, match=re.escape(message)):
        register_tensor_intrin(unit, "generic")
