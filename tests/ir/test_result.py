"""Further results: what the text means, how it prints, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from amos.errors import AmosError, OperatorError, ParseError
from amos.ir import Operator
from amos.records.canonical import operator_from, operator_values
from amos.validate import evaluate, random_inputs

OP = Operator.parse(
    "out[n,p,k] += a[n,p,c] * weight[k,c]",
    extents=dict(n=2, p=6, k=4, c=5),
    dtypes=dict(a="uint8", weight="int8", out="int32"),
)


@pytest.mark.parametrize(
    ("text", "printed", "shape", "kind"),
    [
        ("f[n,p,k]=f32(acc*s[k])", "f[n, p, k] = f32(acc * s[k])", (2, 6, 4), "float32"),
        ("f[k, n*6 + p] = u8(acc)", "f[k, n*6 + p] = u8(acc)", (4, 12), "uint8"),
        ("f[p//2, p%2, n, k + 1] = acc", "f[p//2, p%2, n, k + 1] = acc", (3, 2, 2, 5), "int32"),
        ("top[n, p] max= max(acc, 3)", "top[n, p] max= max(acc, 3)", (2, 6), "int32"),
        ("least[]min=acc*0.5", "least[] min= acc * 0.5", (), "float32"),
        ("mean[k, n] += u8(acc)", "mean[k, n] += u8(acc)", (4, 2), "int32"),
        ("m[k]+=acc then u8(acc*s[k])", "m[k] += acc then u8(acc * s[k])", (4,), "uint8"),
        ("m[] max= acc then acc*0.5", "m[] max= acc then acc * 0.5", (), "float32"),
        ("mean[p%3 + 1, p//3] += bf16(acc)", "mean[p%3 + 1, p//3] += bf16(acc)", (4, 2), "float32"),
    ],
)
def test_text(text: str, printed: str, shape: tuple[int, ...], kind: str) -> None:
    op = OP.with_output("y[k, n, p]").with_result(text)
    result = op.results[1]
    assert (str(op.further[0]), result.shape, result.dtype) == (printed, shape, kind)
    assert str(op).endswith(f"  to y[k, n, p]  and {printed}")
    assert [tensor.name for tensor in op.results] == ["y", result.name]
    assert operator_from(operator_values(op)) == op
    renamed = op.rename(lambda name: f"{name}.1", lambda name: f"{name}!")
    assert operator_from(operator_values(renamed)) == renamed
    assert renamed.rename(lambda name: name[:-2], lambda name: name[:-1]) == op


def test_tensors_of_one_name_are_one() -> None:
    op = OP.with_epilogue("u8(acc * s[k] + z[])", dtypes={"z": "uint8"}, shapes={"s": (9,)})
    op = op.with_result("f[n,p,k] = acc * s[k] + z[]")
    assert [tensor.name for tensor in op.inputs] == ["a", "weight", "s", "z"]
    with pytest.raises(OperatorError, match="'s' is read with two shapes or dtypes"):
        op.with_result("g[n,p,k] = acc * s[k]", dtypes={"s": "int32"})


def test_what_it_means() -> None:
    op = OP.with_epilogue("u8(acc * s[k])").with_result("f[k, p, n] = s8(acc)")
    op = op.with_result("mean[k] += acc * s[k]").with_result("top[p, n] max= u8(acc * s[k])")
    op = op.with_result("end[k] += acc then s8(acc * s[k] + acc)")
    op = op.with_result("least[] min= acc").with_result("all[p + 1] += acc", shapes={"all": (9,)})
    inputs = random_inputs(op, np.random.default_rng(0))
    first, f, mean, top, end, least, product = evaluate(op, inputs)
    sums = inputs["a"].astype(np.int64) @ inputs["weight"].astype(np.int64).T
    np.testing.assert_array_equal(first, evaluate(OP.with_epilogue("u8(acc * s[k])"), inputs))
    np.testing.assert_array_equal(f, np.clip(sums, -128, 127).transpose(2, 1, 0))
    np.testing.assert_allclose(mean, (sums * inputs["s"]).sum((0, 1)), rtol=1e-5)
    np.testing.assert_array_equal(top, first.max(2).T)
    total = sums.sum((0, 1)).astype(np.int32).astype(np.float32)
    ends = np.clip(np.rint(total * inputs["s"] + total), -128, 127)
    np.testing.assert_array_equal(end, ends.astype(np.int8))
    assert least == sums.min() and least.shape == ()
    np.testing.assert_array_equal(product, [0, *sums.sum((0, 2)), 0, 0])
    assert (top.dtype, mean.dtype, product.dtype) == (np.int32, np.float32, np.int32)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("f[n, p] = acc", OperatorError, "'k' does not index it"),
        ("top[n, p, k] max= acc", OperatorError, "there is nothing to reduce; write ="),
        ("top[n, p//2] max= acc", OperatorError, "p//2 do not tell each of 6 steps"),
        ("a[n] max= acc", OperatorError, "'a' is a tensor that the operator"),
        ("out[n] max= acc", OperatorError, "'out' is another result"),
        ("top[n] *= acc", ParseError, "expected =, +=, max= or min=, got *="),
        ("top[n] best= acc", ParseError, "got best="),
        ("f[n, p, k] = f32(b[k])", OperatorError, "expected an expression of acc"),
        ("f[n, p, k] = f32(acc * a[n])", OperatorError, "'a' is a tensor of the statement"),
        ("f[n, p, k] *= acc", ParseError, "expected"),
        ("f[n, p, k] = acc then acc", OperatorError, "then follows +=, max= or min="),
        ("top[n] += acc then acc + b[p]", OperatorError, "b[p] is indexed by 'p', along which"),
        ("top[n] += acc then b[n]", OperatorError, "expected an expression of acc"),
        ("top[n] += acc then", ParseError, "expected an expression such as"),
        ("f[n, p, k]", ParseError, "expected a result such as"),
        ("f = acc", ParseError, "expected '['"),
        ("f[c] += acc", ParseError, "'c', which is no iteration of the output"),
        ("", ParseError, "expected a result such as"),
    ],
)
def test_refused(text: str, error: type[AmosError], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)) as caught:
        OP.with_result(text)
    assert len(str(caught.value).splitlines()) <= 3


def test_two_results_have_two_names() -> None:
    op = OP.with_result("f[n,p,k] = f32(acc)")
    with pytest.raises(OperatorError, match="'f' is another result"):
        op.with_result("f[n] max= acc")
    with pytest.raises(OperatorError, match="'s' is a tensor that the operator reads"):
        OP.with_epilogue("acc * s[k]").with_result("s[n,p,k] = acc")
    with pytest.raises(OperatorError, match="shape given for 'z'"):
        op.with_result("top[n] max= acc", shapes={"z": (3,)})


@pytest.mark.parametrize("kind", ["f16", "f64", "u8", "s8", "s16", "u16"])
def test_accumulators_of_other_types(kind: str) -> None:
    op = Operator.parse("out[p,k] max= a[p,k,c]", dict(p=3, k=4, c=5), dict(a=kind, out=kind))
    op = op.with_result("f[k,p] = acc * 0.5").with_result("m[p] += acc then s8(acc)")
    inputs = random_inputs(op, np.random.default_rng(1))
    first, f, m = evaluate(op, inputs)
    best = inputs["a"].max(2)
    assert first.dtype == best.dtype and (f.dtype, m.dtype) == (np.float32, np.int8)
    np.testing.assert_array_equal(first, best)
    np.testing.assert_array_equal(f, best.T.astype(np.float32) * 0.5)
    total = best.astype(np.float64).sum(1)
    np.testing.assert_array_equal(m, np.clip(np.rint(total), -128, 127))
    assert operator_from(operator_values(op)) == op


def test_accumulators_that_no_expression_takes() -> None:
    op = Operator.parse("out[p] += a[p,c]", dict(p=3, c=5), dict(a="s64", out="s64"))
    with pytest.raises(OperatorError, match="no int32 or float32 holds accumulators of int64"):
        op.with_result("f[p] = acc")
