"""x86 VNNI: multiply-add of bytes and words into 32-bit lanes (AMOS, section 7.5).

``vpdpbusd`` multiplies two registers byte by byte and adds groups of four products to
32-bit lanes. The meaning of a call depends on where its operands come from, so each use has a
description:

- All lanes share the few elements of one source, and the other source fills the lanes: the
  second one or, as ``lhs``, the first.
- ``lanes``: both fill the lanes, for operators without a shared source, such as a depthwise
  convolution, whose channels have windows and weights of their own.
- ``dot``: both run along the sum, as the rows of a matrix and a vector do. Lanes hold partial
  sums: each adds its own four products of a call, and the lanes are added up once, after the
  last call, as in hand-written kernels.
- ``signed``: flipping the sign bit of a signed byte ``a`` gives the unsigned byte
  ``a + 128``, and as 32-bit lanes wrap around,
  ``sum(a * b) = sum((a + 128) * b) - sum(128 * b)`` holds exactly. The second sum belongs
  to a fragment of the lanes and is shared by all rows of a register tile, so each row costs
  one subtraction more than with an unsigned source.
"""

from __future__ import annotations

from amos.intrinsics.arithmetic import MEASURED, Arithmetic, Timing
from amos.intrinsics.vectors import (
    COPIES,
    INTEL,
    LLVM_MCA,
    Described,
    SharedGroup,
    instruction,
    integer_vector,
)

_SECTIONS = {
    "dpbusd": "VPDPBUSD: Multiply and Add Unsigned and Signed Bytes",
    "dpbusds": "VPDPBUSDS: Multiply and Add Unsigned and Signed Bytes With Saturation",
    "dpwssd": "VPDPWSSD: Multiply and Add Signed Word Integers",
}
_DPBUSD = f"{INTEL}2C, {_SECTIONS['dpbusd']}"
#: The same for all three instructions and both widths.
_XEON = Timing(0.5, LLVM_MCA, 5, "xeon_6240")
_ALDER_LAKE = Timing(0.5, LLVM_MCA, 5, "Intel Alder Lake P-core")
_ZEN5 = Timing(0.5, MEASURED, 4, "AMD Zen 5")
#: Lanes of 32 bits on 512 and on 256 bits, and required features.
_WIDTHS = ((16, ("avx512_vnni",)), (8, ("avx512_vnni", "avx512vl")))
_FLAGS = ("-mavx512f", "-mavx512vl", "-mavx512vnni")
#: The sign bits of four bytes, as an int32.
_FLIP = -0x7F7F7F80


def intrinsics() -> Described:
    """Yield ``vpdpbusd``, ``vpdpbusds`` and ``vpdpwssd``, in three widths of encoding.

    AVX-512 has them on 512 and, with AVX-512VL, on 256 bits; AVX-VNNI encodes the 256-bit
    ones differently for CPUs without AVX-512.
    """
    for name in _SECTIONS:
        for first_fills in (False, True):
            yield from _shared_source(
                "vnni", name, *_WIDTHS[0], ("-mavx512f", "-mavx512vnni"), first_fills
            )
            yield from _shared_source("vnni", name, *_WIDTHS[1], _FLAGS, first_fills)
            yield from _shared_source(
                "avxvnni", name, 8, ("avx_vnni",), ("-mavx2", "-mavxvnni"), first_fills
            )
    for lanes, requires in _WIDTHS:
        yield from _lanes(lanes, requires)
        yield from _dot(lanes, requires)
        yield from _signed_bytes(lanes, requires)


def _shared_source(
    family: str,
    called: str,
    lanes: int,
    requires: tuple[str, ...],
    flags: tuple[str, ...],
    first_fills: bool,
) -> Described:
    words = called == "dpwssd"
    kinds = ("s16", "s16") if words else ("u8", "s8")
    group = SharedGroup(lanes, ("int16", "int16") if words else ("uint8", "int8"), first_fills)
    types = "_".join(dict.fromkeys(kinds))
    what = "signed words" if words else "an unsigned and a signed byte"
    saturates = called == "dpbusds"
    # The few elements that all lanes share are an embedded broadcast (m32bcst) of AVX-512:
    # the instruction itself replicates them as it reads memory.
    embedded = family == "vnni"
    function = f"{integer_vector(lanes)[0]}_{called}{'' if embedded else '_avx'}_epi32"
    return instruction(
        f"{family}_{called}{'_lhs' if first_fills else ''}_m{lanes}k{group.depth}_{types}_s32",
        group.compute,
        {"i1": lanes, "r1": group.depth},
        (*kinds, "s32"),
        shared=group.alone,
        embedded=group.alone if embedded else "",
        family=family,
        source=f"{INTEL}2C, {_SECTIONS[called]}",
        description=f"{lanes} lanes, each adding {group.depth} products of {what}"
        f"{', saturating' if saturates else ''}; the {'first' if first_fills else 'second'} source "
        "fills the lanes",
        requires=requires,
        registers=32 if embedded else 16,
        arithmetic=Arithmetic(saturate=saturates),
        timing=(_XEON if embedded else _ALDER_LAKE, _ZEN5),
        llvm=_call(called, lanes, *group.llvm),
        c=group.c(f"{function}(sum, {', '.join(group.in_order('every', 'lanes'))})"),
        flags=flags,
        headers=COPIES,
    )


