"""Which implementation of an intrinsic is chosen, and what TVM is told about it."""

from __future__ import annotations

import re

import numpy as np
import pytest

import amos
from amos.codegen.tir.arrays import to_tensor
from amos.codegen.tir.tensor_intrin import check_operands, implementation, register_tensor_intrin
from amos.errors import BuildError
from amos.intrinsics import Implementation, Intrinsic, Memory
from amos.ir import Operator
from amos.runtime.calls import run_calls
from amos.validate import evaluate, random_inputs

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
        check_operands(unit)
    except BuildError as error:
        pytest.skip(str(error))
    registered = register_tensor_intrin(unit, "generic")
    assert registered.startswith(f"amos.{name}.generic.")
    assert register_tensor_intrin(unit, "generic") == registered


@pytest.mark.parametrize(
    "names",
    [
        ("T", "for", "while", "i1", "r1"),
        ("tirx", "I", "ir", "T", "range"),
        ("call", "v_call", "part", "call", "part"),
        ("v_i1", "v_r1", "main", "i1", "r1"),
        ("i1", "r1", "None", "i1", "r1"),
    ],
    ids=" ".join,
)
def test_an_intrinsic_may_call_its_operands_and_iterations_anything(names: tuple[str, ...]) -> None:
    """Also what Python and TVMScript call something."""
    unit = _dot(*names)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (3, 2), np.int16), rng.integers(-9, 9, (3, 8, 2), np.int16)
    c = rng.integers(-9, 9, (3, 8), np.int32)
    expected = c + np.einsum("cr,cir->ci", a.astype(np.int32), b)
    assert np.array_equal(run_calls(unit, "generic", [a, b, c]), expected)
    op = Operator.parse("o[x,y] += p[x,z] * q[y,z]", dict(x=5, y=19, z=7))
    mapping = amos.enumerate_mappings(op, unit)[0]
    inputs = random_inputs(mapping.operator, rng)
    got = amos.build(mapping, implementation="generic")(**inputs)
    assert np.array_equal(got, evaluate(mapping.operator, inputs))


def test_an_implementation_in_tvmscript_cannot_call_an_operand_t(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its text calls operands by their names, and TVMScript's own functions by theirs."""
    source = Implementation("test_dot", "llvm", "Dst[0] = T.int32(0)")
    module = "amos.codegen.tir.tensor_intrin.implementations"
    monkeypatch.setattr(module, lambda name: {"llvm": source})
    message = "test_dot: operand 'T': its llvm implementation, which is TVMScript, cannot use"
    with pytest.raises(BuildError, match=re.escape(message)):
        register_tensor_intrin(_dot("T", "Src2", "Dst", "i1", "r1"), "native")


def _dot(a: str, b: str, c: str, i: str, r: str) -> Intrinsic:
    return Intrinsic.define(
        "test_dot",
        f"{c}[{i}] += {a}[{r}] * {b}[{i}, {r}]",
        {i: 8, r: 2},
        {a: "int16", b: "int16", c: "int32"},
        [
            Memory(a, "load", "memory", (r,), "x", ("1",)),
            Memory(b, "load", "memory", (i, r), "y", ("2", "1")),
            Memory(c, "store", "memory", (i,), "z", ("1",)),
        ],
        family="test",
        source="a test",
    )


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
