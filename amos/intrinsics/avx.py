"""x86 fused multiply-add on vectors of floats: an instruction like AXPY."""

from __future__ import annotations

from amos.intrinsics.arithmetic import MEASURED, Arithmetic, Timing
from amos.intrinsics.vectors import INTEL, LLVM_MCA, Described, instruction

__all__ = ["intrinsics"]

_SOURCE = (
    f"{INTEL}2C, VFMADD132PS/VFMADD213PS/VFMADD231PS: Fused Multiply-Add of Packed Single "
    "Precision Floating-Point Values"
)
#: What widens a dtype in one instruction, beyond FMA itself.
_WIDENS = {"f16": ("f16c",)}


def intrinsics() -> Described:
    """``vfmadd231ps`` on 512 bits (AVX-512) and on 256 bits (FMA), of three dtypes.

    A float32 holds every float16 and every bfloat16, which are widened as they are staged.
    With both sources in lanes it computes what has no shared one: a depthwise convolution.
    """
    for family, lanes, feature in (("avx512", 16, "avx512f"), ("avx2", 8, "fma")):
        for kind in ("f32", "f16", "bf16"):
            yield from _multiply_add(family, lanes, feature, kind)
        yield from _lanes(family, lanes, feature)


def _multiply_add(family: str, lanes: int, feature: str, kind: str) -> Described:
    mm, vector = f"_mm{32 * lanes}", f"float32x{lanes}"
    return instruction(
        f"{family}_fmadd_m{lanes}_{kind}_f32",
        "Dst[i1] += Src1[] * Src2[i1]",
        {"i1": lanes},
        (kind, kind, "f32"),
        shared="Src1",
        embedded="Src2",
        staged="" if kind == "f32" else "f32",
        family=family,
        source=_SOURCE,
        description=f"{lanes} lanes, each adding its element times one scalar",
        requires=(feature, *(_WIDENS.get(kind, ()) if feature == "fma" else ())),
        registers=2 * lanes,
        arithmetic=Arithmetic(rounding="fused"),
        timing=(Timing(0.5, LLVM_MCA, 4, "xeon_6240"), Timing(0.5, MEASURED, 4, "AMD Zen 5")),
        llvm=f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = T.call_llvm_pure_intrin(
    "{vector}",
    "llvm.fma",
    T.broadcast(Src1[()], {lanes}),
    Src2.vload([0], "{vector}"),
    Dst.vload([0], "{vector}"),
)
""",
        c=f"{mm}_storeu_ps(Dst, {mm}_fmadd_ps({mm}_set1_ps(*Src1), {mm}_loadu_ps(Src2), "
        f"{mm}_loadu_ps(Dst)));",
        flags=(f"-m{feature}",),
    )


def _lanes(family: str, lanes: int, feature: str) -> Described:
    mm, vector = f"_mm{32 * lanes}", f"float32x{lanes}"
    return instruction(
        f"{family}_fmadd_lanes_m{lanes}_f32_f32",
        "Dst[i1] += Src1[i1] * Src2[i1]",
        {"i1": lanes},
        ("f32", "f32", "f32"),
        embedded="Src2",
        family=family,
        source=_SOURCE,
        description=f"{lanes} lanes, each adding a product of elements of its own",
        requires=(feature,),
        registers=2 * lanes,
        arithmetic=Arithmetic(rounding="fused"),
        timing=(Timing(0.5, LLVM_MCA, 4, "xeon_6240"), Timing(0.5, MEASURED, 4, "AMD Zen 5")),
        llvm=f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = T.call_llvm_pure_intrin(
    "{vector}",
    "llvm.fma",
    Src1.vload([0], "{vector}"),
    Src2.vload([0], "{vector}"),
    Dst.vload([0], "{vector}"),
)
""",
        c=f"{mm}_storeu_ps(Dst, {mm}_fmadd_ps({mm}_loadu_ps(Src1), {mm}_loadu_ps(Src2), "
        f"{mm}_loadu_ps(Dst)));",
        flags=(f"-m{feature}",),
    )
