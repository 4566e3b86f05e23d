"""The operator library: one line of math each, and layers of real networks.

Every operator of the library is an attribute: ``operators.conv2d`` is
``operators.builder("conv2d")``.

>>> from amos import operators
>>> print(operators.gemm(m=4, n=4, k=8))
out[m, n] += a[m, k] * b[k, n]  with m=4, n=4, k=8
"""

from __future__ import annotations

from amos.operators import convolutions, elementwise, transposed
from amos.operators.lookup import resolve, short_name
from amos.operators.matrices import scan_by_blocks
from amos.operators.registry import Builder, builder, get, names, register
from amos.operators.tables import TABLE_6, Layer, layer, layers

__all__ = [
    "TABLE_6",
    "Builder",
    "Layer",
    "builder",
    "convolutions",
    "elementwise",
    "get",
    "layer",
    "layers",
    "names",
    "register",
    "resolve",
    "scan_by_blocks",
    "short_name",
    "transposed",
]


def __getattr__(name: str) -> Builder:
    if name not in names():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return builder(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *names()})
