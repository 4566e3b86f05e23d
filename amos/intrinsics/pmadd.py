"""Integer multiply-add of x86 without VNNI, exact on bytes.

- ``vpmaddwd`` multiplies words and adds pairs of products in 32 bits. Bytes are widened to
  words: activations during staging, weights during packing. A word holds every byte,
  signed or not, so sums are those of VNNI bit for bit.
- ``vpmaddubsw`` multiplies unsigned and signed bytes and adds pairs of products in 16 bits,
  saturating. Two of them fit if either byte is declared to stay in about half of its range:
  255 · 64 · 2 is below 2**15, and 128 · -128 · 2 is -2**15. ``vpmaddwd`` by ones adds the
  pairs up.
"""

from __future__ import annotations

from amos.intrinsics.arithmetic import MEASURED, Timing
from amos.intrinsics.vectors import (
    COPIES,
    INTEL,
    Described,
    FilledLanes,
    SharedGroup,
    instruction,
    integer_vector,
)

_WORDS = f"{INTEL}2B, PMADDWD: Multiply and Add Packed Integers; followed by PADDD"
_BYTES = (
    f"{INTEL}2B, PMADDUBSW: Multiply and Add Packed Signed and Unsigned Bytes; "
    "followed by PMADDWD of ones and PADDD"
)
#: Sources whose pairs of products fit 16 bits, by a name for the one with the short range.
_SHORT = {"u8_s7": ("u8", "s8 in [-64, 64]"), "u7_s8": ("u8 in [0, 128]", "s8")}
#: Family, lanes, required features, and LLVM's names of both instructions.
_WIDTHS = (
    ("avx512", 16, "avx512bw", "llvm.x86.avx512.pmaddw.d.512", "llvm.x86.avx512.pmaddubs.w.512"),
    ("avx2", 8, "avx2", "llvm.x86.avx2.pmadd.wd", "llvm.x86.avx2.pmadd.ub.sw"),
)


def intrinsics() -> Described:
    """Yield both, on 512 and on 256 bits.

    ``…_lhs_…`` has the first source in the lanes, ``…_lanes_…`` both, as a depthwise
    convolution needs it, whose channels have windows and weights of their own.
    """
    for family, lanes, feature, words, bytes_ in _WIDTHS:
        for kinds in (("u8", "s8"), ("s8", "s8"), ("s16", "s16")):
            named = "_".join(dict.fromkeys(kinds))
            # Sources of one dtype are swapped without variants of their own.
            for group in _groups(lanes, "int16", "int16")[2 - len({*kinds}) :]:
                yield from _variant(family, feature, named, kinds, group, words)
        for named, kinds in _SHORT.items():
            for group in _groups(lanes, "uint8", "int8"):
                yield from _variant(family, feature, named, kinds, group, words, bytes_)


def _groups(lanes: int, first: str, second: str) -> tuple[SharedGroup, ...]:
    """List the groups in which sources may fill or share lanes."""
    first_fills, second_fills = (
        SharedGroup(lanes, (first, second), side) for side in (True, False)
    )
    return first_fills, second_fills, FilledLanes(lanes, (first, second))


def _variant(
    family: str,
    feature: str,
    types: str,
    kinds: tuple[str, str],
    group: SharedGroup,
    words: str,
    bytes_: str = "",
) -> Described:
    """Describe a use of ``vpmaddwd``, after ``vpmaddubsw`` where LLVM's name of that is given."""
    lanes, mm = group.lanes, integer_vector(group.lanes)[0]
    factors = ("every", "lanes")
    sources = group.llvm
    if bytes_:
        pairs = f"{mm}_maddubs_epi16({', '.join(group.in_order(*factors))})"
        factors = (pairs, f"{mm}_set1_epi16(1)")
        sources = (
            _call(f"int16x{2 * lanes}", bytes_, *sources),
            f"T.broadcast(T.int16(1), {2 * lanes})",
        )
    side = "_lhs" if group.first_fills else "" if group.alone else "_lanes"
    filling = {"": "the second source fills", "_lhs": "the first source fills"}
    return instruction(
        f"{family}_{'pmaddubsw' if bytes_ else 'pmaddwd'}{side}_m{lanes}k{group.depth}_{types}_s32",
        group.compute,
        {"i1": lanes, "r1": group.depth},
        (*kinds, "s32"),
        shared=group.alone,
        staged="" if bytes_ else "s16",
        family=family,
        source=_BYTES if bytes_ else _WORDS,
        description=f"{lanes} lanes, each adding {group.depth} products of "
        f"{'bytes' if bytes_ else 'words'}; {filling.get(side, 'both sources fill')} them",
        requires=(feature,),
        # One register holds the ones.
        registers=2 * lanes - bool(bytes_),
        # Where LLVM may not make VPDPWSSD of it; only the sum is waited for.
        timing=(Timing(1.0 if bytes_ else 0.5, MEASURED, 1, "AMD Zen 5"),),
        llvm=f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = Dst.vload([0], "int32x{lanes}") + {
            _call(f"int32x{lanes}", words, *sources)
        }
""",
        c=group.c(f"{mm}_add_epi32(sum, {mm}_madd_epi16({', '.join(factors)}))"),
        flags=(f"-m{feature}",),
        headers=COPIES,
    )


def _call(kind: str, called: str, first: str, second: str) -> str:
    return f"""T.call_llvm_pure_intrin(
    "{kind}",
    "{called}",
    {first},
    {second},
)"""
