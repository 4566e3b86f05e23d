"""x86 fused multiply-add on vectors of floats: an instruction like AXPY."""

from __future__ import annotations

from amos.intrinsics.arithmetic import MEASURED, Arithmetic, Timing
from amos.intrinsics.vectors import INTEL, LLVM_MCA, Described, instruction

_SOURCE = (
    f"{INTEL}2C, VFMADD132PS/VFMADD213PS/VFMADD231PS: Fused Multiply-Add of Packed Single "
    "Precision Floating-Point Values"
)
#: Features that widen a dtype in one instruction, beyond FMA itself.
_WIDENS = {"f16": ("f16c",)}


def intrinsics() -> Described:
    """Yield ``vfmadd231ps`` on 512 bits (AVX-512) and on 256 bits (FMA), of three dtypes.

    A float32 holds every float16 and every bfloat16. float16 is widened in registers, by
    ``vcvtph2ps``, bfloat16 during staging.
    With both sources in lanes it computes operators without a shared source, such as a depthwise
    convolution.
    """
    for family, lanes, feature in (("avx512", 16, "avx512f"), ("avx2", 8, "fma")):
        for kind in ("f32", "f16", "bf16"):
            yield from _multiply_add(family, lanes, feature, kind, shared=True)
        yield from _multiply_add(family, lanes, feature, "f32", shared=False)


def _multiply_add(family: str, lanes: int, feature: str, kind: str, *, shared: bool) -> Described:
    """Describe one with a ``shared`` first source, or with one for each lane."""
    mm, vector = f"_mm{32 * lanes}", f"float32x{lanes}"
    half = kind == "f16"
    scalar = 'T.Cast("float32", Src1[()])' if half else "Src1[()]"
    llvm_lanes, c_lanes = f'Src2.vload([0], "{vector}")', f"{mm}_loadu_ps(Src2)"
    if half:
        llvm_lanes = f'T.Cast("{vector}", Src2.vload([0], "float16x{lanes}"))'
        load = f"_mm{16 * lanes if lanes > 8 else ''}_loadu_si{16 * lanes}"
        c_lanes = f"{mm}_cvtph_ps({load}((const __m{16 * lanes}i *)Src2))"
    if shared:
        index, what = "", "its element times one scalar"
        c_scalar = "_cvtsh_ss(*Src1)" if half else "*Src1"
        llvm, c = f"T.broadcast({scalar}, {lanes})", f"{mm}_set1_ps({c_scalar})"
    else:
        index, what = "i1", "a product of elements of its own"
        llvm, c = f'Src1.vload([0], "{vector}")', f"{mm}_loadu_ps(Src1)"
    return instruction(
        f"{family}_fmadd_{'' if shared else 'lanes_'}m{lanes}_{kind}_f32",
        f"Dst[i1] += Src1[{index}] * Src2[i1]",
        {"i1": lanes},
        (kind, kind, "f32"),
        shared="Src1" if shared else "",
        # Only AVX-512 embeds a broadcast from memory in the instruction, of float32.
        embedded="Src1" if shared and feature != "fma" and not half else "Src2",
        staged="f32" if kind == "bf16" else "",
        family=family,
        source=_SOURCE,
        description=f"{lanes} lanes, each adding {what}",
        requires=(feature, *(_WIDENS.get(kind, ()) if feature == "fma" else ())),
        registers=2 * lanes,
        overwrites_sources=True,
        arithmetic=Arithmetic(rounding="fused"),
        timing=(Timing(0.5, LLVM_MCA, 4, "xeon_6240"), Timing(0.5, MEASURED, 4, "AMD Zen 5")),
        llvm=f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = T.call_llvm_pure_intrin(
    "{vector}",
    "llvm.fma",
    {llvm},
    {llvm_lanes},
    Dst.vload([0], "{vector}"),
)
""",
        c=f"{mm}_storeu_ps(Dst, {mm}_fmadd_ps({c}, {c_lanes}, {mm}_loadu_ps(Dst)));",
        flags=(f"-m{feature}", *(("-mf16c",) if half else ())),
    )
