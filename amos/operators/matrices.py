"""Matrix products and what reduces to them: Table 6's GMV, GMM, GFC, MEN, VAR and SCN.

AMOS, section 7.3. Mean, variance and scan become multiply-adds by a second
operand that holds constants (Dakkak et al.'s reduction on matrix units), so that
a matrix instruction can execute them.

>>> print(scan(n=2, k=4))
out[n, i] += data[n, k] * triangle[k, i]  with n=2, i=4, k=4
"""

from __future__ import annotations

from dataclasses import replace

from amos.errors import OperatorError
from amos.ir import Operator
from amos.operators.registry import build, register

__all__ = [
    "attention_scores",
    "attention_values",
    "bmm",
    "contraction",
    "gemm",
    "gemv",
    "grouped_fc",
    "mean",
    "scan",
    "scan_by_blocks",
    "variance",
]

Dtype = str | tuple[str, ...] | None


@register("GMV", "matrix-vector product")
def gemv(*, m: int = 1000, k: int = 2048, dtype: Dtype = None, name: str = "gemv") -> Operator:
    """``out[m] += a[m,k] * x[k]``; by default the classifier of ResNet-50, batch 1."""
    return build("out[m] += a[m,k] * x[k]", {"m": m, "k": k}, name=name, dtype=dtype)


@register("GMM", "matrix-matrix product")
def gemm(
    *, m: int = 128, n: int = 3072, k: int = 768, dtype: Dtype = None, name: str = "gemm"
) -> Operator:
    """``out[m,n] += a[m,k] * b[k,n]``; by default BERT-base's feed-forward, 128 tokens."""
    return build("out[m,n] += a[m,k] * b[k,n]", {"m": m, "n": n, "k": k}, name=name, dtype=dtype)


@register("BMM", "batched matrix-matrix product")
def bmm(
    *,
    b: int = 12,
    m: int = 128,
    n: int = 64,
    k: int = 128,
    dtype: Dtype = None,
    name: str = "bmm",
) -> Operator:
    """``out[b,m,n] += x[b,m,k] * y[b,k,n]``; by default BERT-base's 12 heads, 128 tokens."""
    text = "out[b,m,n] += x[b,m,k] * y[b,k,n]"
    return build(text, {"b": b, "m": m, "n": n, "k": k}, name=name, dtype=dtype)


@register("ATS", "attention scores: queries times transposed keys")
def attention_scores(
    *,
    b: int = 1,
    h: int = 12,
    i: int = 128,
    j: int = 128,
    d: int = 64,
    dtype: Dtype = None,
    name: str = "attention_scores",
) -> Operator:
    """``out[b,h,i,j] += query[b,h,i,d] * key[b,h,j,d]``; by default BERT-base, 128 tokens.

    The scale 1/sqrt(d) belongs to the softmax that follows.
    """
    text = "out[b,h,i,j] += query[b,h,i,d] * key[b,h,j,d]"
    return build(text, {"b": b, "h": h, "i": i, "j": j, "d": d}, name=name, dtype=dtype)


@register("ATV", "attention output: softmaxed scores times values")
def attention_values(
    *,
    b: int = 1,
    h: int = 12,
    i: int = 128,
    j: int = 128,
    d: int = 64,
    dtype: Dtype = None,
    name: str = "attention_values",
) -> Operator:
    """``out[b,h,i,d] += score[b,h,i,j] * value[b,h,j,d]``; by default BERT-base, 128 tokens."""
    text = "out[b,h,i,d] += score[b,h,i,j] * value[b,h,j,d]"
    return build(text, {"b": b, "h": h, "i": i, "j": j, "d": d}, name=name, dtype=dtype)


@register("TCN", "contraction of two four-dimensional tensors")
def contraction(
    *,
    a: int = 24,
    b: int = 24,
    c: int = 24,
    d: int = 24,
    e: int = 24,
    f: int = 24,
    dtype: Dtype = None,
    name: str = "contraction",
) -> Operator:
    """``out[a,b,c,d] += x[a,e,b,f] * y[d,f,c,e]``: abcd-aebf-dfce of the TCCG benchmark.

    It stems from coupled-cluster methods in quantum chemistry. The default
    extents are a small problem's. Any other two-operand contraction is one line
    for :meth:`Operator.parse <amos.ir.Operator.parse>`.
    """
    text = "out[a,b,c,d] += x[a,e,b,f] * y[d,f,c,e]"
    return build(text, {"a": a, "b": b, "c": c, "d": d, "e": e, "f": f}, name=name, dtype=dtype)


