"""The operator library: one line of math each, and layers of real networks.

>>> from amos import operators
>>> print(operators.get("gemm", m=4, n=4, k=8))
out[m, n] += a[m, k] * b[k, n]  with m=4, n=4, k=8
"""

from amos.operators.convolutions import (
    batched_conv2d,
    capsule_conv2d,
    capsule_pose_conv2d,
    conv1d,
    conv2d,
    conv3d,
    depthwise_conv2d,
    dilated_conv2d,
    grouped_conv2d,
)
from amos.operators.lookup import resolve, short_name
from amos.operators.matrices import (
    attention_scores,
    attention_values,
    bmm,
    contraction,
    gemm,
    gemv,
    grouped_fc,
    mean,
    scan,
    scan_by_blocks,
    variance,
)
from amos.operators.registry import Builder, builder, get, names, register
from amos.operators.tables import TABLE_6, Layer, layer, layers
from amos.operators.transposed import transposed_conv2d

__all__ = [
    "TABLE_6",
    "Builder",
    "Layer",
    "attention_scores",
    "attention_values",
    "batched_conv2d",
    "bmm",
    "builder",
    "capsule_conv2d",
    "capsule_pose_conv2d",
    "contraction",
    "conv1d",
    "conv2d",
    "conv3d",
    "depthwise_conv2d",
    "dilated_conv2d",
    "gemm",
    "gemv",
    "get",
    "grouped_conv2d",
    "grouped_fc",
    "layer",
    "layers",
    "mean",
    "names",
    "register",
    "resolve",
    "scan",
    "scan_by_blocks",
    "short_name",
    "transposed_conv2d",
    "variance",
]
