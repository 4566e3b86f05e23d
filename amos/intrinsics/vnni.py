"""x86 VNNI: multiply-add of bytes and words into 32-bit lanes (AMOS, section 7.5)."""

from __future__ import annotations

from collections.abc import Iterator

from amos.intrinsics.arithmetic import MEASURED, Arithmetic, Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.memory import Memory
from amos.intrinsics.x86 import integer_vector

__all__ = ["intrinsics"]

_MANUAL = "Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2C, "
_SECTIONS = {
    "dpbusd": "VPDPBUSD: Multiply and Add Unsigned and Signed Bytes",
    "dpbusds": "VPDPBUSDS: Multiply and Add Unsigned and Signed Bytes With Saturation",
    "dpwssd": "VPDPWSSD: Multiply and Add Signed Word Integers",
}

#: Alike for all three instructions and both widths.
_TIMING = {
    "vnni": Timing(0.5, "scheduling model of LLVM 22 (llvm-mca)", 5, "xeon_6240"),
    "avxvnni": Timing(0.5, "scheduling model of LLVM 22 (llvm-mca)", 5, "Intel Alder Lake P-core"),
}
_ZEN5 = Timing(0.5, MEASURED, 4, "AMD Zen 5")


def intrinsics() -> Iterator[Intrinsic | Implementation]:
    """``vpdpbusd``, ``vpdpbusds`` and ``vpdpwssd``, in three widths of encoding.

    AVX-512 has them on 512 and, with AVX-512VL, on 256 bits; AVX-VNNI encodes
    the 256-bit ones anew for CPUs without AVX-512. Each comes in two orders of
    its operands: the second source in the lanes and the first one broadcast
    (weights in lanes), and, as ``…_lhs_…``, the first one in the lanes.
    """
    for instruction in _SECTIONS:
        for left in (False, True):
            yield from _variant("vnni", instruction, 16, ("avx512_vnni",), left)
            yield from _variant("vnni", instruction, 8, ("avx512_vnni", "avx512vl"), left)
            yield from _variant("avxvnni", instruction, 8, ("avx_vnni",), left)


def _variant(
    family: str, instruction: str, lanes: int, requires: tuple[str, ...], left: bool
) -> Iterator[Intrinsic | Implementation]:
    wide = instruction == "dpwssd"
    depth, kinds = (2, ("s16", "s16")) if wide else (4, ("u8", "s8"))
    spelled = kinds[0] if wide else "_".join(kinds)
    side = "_lhs" if left else ""
    name = f"{family}_{instruction}{side}_m{lanes}k{depth}_{spelled}_s32"
    alone, rows = ("Src2", "Src1") if left else ("Src1", "Src2")
    product = "Src1[i1, r1] * Src2[r1]" if left else "Src1[r1] * Src2[i1, r1]"
    # The few elements that all lanes share are an embedded broadcast (m32bcst)
    # of AVX-512: the instruction itself replicates them as it reads memory. The
    # lanes of the other source are one register, hence its fixed stride.
    embedded = family == "vnni"
    shared = Memory(
        alone, "load", "memory", ("r1",), "addr_a", ("1",), ("i1",), explicit=not embedded
    )
    lanewise = Memory(rows, "load", "memory", ("i1", "r1"), "addr_b", (str(depth), "1"))
    yield Intrinsic.define(
        name,
        f"Dst[i1] += {product}",
        {"i1": lanes, "r1": depth},
        {"Src1": kinds[0], "Src2": kinds[1], "Dst": "s32"},
        [
            *((lanewise, shared) if left else (shared, lanewise)),
            Memory("Dst", "store", "memory", ("i1",), "addr_c", ("1",)),
        ],
        family=family,
        source=_MANUAL + _SECTIONS[instruction],
        description=_about(lanes, depth, wide, instruction.endswith("s"), left),
        requires=requires,
        registers=16 if family == "avxvnni" else 32,
        arithmetic=Arithmetic(saturate=instruction == "dpbusds"),
        timing=(_TIMING[family], _ZEN5),
    )
    yield Implementation(
        name, "llvm", _llvm(instruction, lanes, depth, kinds, left), "x86_64", requires
    )
    yield _c(name, instruction, family, lanes, requires, left)


def _about(lanes: int, depth: int, wide: bool, saturates: bool, left: bool) -> str:
    what = "signed words" if wide else "an unsigned and a signed byte"
    where = "first" if left else "second"
    return (
        f"{lanes} lanes, each adding {depth} products of {what}"
        f"{', saturating' if saturates else ''}; the {where} source fills the lanes"
    )


def _llvm(instruction: str, lanes: int, depth: int, kinds: tuple[str, str], left: bool) -> str:
    """LLVM 22 takes the sources as vectors of bytes or words, the broadcast one too."""
    kind = "int16" if depth == 2 else "int8"
    alone, rows = ("Src2", "Src1") if left else ("Src1", "Src2")
    types = {"u8": "uint8", "s8": "int8", "s16": "int16"}
    held = dict(zip(("Src1", "Src2"), (types[k] for k in kinds), strict=True))
    vector = f"{kind}x{lanes * depth}"
    loaded = f'{rows}.vload([0, 0], "{held[rows]}x{lanes * depth}")'
    if held[rows] != kind:
        loaded = f'T.reinterpret("{vector}", {loaded})'
    every = f'''T.reinterpret(
        "{vector}",
        T.broadcast(T.reinterpret("int32", {alone}.vload([0], "{held[alone]}x{depth}")), {lanes}),
    )'''
    first, second = (loaded, every) if left else (every, loaded)
    return f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = T.call_llvm_pure_intrin(
    "int32x{lanes}",
    "llvm.x86.avx512.vp{instruction}.{32 * lanes}",
    Dst.vload([0], "int32x{lanes}"),
    {first},
    {second},
)
"""


def _c(
    name: str, instruction: str, family: str, lanes: int, requires: tuple[str, ...], left: bool
) -> Implementation:
    prefix, vector, whole = integer_vector(lanes)
    suffix = "_avx_epi32" if family == "avxvnni" else "_epi32"
    alone, rows = ("Src2", "Src1") if left else ("Src1", "Src2")
    source = f"""
int group;
memcpy(&group, {alone}, 4);
{vector} every = {prefix}_set1_epi32(group);
{vector} lanes = {prefix}_loadu_{whole}((const {vector} *){rows});
{vector} sum = {prefix}_loadu_{whole}((const {vector} *)Dst);
sum = {prefix}_{instruction}{suffix}(sum, {"lanes, every" if left else "every, lanes"});
{prefix}_storeu_{whole}(({vector} *)Dst, sum);
"""
    flags = {
        ("avx512_vnni",): ("-mavx512f", "-mavx512vnni"),
        ("avx512_vnni", "avx512vl"): ("-mavx512f", "-mavx512vl", "-mavx512vnni"),
        ("avx_vnni",): ("-mavx2", "-mavxvnni"),
    }[requires]
    return Implementation(
        name, "c", source, "x86_64", requires, flags, "#include <immintrin.h>\n#include <string.h>"
    )
