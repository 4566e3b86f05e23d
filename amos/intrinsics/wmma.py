"""Tensor Core through the warp matrix functions (AMOS, equations 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator

from amos.intrinsics.description import Intrinsic, Memory

__all__ = ["intrinsics"]

_SOURCE = (
    "CUDA C++ Programming Guide, Warp Matrix Functions (load_matrix_sync, mma_sync, "
    "store_matrix_sync); PTX ISA, Warp-level Matrix Instructions, wmma.mma"
)


def intrinsics() -> Iterator[Intrinsic]:
    """The WMMA family: ``mma_sync`` on 16×16×16 fragments of one warp."""
    yield Intrinsic.define(
        "wmma_m16n16k16_f16_f32",
        "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]",
        {"i1": 16, "i2": 16, "r1": 16},
        {"Src1": "float16", "Src2": "float16", "Dst": "float32"},
        [
            Memory("Src1", "load", "shared", ("i1", "r1"), "addr_a", ("stride_a", "1")),
            Memory("Src2", "load", "shared", ("r1", "i2"), "addr_b", ("stride_b", "1")),
            Memory("Dst", "store", "global", ("i1", "i2"), "addr_c", ("stride_c", "1")),
        ],
        family="wmma",
        source=_SOURCE,
        description="matrix multiply-add of one warp, half precision into single precision",
        requires=("sm_70",),
    )
