"""Integer multiply-add of x86 without VNNI, exact on bytes.

- ``vpmaddwd`` multiplies words and adds pairs of products in 32 bits. Bytes are widened to
  words: activations as they are staged, weights as they are packed. A word holds every byte,
  signed or not, so sums are those of VNNI bit for bit.
- ``vpmaddubsw`` multiplies unsigned and signed bytes and adds pairs of products in 16 bits,
  saturating. Two of them fit if either byte is declared to stay in half of its range:
  255 · 64 · 2 and 127 · 128 · 2 are below 2**15. ``vpmaddwd`` by ones adds the pairs up.
"""

from __future__ import annotations

from amos.intrinsics.arithmetic import MEASURED, Timing
from amos.intrinsics.vectors import COPIES, INTEL, Described, instruction, integer_vector

__all__ = ["intrinsics"]

_WORDS = f"{INTEL}2B, PMADDWD: Multiply and Add Packed Integers; followed by PADDD"
_BYTES = (
    f"{INTEL}2B, PMADDUBSW: Multiply and Add Packed Signed and Unsigned Bytes; "
    "followed by PMADDWD of ones and PADDD"
)
#: Family, lanes, what they need, and LLVM's names of both instructions.
_WIDTHS = (
    ("avx512", 16, "avx512bw", "llvm.x86.avx512.pmaddw.d.512", "llvm.x86.avx512.pmaddubs.w.512"),
    ("avx2", 8, "avx2", "llvm.x86.avx2.pmadd.wd", "llvm.x86.avx2.pmadd.ub.sw"),
)


def intrinsics() -> Described:
    """Both, on 512 and on 256 bits; ``…_lhs_…`` has the first source in the lanes."""
    for family, lanes, feature, words, bytes_ in _WIDTHS:
        for kinds in (("u8", "s8"), ("s8", "s8"), ("s16", "s16")):
            # Sources of one dtype change places by themselves.
            for left in (False, True)[: len({*kinds})]:
                yield from _variant(family, lanes, feature, kinds, left, (words,))
        for kinds in (("u8", "s7"), ("u7", "s8")):
            for left in (False, True):
                yield from _variant(family, lanes, feature, kinds, left, (words, bytes_))


def _variant(
    family: str,
    lanes: int,
    feature: str,
    kinds: tuple[str, str],
    left: bool,
    instructions: tuple[str, ...],
) -> Described:
    """One use of ``vpmaddwd`` alone or after ``vpmaddubsw``, LLVM's names of which are given."""
    whole = len(instructions) == 2
    depth, mnemonic = (4, "pmaddubsw") if whole else (2, "pmaddwd")
    types = "_".join(dict.fromkeys(kinds))
    alone, rows = ("Src2", "Src1") if left else ("Src1", "Src2")
    llvm = _bytes_llvm if whole else _words_llvm
    return instruction(
        f"{family}_{mnemonic}{'_lhs' if left else ''}_m{lanes}k{depth}_{types}_s32",
        f"Dst[i1] += {'Src1[i1, r1] * Src2[r1]' if left else 'Src1[r1] * Src2[i1, r1]'}",
        {"i1": lanes, "r1": depth},
        (*kinds, "s32"),
        shared=alone,
        staged="" if whole else "s16",
        family=family,
        source=_BYTES if whole else _WORDS,
        description=f"{lanes} lanes, each adding {depth} products of "
        f"{'bytes' if whole else 'words'}; the {'first' if left else 'second'} source fills them",
        requires=(feature,),
        # One register holds the ones.
        registers=2 * lanes - whole,
        # Where LLVM may not make VPDPWSSD of it; only the sum is waited for.
        timing=(Timing(1.0 if whole else 0.5, MEASURED, 1, "AMD Zen 5"),),
        llvm=llvm(instructions, lanes, alone, rows),
        c=_c(lanes, alone, rows, whole),
        flags=(f"-m{feature}",),
        headers=COPIES,
    )


def _words_llvm(instructions: tuple[str, ...], lanes: int, alone: str, rows: str) -> str:
    words = f"int16x{2 * lanes}"
    return f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = Dst.vload([0], "int32x{lanes}") + T.call_llvm_pure_intrin(
    "int32x{lanes}",
    "{instructions[0]}",
    T.reinterpret(
        "{words}", T.broadcast(T.reinterpret("int32", {alone}.vload([0], "int16x2")), {lanes})
    ),
    {rows}.vload([0, 0], "{words}"),
)
"""


def _bytes_llvm(instructions: tuple[str, ...], lanes: int, alone: str, rows: str) -> str:
    """The unsigned source comes first, whichever fills the lanes."""
    vector = f"int8x{4 * lanes}"
    kinds = {"Src1": "uint8", "Src2": "int8"}
    every = f"""T.reinterpret(
            "{vector}",
            T.broadcast(T.reinterpret("int32", {alone}.vload([0], "{kinds[alone]}x4")), {lanes}),
        )"""
    filled = f'T.reinterpret("{vector}", {rows}.vload([0, 0], "{kinds[rows]}x{4 * lanes}"))'
    unsigned, signed = (every, filled) if alone == "Src1" else (filled, every)
    return f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = Dst.vload([0], "int32x{lanes}") + T.call_llvm_pure_intrin(
    "int32x{lanes}",
    "{instructions[0]}",
    T.call_llvm_pure_intrin(
        "int16x{2 * lanes}",
        "{instructions[1]}",
        {unsigned},
        {signed},
    ),
    T.broadcast(T.int16(1), {2 * lanes}),
)
"""


def _c(lanes: int, alone: str, rows: str, whole: bool) -> str:
    mm, vector, register = integer_vector(lanes)
    products = f"{mm}_madd_epi16(every, lanes)"
    if whole:
        unsigned, signed = ("every", "lanes") if alone == "Src1" else ("lanes", "every")
        pairs = f"{mm}_maddubs_epi16({unsigned}, {signed})"
        products = f"{mm}_madd_epi16({pairs}, {mm}_set1_epi16(1))"
    return f"""
int group;
memcpy(&group, {alone}, 4);
{vector} every = {mm}_set1_epi32(group);
{vector} lanes = {mm}_loadu_{register}((const {vector} *){rows});
{vector} sum = {mm}_loadu_{register}((const {vector} *)Dst);
sum = {mm}_add_epi32(sum, {products});
{mm}_storeu_{register}(({vector} *)Dst, sum);
"""
