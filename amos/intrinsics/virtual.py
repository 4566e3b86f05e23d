"""The virtual accelerators of AMOS, section 7.5: AXPY, GEMV and pointwise convolution.

The paper names the three units and prints no definition. They stand for the
three levels of BLAS. No hardware has them, so nothing is emitted for them:
they are here to be mapped onto, simulated and counted.

Operands are in the order in which a convolution writes its own, image before
weight; ``commute=True`` gives the other order.
"""

from __future__ import annotations

from collections.abc import Iterator

from amos.intrinsics.description import Intrinsic, Memory

__all__ = ["intrinsics"]

_SOURCE = "Zheng et al., AMOS, ISCA 2022, section 7.5, New Accelerators"
_TYPES = {"Src1": "float16", "Src2": "float16", "Dst": "float32"}


def intrinsics() -> Iterator[Intrinsic]:
    """The virtual family: one unit for each level of BLAS."""
    yield Intrinsic.define(
        "virtual_axpy_m16_f16_f32",
        "Dst[i1] += Src1[i1] * Src2[]",
        {"i1": 16},
        _TYPES,
        [
            Memory("Src1", "load", "shared", ("i1",), "addr_a", ("1",)),
            Memory("Src2", "load", "shared", (), "addr_b", ()),
            Memory("Dst", "store", "global", ("i1",), "addr_c", ("1",)),
        ],
        family="virtual",
        source=_SOURCE,
        description="a vector times a scalar, added to a vector",
    )
    yield Intrinsic.define(
        "virtual_gemv_m16k16_f16_f32",
        "Dst[i1] += Src1[i1, r1] * Src2[r1]",
        {"i1": 16, "r1": 16},
        _TYPES,
        [
            Memory("Src1", "load", "shared", ("i1", "r1"), "addr_a", ("stride_a", "1")),
            Memory("Src2", "load", "shared", ("r1",), "addr_b", ("1",)),
            Memory("Dst", "store", "global", ("i1",), "addr_c", ("1",)),
        ],
        family="virtual",
        source=_SOURCE,
        description="a matrix times a vector, added to a vector",
    )
    yield Intrinsic.define(
        "virtual_conv_k16p4q4c16_f16_f32",
        "Dst[i1, i2, i3] += Src1[r1, i2, i3] * Src2[i1, r1]",
        {"i1": 16, "i2": 4, "i3": 4, "r1": 16},
        _TYPES,
        [
            Memory("Src1", "load", "shared", ("r1", "i2", "i3"), "addr_a", _strides("a")),
            Memory("Src2", "load", "shared", ("i1", "r1"), "addr_b", ("stride_b", "1")),
            Memory("Dst", "store", "global", ("i1", "i2", "i3"), "addr_c", _strides("c")),
        ],
        family="virtual",
        source=_SOURCE,
        description="a pointwise convolution: a 4×4 image of 16 channels into 16 channels",
    )


def _strides(letter: str) -> tuple[str, str, str]:
    return (f"plane_{letter}", f"row_{letter}", "1")
