"""``vpmaddwd`` of x86 without VNNI: multiply-add of pairs of words into 32-bit lanes.

Bytes are widened to words: activations as they are staged, weights as they are packed. A
word holds every byte, signed or not, and two products of bytes fit 32 bits, so sums are
those of VNNI bit for bit, at half of its products in an instruction.
"""

from __future__ import annotations

from collections.abc import Iterator

from amos.intrinsics.arithmetic import MEASURED, Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.vectors import COPIES, integer_vector, vector_intrinsic, x86_sources

__all__ = ["intrinsics"]

_SOURCE = (
    "Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2B, "
    "PMADDWD: Multiply and Add Packed Integers; followed by PADDD"
)
_WIDTHS = (
    ("avx512", 16, "avx512bw", "llvm.x86.avx512.pmaddw.d.512"),
    ("avx2", 8, "avx2", "llvm.x86.avx2.pmadd.wd"),
)
_KINDS = (("u8", "s8"), ("s8", "s8"), ("s16", "s16"))


def intrinsics() -> Iterator[Intrinsic | Implementation]:
    """On 512 and on 256 bits, of bytes and of words; ``…_lhs_…`` has the first in the lanes."""
    for family, lanes, feature, instruction in _WIDTHS:
        for kinds in _KINDS:
            # Sources of one dtype change places by themselves.
            for left in (False, True)[: len({*kinds})]:
                types = "_".join(dict.fromkeys(kinds))
                name = f"{family}_pmaddwd{'_lhs' if left else ''}_m{lanes}k2_{types}_s32"
                alone, rows = ("Src2", "Src1") if left else ("Src1", "Src2")
                product = "Src1[i1, r1] * Src2[r1]" if left else "Src1[r1] * Src2[i1, r1]"
                yield vector_intrinsic(
                    name,
                    f"Dst[i1] += {product}",
                    {"i1": lanes, "r1": 2},
                    (*kinds, "s32"),
                    shared=alone,
                    staged="s16",
                    family=family,
                    source=_SOURCE,
                    description=f"{lanes} lanes, each adding 2 products of words; "
                    f"the {'first' if left else 'second'} source fills the lanes",
                    requires=(feature,),
                    registers=2 * lanes,
                    # Where LLVM may not make VPDPWSSD of the two; only the sum is waited for.
                    timing=(Timing(0.5, MEASURED, 1, "AMD Zen 5"),),
                )
                yield from x86_sources(
                    name,
                    (feature,),
                    llvm=_llvm(instruction, lanes, alone, rows),
                    c=_c(lanes, alone, rows),
                    flags=(f"-m{feature}",),
                    headers=COPIES,
                )


def _llvm(instruction: str, lanes: int, alone: str, rows: str) -> str:
    words = f"int16x{2 * lanes}"
    return f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = Dst.vload([0], "int32x{lanes}") + T.call_llvm_pure_intrin(
    "int32x{lanes}",
    "{instruction}",
    T.reinterpret(
        "{words}", T.broadcast(T.reinterpret("int32", {alone}.vload([0], "int16x2")), {lanes})
    ),
    {rows}.vload([0, 0], "{words}"),
)
"""


def _c(lanes: int, alone: str, rows: str) -> str:
    mm, vector, whole = integer_vector(lanes)
    return f"""
int pair;
memcpy(&pair, {alone}, 4);
{vector} lanes = {mm}_loadu_{whole}((const {vector} *){rows});
{vector} sum = {mm}_loadu_{whole}((const {vector} *)Dst);
sum = {mm}_add_epi32(sum, {mm}_madd_epi16({mm}_set1_epi32(pair), lanes));
{mm}_storeu_{whole}(({vector} *)Dst, sum);
"""
