"""Dtypes whose values are declared to stay in a range."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos import operators
from amos.errors import AmosError, OperatorError
from amos.ir import Operator, Tensor, dtype, resolve_dtypes
from amos.records.canonical import operator_from, operator_values
from amos.validate import evaluate
from amos.validate.buffers import random_inputs

TEXT, EXTENTS = "out[i,j] += x[i,k] * weight[j,k]", dict(i=4, j=16, k=8)


@pytest.mark.parametrize(
    ("text", "name", "limits", "spelled"),
    [
        ("s8 in [-64, 64]", "int8", (-64, 64), "s8 in [-64, 64]"),
        (" int8  in[ -100,20 ] ", "int8", (-100, 20), "s8 in [-100, 20]"),
        ("u8 in [0, 127]", "uint8", (0, 127), "u8 in [0, 127]"),
        ("u16 in [5, 5]", "uint16", (5, 5), "u16 in [5, 5]"),
        ("u8 in [0, 255]", "uint8", (0, 255), "u8"),
        ("s7", "int8", (-64, 63), "s8 in [-64, 63]"),
        ("int7", "int8", (-64, 63), "s8 in [-64, 63]"),
        ("uint7", "uint8", (0, 127), "u8 in [0, 127]"),
        ("s7 in [-8, 7]", "int8", (-8, 7), "s8 in [-8, 7]"),
        ("s7 in [-64, 63]", "int8", (-64, 63), "s8 in [-64, 63]"),
    ],
)
def test_ranges(text: str, name: str, limits: tuple[int, int], spelled: str) -> None:
    kind = dtype(text)
    assert (kind.name, kind.limits, kind.spelled) == (name, limits, spelled)
    assert dtype(kind.declared) == dtype(spelled) == kind
    tensor = Tensor("a", (3,), text)
    assert (tensor.dtype, tensor.bounds, tensor.kind) == (name, kind.bounds, kind)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s8 in [3, 300]", r"'s8 in \[3, 300\]': expected a range within \[-128, 127\]"),
        ("s8 in [5, 2]", r"expected a range within \[-128, 127\]"),
        ("u7 in [0, 200]", r"expected a range within \[0, 127\]"),
        ("f32 in [0, 1]", "expected an integer type"),
        ("s9 in [0, 1]", "unknown dtype 's9'"),
        ("s8 in [0; 1]", "unknown dtype 's8 in"),
    ],
)
def test_what_is_no_range(text: str, message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        dtype(text)
    assert "\n" not in str(caught.value)


def test_operators_say_and_keep_them() -> None:
    kinds = dict(x="u8", weight="s8 in [-100, 20]")
    op = Operator.parse(TEXT, EXTENTS, kinds).with_dtypes({"out": "s32"})
    op = op.with_epilogue("acc + bias[j]", {"bias": "s32 in [-9, 9]"})
    assert "(x: u8, weight: s8 in [-100, 20], bias: s32 in [-9, 9], out: s32)" in str(op)
    assert operator_from(operator_values(op)) == op
    assert op.undeclared == Operator.parse(TEXT, EXTENTS, kinds | {"weight": "s8"}).with_dtypes(
        {"out": "s32"}
    ).with_epilogue("acc + bias[j]", {"bias": "s32 in [-9, 9]"})
    inputs = random_inputs(op, np.random.default_rng(0))
    assert -100 <= inputs["weight"].min() < -64 and 8 < inputs["weight"].max() <= 20
    assert set(np.unique(inputs["bias"])) <= set(range(-9, 10))
    inputs["weight"][3, 1] = 21
    with pytest.raises(OperatorError, match=r"'weight' .*\[-100, 20\], got 21 at \[3, 1\]"):
        evaluate(op, inputs)


def test_requests() -> None:
    """Commas within a range are none between dtypes."""
    for text in ("u8, s8 in [-64, 64], s32", "u8,s8 in [-64,64],s32"):
        op = operators.resolve(TEXT, EXTENTS, dtype=text)
        assert [load.tensor.kind and load.tensor.kind.spelled for load in op.operands] == [
            *("u8", "s8 in [-64, 64]", "s32")
        ]
    assert resolve_dtypes("u8s7", 2) == ("uint8", "int8 in [-64, 63]", "int32")
    pool = operators.get("max_pool2d", c=8, p=4, q=4, dtype="s8 in [-64, 64]")
    assert (pool.sources[0].padding, pool.output.tensor.bounds) == (-64, None)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Operator.parse(TEXT, EXTENTS, {"out": "s32 in [0, 9]"}), "no range of 'out'"),
        (
            lambda: Operator.parse(TEXT, EXTENTS, {"x": "u7"}).with_prologue("x", "u8(y[i,k])"),
            "it is computed, so that no range of it",
        ),
        (
            lambda: Operator.parse("o[i] = pad(a[i-1], 9)", {"i": 3}, {"a": "s8 in [-1, 8]"}),
            r"9 is no value of int8 in \[-1, 8\]",
        ),
    ],
)
def test_where_there_is_none(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(AmosError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_widest_range_is_exact_at_its_ends(sign: int) -> None:
    """What the instruction adds up in 16 bits is just below what they hold."""
    op = operators.resolve(TEXT, EXTENTS, dtype="u8, s8 in [-64, 64], s32")
    unit = amos.intrinsics.get("avx2_pmaddubsw_m8k4_u8_s7_s32")
    mapping = amos.enumerate_mappings(op, unit)[0]
    x, weight = np.full((4, 8), 255, np.uint8), np.full((16, 8), sign * 64, np.int8)
    assert (amos.build(mapping)(x=x, weight=weight) == sign * 8 * 64 * 255).all()
    assert (amos.simulate(mapping, {"x": x, "weight": weight}) == sign * 8 * 64 * 255).all()