def _call(called: str, lanes: int, first: str, second: str) -> str:
    """Call LLVM 22's intrinsic; it takes vectors of bytes or words, the broadcast one too."""
    return f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = T.call_llvm_pure_intrin(
    "int32x{lanes}",
    "llvm.x86.avx512.vp{called}.{32 * lanes}",
    Dst.vload([0], "int32x{lanes}"),
    {first},
    {second},
)
"""


def _lanes(lanes: int, requires: tuple[str, ...]) -> Described:
    vector = f"x{lanes * 4}"
    mm, register, suffix = integer_vector(lanes)
    loads = [f"{mm}_loadu_{suffix}((const {register} *){x})" for x in ("Dst", "Src1", "Src2")]
    return instruction(
        f"vnni_dpbusd_lanes_m{lanes}k4_u8_s8_s32",
        "Dst[i1] += Src1[i1, r1] * Src2[i1, r1]",
        {"i1": lanes, "r1": 4},
        ("u8", "s8", "s32"),
        family="vnni",
        source=_DPBUSD,
        description=f"{lanes} lanes, each adding 4 products of an unsigned and a signed byte; "
        "both sources fill the lanes",
        requires=requires,
        registers=32,
        timing=(_XEON, _ZEN5),
        llvm=_call(
            "dpbusd",
            lanes,
            f'T.reinterpret("int8{vector}", Src1.vload([0, 0], "uint8{vector}"))',
            f'Src2.vload([0, 0], "int8{vector}")',
        ),
        c=f"{mm}_storeu_{suffix}(({register} *)Dst, {mm}_dpbusd_epi32({', '.join(loads)}));",
        flags=_FLAGS,
    )


def _dot(lanes: int, requires: tuple[str, ...]) -> Described:
    vector = f"x{lanes * 4}"
    mm, register, suffix = integer_vector(lanes)
    loads = [f"{mm}_loadu_{suffix}((const {register} *){x})" for x in ("Src1", "Src2")]
    return instruction(
        f"vnni_dpbusd_dot_m1k{lanes * 4}_u8_s8_s32",
        "Dst[] += Src1[r1] * Src2[r1]",
        {"r1": lanes * 4},
        ("u8", "s8", "s32"),
        family="vnni",
        source=f"{_DPBUSD}; as a sequence with VPADDD",
        description=f"the sum of {lanes * 4} products of an unsigned and a signed byte, "
        f"kept in {lanes} parts until the last call",
        requires=requires,
        registers=32,
        timing=(_XEON,),
        llvm=_call(
            "dpbusd",
            lanes,
            f'T.reinterpret("int8{vector}", Src1.vload([0], "uint8{vector}"))',
            f'Src2.vload([0], "int8{vector}")',
        ),
        partial=lanes,
        c=f"""
int parts[{lanes}];
{mm}_storeu_{suffix}(({register} *)parts,
    {mm}_dpbusd_epi32({mm}_setzero_{suffix}(), {", ".join(loads)}));
for (int n = 0; n < {lanes}; n++) {{
  *Dst = (int)((unsigned)*Dst + (unsigned)parts[n]);
}}
""",
        flags=_FLAGS,
    )


def _signed_bytes(lanes: int, requires: tuple[str, ...]) -> Described:
    mm, register, suffix = integer_vector(lanes)
    return instruction(
        f"vnni_dpbusd_signed_m{lanes}k4_s8_s32",
        "Dst[i1] += Src1[r1] * Src2[i1, r1]",
        {"i1": lanes, "r1": 4},
        ("s8", "s8", "s32"),
        # The sign bits are flipped in a register, so the broadcast needs one: none is embedded.
        shared="Src1",
        family="vnni",
        source=f"{_DPBUSD}; as a sequence with VPXORD and VPSUBD",
        description=f"{lanes} lanes, each adding 4 products of signed bytes: an unsigned "
        "multiply-add and its compensation; the second source fills the lanes",
        requires=requires,
        # One register holds the sign bits, and one the compensation.
        registers=30,
        # With a compensation that many calls share.
        timing=(Timing(0.5, MEASURED, 6, "AMD Zen 5"),),
        llvm=_signed_llvm(lanes),
        c=f"""
int group;
memcpy(&group, Src1, 4);
{register} flip = {mm}_set1_epi8((char)0x80);
{register} every = {mm}_xor_{suffix}({mm}_set1_epi32(group), flip);
{register} lanes = {mm}_loadu_{suffix}((const {register} *)Src2);
{register} sum = {mm}_dpbusd_epi32({mm}_loadu_{suffix}((const {register} *)Dst), every, lanes);
{register} extra = {mm}_dpbusd_epi32({mm}_setzero_{suffix}(), flip, lanes);
{mm}_storeu_{suffix}(({register} *)Dst, {mm}_sub_epi32(sum, extra));
""",
        flags=_FLAGS,
        headers=COPIES,
    )


def _signed_llvm(lanes: int) -> str:
    # Sign bits are flipped before the broadcast: LLVM 22 does not terminate on a xor of one.
    vector, call = f"int8x{lanes * 4}", f'"llvm.x86.avx512.vpdpbusd.{32 * lanes}"'
    return f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = T.call_llvm_pure_intrin(
    "int32x{lanes}",
    {call},
    Dst.vload([0], "int32x{lanes}"),
    T.reinterpret(
        "{vector}",
        T.broadcast(
            T.bitwise_xor(
                T.reinterpret("int32", Src1.vload([0], "int8x4")), T.int32({_FLIP})
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
