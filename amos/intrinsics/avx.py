"""x86 fused multiply-add on vectors of floats: an instruction like AXPY."""

from __future__ import annotations

from collections.abc import Iterator

from amos.intrinsics.arithmetic import MEASURED, Arithmetic, Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.memory import Memory

__all__ = ["intrinsics"]

_SOURCE = (
    "Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2C, "
    "VFMADD132PS/VFMADD213PS/VFMADD231PS: Fused Multiply-Add of Packed Single Precision "
    "Floating-Point Values"
)

_TIMING = (
    Timing(0.5, "scheduling model of LLVM 22 (llvm-mca)", 4, "xeon_6240"),
    Timing(0.5, MEASURED, 4, "AMD Zen 5"),
)


def intrinsics() -> Iterator[Intrinsic | Implementation]:
    """``vfmadd231ps`` on 512 bits (AVX-512) and on 256 bits (FMA)."""
    yield from _variant("avx512_fmadd_m16_f32_f32", "avx512", 16, ("avx512f",), ("-mavx512f",))
    yield from _variant("avx2_fmadd_m8_f32_f32", "avx2", 8, ("fma",), ("-mfma",))


def _variant(
    name: str, family: str, lanes: int, requires: tuple[str, ...], flags: tuple[str, ...]
) -> Iterator[Intrinsic | Implementation]:
    yield Intrinsic.define(
        name,
        "Dst[i1] += Src1[] * Src2[i1]",
        {"i1": lanes},
        {"Src1": "f32", "Src2": "f32", "Dst": "f32"},
        [
            Memory("Src1", "load", "memory", (), "addr_a", (), broadcast=("i1",)),
            Memory("Src2", "load", "memory", ("i1",), "addr_b", ("1",), explicit=False),
            Memory("Dst", "store", "memory", ("i1",), "addr_c", ("1",)),
        ],
        family=family,
        source=_SOURCE,
        description=f"{lanes} lanes, each adding its element times one scalar",
        requires=requires,
        registers=32 if lanes == 16 else 16,
        arithmetic=Arithmetic(rounding="fused"),
        timing=_TIMING,
    )
    yield Implementation(
        name,
        "llvm",
        f"""
Dst[T.ramp(T.int32(0), 1, {lanes})] = T.call_llvm_pure_intrin(
    "float32x{lanes}",
    "llvm.fma",
    T.broadcast(Src1[()], {lanes}),
    Src2.vload([0], "float32x{lanes}"),
    Dst.vload([0], "float32x{lanes}"),
)
""",
        "x86_64",
        requires,
    )
    mm = f"_mm{32 * lanes}"
    yield Implementation(
        name,
        "c",
        f"{mm}_storeu_ps(Dst, {mm}_fmadd_ps({mm}_set1_ps(*Src1), {mm}_loadu_ps(Src2), "
        f"{mm}_loadu_ps(Dst)));",
        "x86_64",
        requires,
        flags,
        "#include <immintrin.h>",
    )
