"""Operators that sum no products: pooling, elementwise sums, sums and maxima of rows.

>>> from amos import operators
>>> print(operators.max_pool2d(c=8, p=4, q=4, dtype="u8").compute)
out[n, c, p, q] max= pad(image[n, c, p*2 + r - 1, q*2 + s - 1])
>>> print(operators.row_max(i=2, k=8).compute)
out[i] max= x[i, k]
"""

from __future__ import annotations

from amos.operators.formula import define

define(
    "max_pool2d",
    "MXP",
    "2-D max pooling",
    math={
        "NCHW": "out[n,c,p,q] max= image[n,c,p+r,q+s]",
        "NHWC": "out[n,p,q,c] max= image[n,p+r,q+s,c]",
    },
    defaults=dict(n=1, c=64, p=56, q=56, r=3, s=3, stride=2, padding=1),
    notes="""Padding is never the maximum: it is the smallest value of the dtype, minus infinity
    for floats and where the dtype is left open. By default ResNet's pooling.
    """,
)

define(
    "avg_pool2d",
    "AVP",
    "2-D average pooling, but for the division",
    math={
        "NCHW": "out[n,c,p,q] += image[n,c,p+r,q+s]",
        "NHWC": "out[n,p,q,c] += image[n,p+r,q+s,c]",
    },
    defaults=dict(n=1, c=128, p=28, q=28, r=2, s=2, stride=2),
    notes="""The sum of each window; an epilogue such as ``acc * 0.25`` makes the average of it,
    and zeros around the image count as elements. By default DenseNet-121's first transition.
    """,
)

define(
    "add",
    "ADD",
    "elementwise sum of two tensors",
    math="out[i] = a[i] + b[i]",
    defaults=dict(i=64 * 56 * 56),
    notes="""Of tensors of any one shape: elements are counted in the order in which they lie. By
    default the first residual of ResNet-18.
    """,
)

define(
    "row_sum",
    "RSM",
    "sum of each row of a matrix",
    math={"IK": "out[i] += x[i,k]", "KI": "out[i] += x[k,i]"},
    defaults=dict(i=128, k=768),
    notes="By default BERT-base's layer norm, 128 tokens. ``KI`` sums each column.",
)

define(
    "row_max",
    "RMX",
    "maximum of each row of a matrix",
    math={"IK": "out[i] max= x[i,k]", "KI": "out[i] max= x[k,i]"},
    defaults=dict(i=12 * 128, k=128),
    notes="By default BERT-base's softmax, 12 heads of 128 tokens. ``KI`` takes each column's.",
)
