"""AVX-512 VNNI: multiply-add of bytes into 32-bit lanes (AMOS, section 7.5)."""

from __future__ import annotations

from collections.abc import Iterator

from amos.intrinsics.description import Intrinsic, Memory

__all__ = ["intrinsics"]

_SOURCE = (
    "Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2C, "
    "VPDPBUSD: Multiply and Add Unsigned and Signed Bytes"
)


def intrinsics() -> Iterator[Intrinsic]:
    """The VNNI family: ``vpdpbusd`` on 512-bit registers.

    The four bytes of ``Src1`` are an embedded broadcast (``m32bcst``): the
    instruction itself replicates them to the 16 lanes as it reads memory. The
    64 bytes of ``Src2`` are one register, hence its fixed stride of 4.
    """
    yield Intrinsic.define(
        "vnni_dpbusd_m16k4_u8_s8_s32",
        "Dst[i1] += Src1[r1] * Src2[i1, r1]",
        {"i1": 16, "r1": 4},
        {"Src1": "uint8", "Src2": "int8", "Dst": "int32"},
        [
            Memory("Src1", "load", "memory", ("r1",), "addr_a", ("1",), broadcast=("i1",)),
            Memory("Src2", "load", "memory", ("i1", "r1"), "addr_b", ("4", "1")),
            Memory("Dst", "store", "memory", ("i1",), "addr_c", ("1",)),
        ],
        family="vnni",
        source=_SOURCE,
        description="16 lanes, each adding 4 products of an unsigned and a signed byte",
        requires=("avx512_vnni",),
        registers=32,
    )
