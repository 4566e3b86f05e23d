"""The text of an epilogue: what it means, how it prints, and what is refused."""

from __future__ import annotations

import re

import pytest

from amos.errors import AmosError, OperatorError, ParseError
from amos.ir import Operator
from amos.ir.expression_parser import tensors_in
from amos.records.canonical import digest, operator_from, operator_values

OP = Operator.parse(
    "out[n,k] += a[n,c] * weight[k,c]",
    extents=dict(n=2, k=3, c=4),
    dtypes=dict(a="uint8", weight="int8", out="int32"),
)


@pytest.mark.parametrize(
    ("text", "printed", "result"),
    [
        ("u8(relu((acc+bias[k])*scale[k]))", "u8(relu((acc + bias[k]) * scale[k]))", "uint8"),
        ("acc - (acc - 1) - 2", "acc - (acc - 1) - 2", "int32"),
        ("acc - 1 - 2", "acc - 1 - 2", "int32"),
        ("acc + 2 * (3 * acc)", "acc + 2 * (3 * acc)", "int32"),
        ("-acc * scale[]", "(0 - acc) * scale[]", "float32"),
        ("f32(acc)", "f32(acc)", "float32"),
        ("(u8(acc - -2147483648 + --1))", "u8(acc - -2147483648 + (0 - -1))", "uint8"),
        (
            "s8(clip(acc*0.5, -1, 6) + skip[n, k])",
            "s8(clip(acc * 0.5, -1, 6) + skip[n, k])",
            "int8",
        ),
        ("bf16(max(acc, min(acc, 1.5)))", "bf16(max(acc, min(acc, 1.5)))", "bfloat16"),
        ("acc / (bias[k] / 2) * 3 - (1 - acc)", "acc / (bias[k] / 2) * 3 - (1 - acc)", "float32"),
        ("f16(gelu(acc*scale[k])/row[n])", "f16(gelu(acc * scale[k]) / row[n])", "float16"),
        ("s8(round(acc / s[k]) + zero[k])", "s8(round(acc / s[k]) + zero[k])", "int8"),
        ("s8((u8(acc)-3)*f32(bf16(acc)))", "s8((u8(acc) - 3) * f32(bf16(acc)))", "int8"),
        ("abs(acc) + s16(acc * 0.5)", "abs(acc) + s16(acc * 0.5)", "int32"),
        ("hardswish(fma(acc, 2, erf(1)))", "hardswish(fma(acc, 2, erf(1)))", "float32"),
        ("s8(acc+64>>7>>1)", "s8(acc + 64 >> 7 >> 1)", "int8"),
        ("4 * (acc >> 31) - (-8 >> 0)", "4 * (acc >> 31) - (-8 >> 0)", "int32"),
        ("max(acc >> 3, s32(acc * 0.5) >> 1)", "max(acc >> 3, s32(acc * 0.5) >> 1)", "int32"),
        ("round(acc * table[2*k + 1])", "round(acc * table[k*2 + 1])", "float32"),
    ],
)
def test_text(text: str, printed: str, result: str) -> None:
    op = OP.with_epilogue(text)
    assert str(op.epilogue) == printed
    assert op.result_dtype == result
    # What is printed is read again as the same, and is what records hold.
    assert OP.with_epilogue(printed).epilogue == op.epilogue
    assert operator_from(operator_values(op)) == op
    assert printed in str(op)


def test_tensors_and_shapes() -> None:
    text = "(acc + bias[k]) * scale[k] + skip[n, k]"
    assert sorted(tensors_in(text)) == ["bias", "scale", "skip"]
    op = OP.with_epilogue(text, dtypes=dict(bias="s32"), shapes=dict(scale=(5,)))
    assert [(t.name, t.shape, t.dtype) for t in op.inputs] == [
        ("a", (2, 4), "uint8"),
        ("weight", (3, 4), "int8"),
        ("bias", (3,), "int32"),
        ("scale", (5,), "float32"),
        ("skip", (2, 3), "float32"),
    ]
    assert operator_from(operator_values(op)) == op
    assert digest(operator_values(op)) != digest(operator_values(OP))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected an expression such as"),
        ("acc +", "expected an expression such as"),
        ("acc if 1 else 2", "expected an expression such as"),
        ("foo + acc", "unknown name 'foo'"),
        ("acc // 2", "// is no sign of an expression; signs are + - * / >>"),
        ("acc >> 32", "expected a whole number from 0 to 31 to shift by"),
        ("acc >> -1", "expected a whole number from 0 to 31 to shift by"),
        ("acc >> acc", "expected a whole number from 0 to 31 to shift by"),
        ("sin(acc)", "unknown function 'sin'"),
        ("_pow2(acc)", "functions of one element are abs, bf16, clamp, clip, "),
        ("clip(acc, 1)", "clip(...) takes 3 arguments, got 2"),
        ("acc * scale[c]", "'scale' is indexed by 'c', which is no iteration of the output"),
        ("acc * scale[k*n]", "not affine: product of k and n"),
        (
            "acc * scale[k-1]",
            "index k - 1 of 'scale' runs from -1 to 1, outside dimension 0 of size 2",
        ),
        ("acc * scale[k] * scale[n]", "tensor 'scale' is read with two shapes"),
        ("acc + 4294967296", "integer 4294967296 is outside int32"),
        ("acc + 1e999", "number inf is outside float32"),
        ("acc * -1e39", "number -1e+39 is outside float32"),
        ("__import__(acc)", "unknown function '__import__'"),
        ("__import__('os')", "unexpected character"),
        ("(" * 999 + "acc" + ")" * 999, "parentheses are nested deeper than 64"),
        ("-" * 999 + "acc", "expressions are nested deeper than 64"),
        ("acc + " * 70 + "acc", "expressions are nested deeper than 64"),
    ],
)
def test_what_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=re.escape(message)):
        OP.with_epilogue(text)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("acc + a[n]", {}, "'a' is a tensor of the statement already"),
        ("acc", dict(dtypes=dict(bias="s32")), "dtype given for 'bias', which the epilogue"),
        ("acc", dict(shapes=dict(bias=(3,))), "shape given for 'bias', which the epilogue"),
        ("acc * 0.5 >> 1", {}, "acc * 0.5 >> 1: expected an integer to shift, got a float"),
        ("acc + b[k]", dict(dtypes=dict(b="float64")), "epilogue tensor 'b': expected int32"),
        ("acc + b[k]", dict(dtypes=dict(b="int1024")), "int1024"),
    ],
)
def test_what_does_not_fit(text: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(AmosError, match=re.escape(message)):
        OP.with_epilogue(text, **arguments)  # type: ignore[arg-type]


def test_an_accumulator_that_no_expression_takes() -> None:
    op = Operator.parse("o[i] += a[i,k]", extents=dict(i=2, k=2), dtypes=dict(o="int64"))
    with pytest.raises(OperatorError, match="no int32 or float32 holds accumulators of int64"):
        op.with_epilogue("acc + 1")


def test_the_caret_stands_under_what_is_wrong() -> None:
    with pytest.raises(ParseError) as caught:
        OP.with_epilogue("  acc * scale[ ] + foo")
    _, text, caret = str(caught.value).splitlines()
    assert text[caret.index("^") :] == "foo"
