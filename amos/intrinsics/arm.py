"""Arm A64 Advanced SIMD: dot products and matrix multiply-add of bytes."""

from __future__ import annotations

from typing import Any

from amos.intrinsics.arithmetic import Timing
from amos.intrinsics.vectors import LLVM_MCA, Described, instruction
from amos.ir import dtype

Kinds = tuple[str, str, str]

_MANUAL = "Arm Architecture Reference Manual for A-profile architecture (DDI 0487), C7.2, "
#: The same for all; a chain of accumulations is faster, since cores forward the accumulator.
_TIMING = (
    Timing(0.25, f"{LLVM_MCA}, no forwarding", 3, "Arm Neoverse V1"),
    Timing(0.5, f"{LLVM_MCA}, no forwarding", 3, "Arm Neoverse N2"),
)
#: Attribute of the target that has the instructions of a feature.
_ATTRIBUTES = {"asimddp": "+dotprod", "i8mm": "+i8mm"}
_SIGNED, _UNSIGNED, _MIXED = ("s8", "s8", "s32"), ("u8", "u8", "u32"), ("u8", "s8", "s32")


def intrinsics() -> Described:
    """Yield ``sdot``, ``udot``, ``usdot`` by element, and ``smmla``, ``ummla``, ``usmmla``."""
    yield from _dot("sdot", _SIGNED, "asimddp")
    yield from _dot("udot", _UNSIGNED, "asimddp")
    yield from _dot("usdot", _MIXED, "i8mm")
    for called, kinds in (("smmla", _SIGNED), ("ummla", _UNSIGNED), ("usmmla", _MIXED)):
        yield from _matrix(called, kinds)


def _dot(called: str, kinds: Kinds, feature: str) -> Described:
    first, second, result = (dtype(kind).name for kind in kinds)
    function = "usdotq_s32" if called == "usdot" else f"dotq_{kinds[2]}"
    return instruction(
        **_arm(called, "m4k4", kinds, feature),
        compute="Dst[i1] += Src1[r1] * Src2[i1, r1]",
        extents={"i1": 4, "r1": 4},
        source=f"{_MANUAL}{called.upper()} (by element)",
        description="4 lanes, each adding 4 products of bytes; the first source is one lane",
        shared="Src1",
        llvm=f"""
Dst[T.ramp(T.int32(0), 1, 4)] = T.call_llvm_pure_intrin(
    "{result}x4",
    "llvm.aarch64.neon.{called}",
    Dst.vload([0], "{result}x4"),
    T.reinterpret(
        "{first}x16",
        T.broadcast(T.reinterpret("int32", Src1.vload([0], "{first}x4")), 4),
    ),
    Src2.vload([0, 0], "{second}x16"),
)
""",
        c=f"""
int32_t group;
memcpy(&group, Src1, 4);
{first}x16_t every = vreinterpretq_{kinds[0]}_s32(vdupq_n_s32(group));
{result}x4_t sum = vld1q_{kinds[2]}(Dst);
sum = v{function}(sum, every, vld1q_{kinds[1]}(Src2));
vst1q_{kinds[2]}(Dst, sum);
""",
        headers="#include <arm_neon.h>\n#include <string.h>",
    )


def _matrix(called: str, kinds: Kinds) -> Described:
    first, second, result = (dtype(kind).name for kind in kinds)
    a, b, c = kinds
    function = "vusmmlaq_s32" if called == "usmmla" else f"vmmlaq_{c}"
    return instruction(
        **_arm(called, "m2n2k8", kinds, "i8mm"),
        compute="Dst[i1, i2] += Src1[i1, r1] * Src2[i2, r1]",
        extents={"i1": 2, "i2": 2, "r1": 8},
        source=f"{_MANUAL}{called.upper()} (vector)",
        description="a 2x2 tile, each element adding 8 products of bytes",
        llvm=f"""
Dst[0, T.ramp(T.int32(0), 1, 4)] = T.call_llvm_pure_intrin(
    "{result}x4",
    "llvm.aarch64.neon.{called}",
    Dst.vload([0, 0], "{result}x4"),
    Src1.vload([0, 0], "{first}x16"),
    Src2.vload([0, 0], "{second}x16"),
)
""",
        c=f"vst1q_{c}(Dst, {function}(vld1q_{c}(Dst), vld1q_{a}(Src1), vld1q_{b}(Src2)));",
        headers="#include <arm_neon.h>",
    )


def _arm(called: str, shape: str, kinds: Kinds, feature: str) -> dict[str, Any]:
    """Return the attributes that all of them share."""
    attribute = _ATTRIBUTES[feature]
    return dict(
        name=f"arm_{called}_{shape}_{'_'.join(dict.fromkeys(kinds[:2]))}_{kinds[2]}",
        kinds=kinds,
        family="arm",
        requires=(feature,),
        registers=32,
        timing=_TIMING,
        machine="aarch64",
        attributes=("+v8.2a", attribute),
        flags=(f"-march=armv8.2-a{attribute}",),
    )
