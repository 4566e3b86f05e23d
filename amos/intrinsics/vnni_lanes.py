"""x86 VNNI with both sources in the lanes: each lane has its own four products.

``vpdpbusd`` multiplies two registers byte by byte and adds groups of four. That all lanes
share one source is a use of it (:mod:`amos.intrinsics.vnni`), not the instruction. Used
without, it computes what has no such source: a depthwise convolution, whose channels
have windows and weights of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from amos.intrinsics.arithmetic import MEASURED, Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.memory import Memory
from amos.intrinsics.x86 import VNNI_FLAGS, VNNI_WIDTHS, integer_vector

__all__ = ["intrinsics"]

_SOURCE = (
    "Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2C, "
    "VPDPBUSD: Multiply and Add Unsigned and Signed Bytes"
)
_DEPTH = 4


def intrinsics() -> Iterator[Intrinsic | Implementation]:
    """Unsigned by signed bytes on 512 and on 256 bits."""
    for lanes, requires in VNNI_WIDTHS:
        name = f"vnni_dpbusd_lanes_m{lanes}k{_DEPTH}_u8_s8_s32"
        yield Intrinsic.define(
            name,
            "Dst[i1] += Src1[i1, r1] * Src2[i1, r1]",
            {"i1": lanes, "r1": _DEPTH},
            {"Src1": "u8", "Src2": "s8", "Dst": "s32"},
            [
                Memory("Src1", "load", "memory", ("i1", "r1"), "addr_a", (str(_DEPTH), "1")),
                Memory("Src2", "load", "memory", ("i1", "r1"), "addr_b", (str(_DEPTH), "1")),
                Memory("Dst", "store", "memory", ("i1",), "addr_c", ("1",)),
            ],
            family="vnni",
            source=_SOURCE,
            description=(
                f"{lanes} lanes, each adding {_DEPTH} products of an unsigned and a signed byte; "
                "both sources fill the lanes"
            ),
            requires=requires,
            registers=32,
            timing=(
                Timing(0.5, "scheduling model of LLVM 22 (llvm-mca)", 5, "xeon_6240"),
                Timing(0.5, MEASURED, 4, "AMD Zen 5"),
            ),
        )
        yield Implementation(name, "llvm", _llvm(lanes), "x86_64", requires)
        yield _c(name, lanes, requires)


def _llvm(lanes: int) -> str:
    vector = f"x{lanes * _DEPTH}"
    return f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = T.call_llvm_pure_intrin(
    "int32x{lanes}",
    "llvm.x86.avx512.vpdpbusd.{32 * lanes}",
    Dst.vload([0], "int32x{lanes}"),
    T.reinterpret("int8{vector}", Src1.vload([0, 0], "uint8{vector}")),
    Src2.vload([0, 0], "int8{vector}"),
)
"""


def _c(name: str, lanes: int, requires: tuple[str, ...]) -> Implementation:
    mm, vector, whole = integer_vector(lanes)
    loads = [f"{mm}_loadu_{whole}((const {vector} *){x})" for x in ("Dst", "Src1", "Src2")]
    return Implementation(
        name,
        "c",
        f"{mm}_storeu_{whole}(({vector} *)Dst, {mm}_dpbusd_epi32({', '.join(loads)}));",
        "x86_64",
        requires,
        VNNI_FLAGS,
        "#include <immintrin.h>",
    )
