"""Operators: invariants, and what they say about themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amos import fusable, operators
from amos.errors import OperatorError
from amos.ir import Operator, resolve_dtypes


def test_facts_of_a_convolution() -> None:
    op = Operator.parse(
        "out[k,p] += image[c,p+r] * weight[k,c,r]", {"k": 4, "p": 5, "c": 3, "r": 2}
    )
    assert op.name == "out"
    assert [it.name for it in op.spatial] == ["k", "p"]
    assert op.points == 4 * 5 * 3 * 2
    assert op.operations == 2 * op.points
    expected = [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 0]]
    np.testing.assert_array_equal(op.access_matrix, np.array(expected, dtype=bool))
    assert str(op).endswith("with k=4, p=5, c=3, r=2")


@pytest.mark.parametrize(
    ("text", "arithmetic"),
    [
        ("o[i] += a[i,k] * b[k]", "multiply-add"),
        ("o[i] += a[i,k]", "add"),
        ("o[i] = a[i,0] * b[i]", "multiply"),
        ("o[i] = a[i,0]", "copy"),
    ],
)
def test_arithmetic(text: str, arithmetic: str) -> None:
    extents = {"i": 3, "k": 4} if "k" in text else {"i": 3}
    assert Operator.parse(text, extents).compute.arithmetic == arithmetic


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("o[i] = a[i,j]", "j is summed over, so write += instead of ="),
        ("o[i] += a[i,j-1]", "runs from -1 to 1, outside dimension 1 of size 2; write pad(a"),
        ("o[i-1] += a[i,j]", "index i - 1 of 'o' runs from -1 to 1"),
        ("o[i+j] += a[i,j]", "the coefficient 1 of j must exceed"),
        ("o[i,i] += a[i,j]", "indexes two dimensions of the output"),
        ("o[i] += o[j]", "'o' is both read and written"),
    ],
)
def test_ill_formed_operators(text: str, message: str) -> None:
    with pytest.raises(OperatorError) as caught:
        Operator.parse(text, {"i": 3, "j": 3})
    assert message in str(caught.value)


def test_output_indices_that_stay_apart_are_fine() -> None:
    op = Operator.parse("o[i*3 + j, 2] += a[i,j]", {"i": 4, "j": 3})
    assert op.output.tensor.shape == (12, 3)


def test_with_dtypes_fills_only_what_is_open() -> None:
    op = Operator.parse("o[i] += a[i,k] * b[k]", {"i": 2, "k": 2}, {"a": "u8"})
    filled = op.with_dtypes({"a": "s8", "b": "s8", "o": "s32"})
    assert [load.tensor.dtype for load in filled.operands] == ["uint8", "int8", "int32"]
    assert str(filled).endswith("(a: u8, b: s8, o: s32)")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (None, (None, None, None)),
        ("u8s8", ("uint8", "int8", "int32")),
        ("bf16", ("bfloat16", "bfloat16", "float32")),
        ("f64", ("float64", "float64", "float64")),
        (("u8", "i8", "s32"), ("uint8", "int8", "int32")),
    ],
)
def test_resolve_dtypes(spec: str | tuple[str, ...] | None, expected: tuple[str, ...]) -> None:
    assert resolve_dtypes(spec, 2) == expected


@pytest.mark.parametrize("value", ["s8", ["s8"], 3])
def test_what_is_given_by_name_is_a_dictionary(value: Any) -> None:
    text, sizes = "o[i] += a[i,j] * b[j]", {"i": 4, "j": 4}
    op = Operator.parse(text, sizes)
    for doing in (
        lambda: Operator.parse(text, value),
        lambda: Operator.parse(text, sizes, value),
        lambda: Operator.parse(text, sizes, shapes=value),
        lambda: Operator.parse(text, sizes, constants="a"),
        lambda: op.with_epilogue("acc + t[i]", value),
        lambda: op.with_epilogue("acc + t[i]", shapes=value),
        lambda: op.with_prologue("a", "x[i,j]", value),
        lambda: op.with_prologue("a", "x[i,j]", shapes=value),
        lambda: op.with_output("y[i]", value),
        lambda: op.with_result("f[i] = acc", value),
        lambda: op.with_result("f[i] = acc", shapes=value),
        lambda: op.with_dtypes(value),
        lambda: operators.resolve("gemm", value),
        lambda: operators.resolve("gemm", dtypes=value),
        lambda: operators.resolve("gemm", shapes=value),
        lambda: fusable("y[i] = x[i]", "z[i] = y[i]", value),
        lambda: fusable("y[i] = x[i]", "z[i] = y[i]", {"i": 4}, value),
    ):
        with pytest.raises(OperatorError, match="expected a (dictionary|list of names), got"):
            doing()


def test_constants_are_named_anew() -> None:
    op = Operator.parse("o[i,j] += x[i,k] * weight[k,j]", dict(i=2, j=3, k=4))
    op = op.with_epilogue("relu(acc)")
    assert op.with_constants([]) == replace(op, constants=())
    assert op.with_constants(["x"]) == replace(op, constants=("x",))
    with pytest.raises(OperatorError, match="constant 'o' is not an input; inputs are x, weight"):
        op.with_constants(["o"])
    with pytest.raises(OperatorError, match="constants: expected a list of names, got 'x'"):
        op.with_constants("x")
