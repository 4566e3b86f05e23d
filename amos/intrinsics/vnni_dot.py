"""x86 VNNI as a dot product: all lanes add up into one number.

Where both sources run along the sum, as the rows of a matrix and a vector do, nothing is
left for lanes but parts of that sum: each adds its own four products of a call, and what
the lanes hold is added up once, after the last call. That is how such sums are written by
hand; the instruction of each call is ``vpdpbusd`` alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from amos.intrinsics.arithmetic import Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.memory import Memory
from amos.intrinsics.x86 import VNNI_FLAGS, VNNI_WIDTHS, integer_vector

__all__ = ["intrinsics"]

_SOURCE = (
    "Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2C, "
    "VPDPBUSD: Multiply and Add Unsigned and Signed Bytes; as a sequence with VPADDD"
)
_DEPTH = 4


def intrinsics() -> Iterator[Intrinsic | Implementation]:
    """Unsigned by signed bytes on 512 and on 256 bits."""
    for lanes, requires in VNNI_WIDTHS:
        name = f"vnni_dpbusd_dot_m1k{lanes * _DEPTH}_u8_s8_s32"
        yield Intrinsic.define(
            name,
            "Dst[] += Src1[r1] * Src2[r1]",
            {"r1": lanes * _DEPTH},
            {"Src1": "u8", "Src2": "s8", "Dst": "s32"},
            [
                Memory("Src1", "load", "memory", ("r1",), "addr_a", ("1",)),
                Memory("Src2", "load", "memory", ("r1",), "addr_b", ("1",)),
                Memory("Dst", "store", "memory", (), "addr_c", ()),
            ],
            family="vnni",
            source=_SOURCE,
            description=(
                f"the sum of {lanes * _DEPTH} products of an unsigned and a signed byte, "
                f"kept in {lanes} parts until the last call"
            ),
            requires=requires,
            registers=32,
            timing=(Timing(0.5, "scheduling model of LLVM 22 (llvm-mca)", 5, "xeon_6240"),),
        )
        yield Implementation(name, "llvm", _llvm(lanes), "x86_64", requires, partial=lanes)
        yield _c(name, lanes, requires)


def _llvm(lanes: int) -> str:
    vector = f"x{lanes * _DEPTH}"
    return f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = T.call_llvm_pure_intrin(
    "int32x{lanes}",
    "llvm.x86.avx512.vpdpbusd.{32 * lanes}",
    Dst.vload([0], "int32x{lanes}"),
    T.reinterpret("int8{vector}", Src1.vload([0], "uint8{vector}")),
    Src2.vload([0], "int8{vector}"),
)
"""


def _c(name: str, lanes: int, requires: tuple[str, ...]) -> Implementation:
    mm, vector, whole = integer_vector(lanes)
    loads = [f"{mm}_loadu_{whole}((const {vector} *){x})" for x in ("Src1", "Src2")]
    source = f"""
int parts[{lanes}];
{mm}_storeu_{whole}(({vector} *)parts,
    {mm}_dpbusd_epi32({mm}_setzero_{whole}(), {", ".join(loads)}));
for (int n = 0; n < {lanes}; n++) {{
  *Dst = (int)((unsigned)*Dst + (unsigned)parts[n]);
}}
"""
    return Implementation(
        name, "c", source, "x86_64", requires, VNNI_FLAGS, "#include <immintrin.h>"
    )