@register("GFC", "grouped fully-connected layer")
def grouped_fc(
    *,
    n: int = 16,
    g: int = 16,
    c: int = 64,
    k: int = 64,
    dtype: Dtype = None,
    name: str = "grouped_fc",
) -> Operator:
    """``out[n,g,k] += x[n,g,c] * weight[g,k,c]``, with ``c`` and ``k`` counted per group.

    AMOS takes the operator from WeightNet, which makes convolution weights by
    such layers. The default is a round shape: 1024 features in 16 groups, batch 16.
    """
    text = "out[n,g,k] += x[n,g,c] * weight[g,k,c]"
    return build(text, {"n": n, "g": g, "c": c, "k": k}, name=name, dtype=dtype)


@register("MEN", "mean of each row of a matrix")
def mean(*, i: int = 128, k: int = 768, dtype: Dtype = None, name: str = "mean") -> Operator:
    """``out[i] += x[i,k] * coefficient[k]``; by default BERT-base's layer norm, 128 tokens.

    ``coefficient`` holds 1/k everywhere, or ones where integers are summed and
    divided afterwards. The plain sum ``out[i] += x[i,k]`` is no multiply-add and
    has no second operand for a matrix instruction to read.
    """
    return build("out[i] += x[i,k] * coefficient[k]", {"i": i, "k": k}, name=name, dtype=dtype)


@register("VAR", "variance of each row of a matrix")
def variance(
    *, i: int = 128, k: int = 768, dtype: Dtype = None, name: str = "variance"
) -> Operator:
    """``out[i] += square[i,k] * coefficient[k]``; by default BERT-base's layer norm.

    ``square`` holds the squared, centred input (or the squared input, for the
    raw second moment from which mean² is then taken), ``coefficient`` 1/k
    everywhere. Written as ``out[i] += x[i,k] * x[i,k]`` both sources are indexed
    by ``i``, and a matrix product has no such iteration: that form has one
    mapping too, but ``i`` stays a loop around calls that fill a single element.
    """
    text = "out[i] += square[i,k] * coefficient[k]"
    return build(text, {"i": i, "k": k}, name=name, dtype=dtype)


@register("SCN", "scan: prefix sums of each row of a matrix")
def scan(*, n: int = 1024, k: int = 256, dtype: Dtype = None, name: str = "scan") -> Operator:
    """``out[n,i] += data[n,k] * triangle[k,i]`` with ``i`` as long as ``k``.

    ``triangle[k,i]`` is 1 where ``k <= i`` and 0 elsewhere, which makes the
    product an inclusive prefix sum. By default 1024 segments of 256 elements
    (Dakkak et al., the paper's source for scan).
    """
    text = "out[n,i] += data[n,k] * triangle[k,i]"
    return build(text, {"n": n, "i": k, "k": k}, name=name, dtype=dtype)


def scan_by_blocks(
    *, n: int = 1024, k: int = 256, block: int = 16, dtype: Dtype = None, name: str = "scan"
) -> tuple[Operator, Operator]:
    """The scan as two operators, one after the other, of ``k/block + block`` steps an element.

    A product with a whole triangle takes ``k`` steps an element, most of which multiply what
    is alike: every element of a block gets the sum of all blocks before it. That sum is the
    first operator, ``carry[n,u] += data[n,k] * before[k,u]`` with ``before[k,u]`` 1 where
    ``k < u*block``; the second scans within each block,
    ``out[n,u*block+i] += data[n,u*block+j] * triangle[j,i]``, and adds ``carry`` in its
    epilogue. Dakkak et al. scan segments on matrix units alike.

    Raises:
        OperatorError: ``block`` does not divide ``k``.

    >>> print(scan_by_blocks(n=2, k=6, block=3)[1].compute)
    out[n, u*3 + i] += data[n, u*3 + j] * triangle[j, i]
    """
    if block < 1 or k % block:
        raise OperatorError(f"scan by blocks: {k} elements are no multiple of the block {block}")
    count = k // block
    carry = build(
        "carry[n,u] += data[n,k] * before[k,u]",
        {"n": n, "u": count, "k": k},
        name=f"{name}.carry",
        dtype=dtype,
    )
    within = build(
        f"out[n,u*{block}+i] += data[n,u*{block}+j] * triangle[j,i]",
        {"n": n, "u": count, "i": block, "j": block},
        name=name,
        dtype=dtype,
    )
    kind = carry.result_dtype
    within = within.with_epilogue("acc + carry[n,u]", {"carry": kind} if kind else {})
    return replace(carry, constants=("before",)), replace(within, constants=("triangle",))
