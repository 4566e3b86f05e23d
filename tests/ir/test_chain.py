"""Chains: what their text means, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import amos
from amos.errors import AmosError
from amos.ir import Chain
from amos.validate import evaluate, random_inputs

ATTENTION = (
    "scores[b,q,k] += query[b,q,d] * key[b,k,d]; p = softmax(scores * s, axis=k); "
    "out[b,q,d] += p[b,q,k] * value[b,k,d]"
)
SIZES = dict(b=2, q=5, k=7, d=4)


def test_attention_is_three_statements_of_six_steps() -> None:
    chain = Chain.parse(ATTENTION, SIZES)
    assert [str(each) for each in chain.statements] == [x.strip() for x in ATTENTION.split(";")]
    assert len(chain.steps) == 6
    assert [x.name for x in chain.inputs] == ["query", "key", "s", "value"]
    assert chain.statement_of("p.exp").text == "p = softmax(scores * s, axis=k)"
    assert (chain.result.name, chain.result.shape) == ("out", (2, 5, 4))
    assert chain.temporaries[0].shape == (2, 5, 7)
    assert str(amos.Operator.parse(ATTENTION, SIZES)) == str(chain)
    assert len(amos.Operator.parse("o[i] += a[i,k] * b[k]", dict(i=2, k=2)).statements) == 1


def test_attention_is_numpys() -> None:
    chain = Chain.parse(ATTENTION, SIZES)
    x = random_inputs(chain, np.random.default_rng(0))
    scores = np.einsum("bqd,bkd->bqk", x["query"], x["key"]) * x["s"]
    power = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bqk,bkd->bqd", power / power.sum(-1, keepdims=True), x["value"])
    np.testing.assert_allclose(evaluate(chain, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "numpy"),
    [
        ("m = max(x[i,k], axis=k); o[i,k] = x[i,k] - m", lambda x: x - x.max(1, keepdims=True)),
        ("m = sum(x[i,k], axis=i); o[k] = m * 2", lambda x: x.sum(0) * 2),
        ("l = logsumexp(x[i,k], axis=k); o = 0 - l", lambda x: -np.log(np.exp(x).sum(1))),
        ("m[i] max= x[i,k]; l[i] += exp(x[i,k] - m); o = log(l) + m",
         lambda x: np.log(np.exp(x).sum(1))),
        ("t[i,k] = x[i,k] * 0.5; o[k,i] = t[i,k] + min(i - k, 0)",
         lambda x: (x * 0.5 + np.minimum(np.subtract.outer(np.arange(3), np.arange(4)), 0)).T),
        ("t[i,j] = (x[i,j] + x[i,j+1]) * 0.5; o[i,j] = t[i,j] * t[0,j]",
         lambda x: (t := (x[:, :-1] + x[:, 1:]) / 2) * t[:1]),
    ],
)  # fmt: skip
def test_expressions_and_rows(text: str, numpy: Callable[[Any], Any]) -> None:
    sizes = {name: size for name, size in dict(i=3, k=4, j=3).items() if name in text}
    sizes = {
        n: s for n, s in sizes.items() if f"{n}]" in text or f"[{n}" in text or f",{n}" in text
    }
    chain = Chain.parse(text, sizes)
    x = random_inputs(chain, np.random.default_rng(1))
    np.testing.assert_allclose(evaluate(chain, x), numpy(x["x"]), rtol=1e-5, atol=1e-6)


def test_dtypes_of_temporaries() -> None:
    chain = Chain.parse(
        "t[i,j] += a[i,k] * b[k,j]; o[i,j] = u8(relu(t * s))",
        dict(i=2, j=3, k=4),
        dict(a="u8", b="s8"),
    )
    assert (chain.temporaries[0].dtype, chain.result.dtype) == ("int32", "uint8")
    half = Chain.parse(ATTENTION, SIZES, dict(p="bf16", query="bf16", key="bf16", value="bf16"))
    assert [t.dtype for t in half.temporaries][-1] == "bfloat16"


@pytest.mark.parametrize(
    ("text", "sizes", "message"),
    [
        ("p[i] = exp(t[i]); t[i] += a[i,k]*b[k]; o[i] = p[i] + t[i]", dict(i=3, k=2),
         "statement 1, 'p[i] = exp(t[i])': reads 't' before 't[i] += a[i,k]*b[k]' writes it"),
        ("p = softmax(s, axis=k); s[q,k] += a[q,d]*b[k,d]; o[q,k] = p + 1", dict(q=3, k=2, d=2),
         "statement 1, 'p = softmax(s, axis=k)': reads 's' before 's[q,k] += a[q,d]*b[k,d]'"),
        ("o[q,k] = s[q,k] + 1; p = softmax(t, axis=k)", dict(q=3, k=2),
         "'p = softmax(t, axis=k)': axis 'k' is no iteration of t[]; these are none"),
        ("t[i] += a[i,k]*b[k]; o[j] = t[j]", dict(i=3, k=2, j=4),
         "statement 2, 'o[j] = t[j]': index j of 't' runs from 0 to 3, but 't[i] += a[i,k]*b[k]' "
         "writes 3 elements of dimension 0"),
        ("t[i] += a[i,k]*b[k]; o[i,j] = t[i,j]", dict(i=3, k=2, j=2), "has 2 indices, but"),
        ("t[i] += a[i,k]*b[k]; o = softmax(t, axis=k)", dict(i=3, k=2),
         "'o = softmax(t, axis=k)': axis 'k' is no iteration of t[i]; these are i"),
        ("t[i] += a[i,k]*b[k]; o = softmax(t)", dict(i=3, k=2), "softmax(…, axis=k)"),
        (5, {}, "expected statements with ';' between them, got 5"),
        ("t[i] = x[i]; o[i] = t", dict(i=0), "extent of iteration 'i': expected a positive"),
        ("t[i] += a[i,k]*b[k]; o = foo(t)", dict(i=3, k=2), "unknown function 'foo'"),
        ("t[i] += a[i,k]*b[k]; t[i] = exp(t[i])", dict(i=3, k=2), "'t' is written by"),
        ("t[i] += a[i,k]*b[k]; u[i] = a[i,0]; o[i] = t[i]", dict(i=3, k=2),
         "nothing reads 'u'"),
        ("t[i] += a[i,k]*b[k]; o[i] = t[i]*c[i,k]", dict(i=3, k=2),
         "k indexes nothing of 'o'; write +=, max= or min= to reduce it"),
        ("t[i] += a[i,k]*b[k]; o[i] = t[i]*b[i,k]", dict(i=3, k=2), "b[i, k] has 2 indices"),
        ("t[i] += a[i,k]*b[k]; o[i] = t[i]*c[i,z]", dict(i=3, k=2), "no extent given for z"),
        ("t[i] += a[i,k]*b[k]; o[i] = t[i]", dict(i=3, k=2, z=2), "extent given for 'z'"),
        ("t[i] += a[i,k]*b[k]; o[i+1] = t[i]", dict(i=3, k=2), "expected one iteration"),
        ("t[i+1] += a[i,k]*b[k]; o[i] = t[i]", dict(i=3, k=2), "expected one iteration"),
        ("t[i] += a[i,k]*b[k]; ; o[i] = t[i]", dict(i=3, k=2), "statement 2: expected a statement"),
        ("t[i] += a[i,k]*b[k]; o[i] = sum(t[i], axis=i)", dict(i=3, k=2),
         "axis 'i' is no iteration of sum(…): o[i]"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_the_users_words(
    text: str, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(AmosError) as caught:
        Chain.parse(text, sizes)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 3


def test_constants_are_inputs_of_products() -> None:
    text = "t[i,j] += x[i,k] * weight[k,j]; weight_t = t * 2; o[i,f] += weight_t[i,j] * w[j,f]"
    sizes = dict(i=2, j=3, k=4, f=5)
    assert Chain.parse(text, sizes).constants == ("weight",)
    assert Chain.parse(text, sizes, constants=()).constants == ()
    chain = Chain.parse(text, sizes, constants=["w"])
    assert chain.constants == ("w",)
    assert [step.constants for step in chain.products] == [(), ("w",)]
    for names, message in (
        (["t"], "expected inputs of products (x, weight, w), got 't'"),
        ("w", "expected a list of names, got 'w'"),
    ):
        with pytest.raises(AmosError) as caught:
            Chain.parse(text, sizes, constants=names)
        assert message in str(caught.value)


def test_a_cast_of_a_sum_is_of_its_terms() -> None:
    chain = Chain.parse("n[i] += u8(x[i,k]); o = n * 1", dict(i=1, k=3))
    assert chain.temporaries[0].dtype == "int32"
    x = np.array([[300, -5, 2.4]], np.float32)
    assert evaluate(chain, dict(x=x)).tolist() == [255 + 0 + 2]


def test_representations_are_short() -> None:
    chain = Chain.parse(ATTENTION, SIZES)
    assert repr(chain.statements[1]) == "<statement 'p = softmax(scores * s, axis=k)'>"
    assert repr(chain).startswith("<chain out: scores[b,q,k] +=") and len(repr(chain)) < 400


def test_dtype_of_no_tensor_is_refused() -> None:
    with pytest.raises(AmosError, match="dtype given for 'quary'.*query"):
        Chain.parse(ATTENTION, SIZES, dict(quary="bf16"))


def test_inputs_are_checked() -> None:
    chain = Chain.parse(ATTENTION, SIZES)
    x = random_inputs(chain, np.random.default_rng(0))
    with pytest.raises(AmosError, match="expected shape"):
        evaluate(chain, x | {"key": x["key"][:1]})
    with pytest.raises(AmosError, match="expected query, key, s, value, got"):
        evaluate(chain, {})
