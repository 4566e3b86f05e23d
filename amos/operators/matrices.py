"""Matrix products and operators that reduce to them: Table 6's GMV, GMM, GFC, MEN, VAR and SCN.

AMOS, section 7.3. Mean, variance and scan become multiply-adds by a second
operand that holds constants (Dakkak et al.'s reduction on matrix units), so that
a matrix instruction can execute them.

>>> from amos import operators
>>> print(operators.scan(n=2, k=4))
out[n, i] += data[n, k] * triangle[k, i]  with n=2, i=4, k=4
"""

from __future__ import annotations

from amos.errors import OperatorError
from amos.ir import Operator
from amos.operators.formula import define
from amos.operators.registry import Dtype, build

define(
    "gemv",
    "GMV",
    "matrix-vector product",
    math="out[m] += a[m,k] * x[k]",
    defaults=dict(m=1000, k=2048),
    notes="By default the classifier of ResNet-50, batch 1.",
)

define(
    "gemm",
    "GMM",
    "matrix-matrix product",
    math="out[m,n] += a[m,k] * b[k,n]",
    defaults=dict(m=128, n=3072, k=768),
    notes="By default BERT-base's feed-forward, 128 tokens.",
)

define(
    "bmm",
    "BMM",
    "batched matrix-matrix product",
    math="out[b,m,n] += x[b,m,k] * y[b,k,n]",
    defaults=dict(b=12, m=128, n=64, k=128),
    notes="By default BERT-base's 12 heads, 128 tokens.",
)

define(
    "attention_scores",
    "ATS",
    "attention scores: queries times transposed keys",
    math="out[b,h,i,j] += query[b,h,i,d] * key[b,h,j,d]",
    defaults=dict(b=1, h=12, i=128, j=128, d=64),
    notes="By default BERT-base, 128 tokens. The scale 1/sqrt(d) belongs to the softmax.",
)

define(
    "attention_values",
    "ATV",
    "attention output: softmaxed scores times values",
    math="out[b,h,i,d] += score[b,h,i,j] * value[b,h,j,d]",
    defaults=dict(b=1, h=12, i=128, j=128, d=64),
    notes="By default BERT-base, 128 tokens.",
)

define(
    "contraction",
    "TCN",
    "contraction of two four-dimensional tensors",
    math="out[a,b,c,d] += x[a,e,b,f] * y[d,f,c,e]",
    defaults=dict.fromkeys("abcdef", 24),
    notes="""abcd-aebf-dfce of the TCCG benchmark, which stems from coupled-cluster methods in
    quantum chemistry. The default extents are a small problem's. Any other two-operand
    contraction is one line for :meth:`Operator.parse <amos.ir.Operator.parse>`.
    """,
)

define(
    "grouped_fc",
    "GFC",
    "grouped fully-connected layer",
    math="out[n,g,k] += x[n,g,c] * weight[g,k,c]",
    defaults=dict(n=16, g=16, c=64, k=64),
    notes="""``c`` and ``k`` are counted per group. AMOS takes the operator from WeightNet,
    which makes convolution weights by such layers. The default is a round shape: 1024
    features in 16 groups, batch 16.
    """,
)

define(
    "mean",
    "MEN",
    "mean of each row of a matrix",
    math="out[i] += x[i,k] * coefficient[k]",
    defaults=dict(i=128, k=768),
    notes="""By default BERT-base's layer norm, 128 tokens. ``coefficient`` holds 1/k
    everywhere, or ones where integers are summed and divided afterwards. The plain sum
    ``out[i] += x[i,k]`` is no multiply-add and has no second operand for a matrix instruction
    to read.
    """,
)

define(
    "variance",
    "VAR",
    "variance of each row of a matrix",
    math="out[i] += square[i,k] * coefficient[k]",
    defaults=dict(i=128, k=768),
    notes="""By default BERT-base's layer norm. ``square`` holds the squared, centred input (or
    the squared input, for the raw second moment from which mean² is then taken),
    ``coefficient`` 1/k everywhere. Written as ``out[i] += x[i,k] * x[i,k]`` both sources are
    indexed by ``i``, and a matrix product has no such iteration: that form has one mapping
    too, but ``i`` stays a loop around calls that fill a single element.
    """,
)

define(
    "scan",
    "SCN",
    "scan: prefix sums of each row of a matrix",
    math="out[n,i] += data[n,k] * triangle[k,i]",
    defaults=dict(n=1024, k=256),
    derived=dict(i="k"),
    notes="""``i`` is as long as ``k``. ``triangle[k,i]`` is 1 where ``k <= i`` and 0
    elsewhere, which makes the product an inclusive prefix sum. By default 1024 segments of
    256 elements (Dakkak et al., the paper's source for scan).
    """,
)


def scan_by_blocks(
    *, n: int = 1024, k: int = 256, block: int = 16, dtype: Dtype = None, name: str = "scan"
) -> tuple[Operator, Operator]:
    """Build the scan as two consecutive operators, of ``k/block + block`` steps an element.

    A product with a whole triangle takes ``k`` steps an element, most of them redundant: every
    element of a block gets the same sum of all blocks before it. That sum is the
    first operator, ``carry[n,u] += data[n,k] * before[k,u]`` with ``before[k,u]`` 1 where
    ``k < u*block``; the second scans within each block,
    ``out[n,u*block+i] += data[n,u*block+j] * triangle[j,i]``, and adds ``carry`` in its
    epilogue. Dakkak et al. scan segments on matrix units the same way.

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
    return carry.with_constants(["before"]), within.with_constants(["triangle"])
