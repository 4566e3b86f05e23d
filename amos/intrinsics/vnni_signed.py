"""x86 VNNI on signed bytes alone: ``vpdpbusd`` with its own compensation.

``vpdpbusd`` takes an unsigned and a signed byte. Flipping the sign bit of a signed
byte ``a`` gives the unsigned byte ``a + 128``, and as 32-bit lanes wrap around,

    sum(a * b) = sum((a + 128) * b) - sum(128 * b)

holds exactly for every pair of bytes. The second sum is ``vpdpbusd`` of a constant:
it belongs to a fragment of the lanes and is shared by all rows of a register tile,
so each row costs one subtraction more than with an unsigned source.
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
    "VPDPBUSD: Multiply and Add Unsigned and Signed Bytes; as a sequence with VPXORD and VPSUBD"
)
_DEPTH = 4
#: The sign bits of four bytes, as an int32.
_FLIP = -0x7F7F7F80


def intrinsics() -> Iterator[Intrinsic | Implementation]:
    """Signed by signed bytes on 512 and on 256 bits."""
    for lanes, requires in VNNI_WIDTHS:
        name = f"vnni_dpbusd_signed_m{lanes}k{_DEPTH}_s8_s32"
        yield Intrinsic.define(
            name,
            "Dst[i1] += Src1[r1] * Src2[i1, r1]",
            {"i1": lanes, "r1": _DEPTH},
            {"Src1": "s8", "Src2": "s8", "Dst": "s32"},
            [
                # The sign bits are flipped in a register, so the broadcast needs one.
                Memory("Src1", "load", "memory", ("r1",), "addr_a", ("1",), ("i1",)),
                Memory("Src2", "load", "memory", ("i1", "r1"), "addr_b", (str(_DEPTH), "1")),
                Memory("Dst", "store", "memory", ("i1",), "addr_c", ("1",)),
            ],
            family="vnni",
            source=_SOURCE,
            description=(
                f"{lanes} lanes, each adding {_DEPTH} products of signed bytes: an unsigned "
                "multiply-add and its compensation; the second source fills the lanes"
            ),
            requires=requires,
            # One register holds the sign bits, and one the compensation.
            registers=30,
            # With a compensation that many calls share.
            timing=(Timing(0.5, MEASURED, 6, "AMD Zen 5"),),
        )
        yield Implementation(name, "llvm", _llvm(lanes), "x86_64", requires)
        yield _c(name, lanes, requires)


def _llvm(lanes: int) -> str:
    # Sign bits are flipped before the broadcast: LLVM 22 does not end on a xor of one.
    vector, call = f"int8x{lanes * _DEPTH}", f'"llvm.x86.avx512.vpdpbusd.{32 * lanes}"'
    return f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = T.call_llvm_pure_intrin(
    "int32x{lanes}",
    {call},
    Dst.vload([0], "int32x{lanes}"),
    T.reinterpret(
        "{vector}",
        T.broadcast(
            T.bitwise_xor(
                T.reinterpret("int32", Src1.vload([0], "int8x{_DEPTH}")), T.int32({_FLIP})
            ),
            {lanes},
        ),
    ),
    Src2.vload([0, 0], "{vector}"),
) - T.call_llvm_pure_intrin(
    "int32x{lanes}",
    {call},
    T.broadcast(T.int32(0), {lanes}),
    T.reinterpret("{vector}", T.broadcast(T.int32({_FLIP}), {lanes})),
    Src2.vload([0, 0], "{vector}"),
)
"""


def _c(name: str, lanes: int, requires: tuple[str, ...]) -> Implementation:
    mm, vector, whole = integer_vector(lanes)
    source = f"""
int group;
memcpy(&group, Src1, 4);
{vector} flip = {mm}_set1_epi8((char)0x80);
{vector} every = {mm}_xor_{whole}({mm}_set1_epi32(group), flip);
{vector} lanes = {mm}_loadu_{whole}((const {vector} *)Src2);
{vector} sum = {mm}_dpbusd_epi32({mm}_loadu_{whole}((const {vector} *)Dst), every, lanes);
{vector} extra = {mm}_dpbusd_epi32({mm}_setzero_{whole}(), flip, lanes);
{mm}_storeu_{whole}(({vector} *)Dst, {mm}_sub_epi32(sum, extra));
"""
    return Implementation(
        name,
        "c",
        source,
        "x86_64",
        requires,
        VNNI_FLAGS,
        "#include <immintrin.h>\n#include <string.h>",
    )
