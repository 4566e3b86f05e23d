"""Arm A64 Advanced SIMD: dot products and matrix multiply-add of bytes."""

from __future__ import annotations

from collections.abc import Iterator

from amos.intrinsics.arithmetic import Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.memory import Memory

__all__ = ["intrinsics"]

_MANUAL = "Arm Architecture Reference Manual for A-profile architecture (DDI 0487), C7.2, "
#: One for all; a chain of accumulations is faster, since cores forward the accumulator.
_TIMING = (
    Timing(0.25, "scheduling model of LLVM 22 (llvm-mca), no forwarding", 3, "Arm Neoverse V1"),
    Timing(0.5, "scheduling model of LLVM 22 (llvm-mca), no forwarding", 3, "Arm Neoverse N2"),
)
_DOT = {
    "sdot": ("s8", "s8", "asimddp", "+dotprod"),
    "udot": ("u8", "u8", "asimddp", "+dotprod"),
    "usdot": ("u8", "s8", "i8mm", "+i8mm"),
}
_MATRIX = {"smmla": ("s8", "s8"), "ummla": ("u8", "u8"), "usmmla": ("u8", "s8")}
_TYPES = {"s8": "int8", "u8": "uint8", "s32": "int32", "u32": "uint32"}


def intrinsics() -> Iterator[Intrinsic | Implementation]:
    """``sdot``, ``udot``, ``usdot`` by element, and ``smmla``, ``ummla``, ``usmmla``."""
    for instruction, (first, second, feature, attribute) in _DOT.items():
        yield from _dot(instruction, first, second, feature, attribute)
    for instruction, (first, second) in _MATRIX.items():
        yield from _matrix(instruction, first, second)


def _name(instruction: str, shape: str, first: str, second: str, result: str) -> str:
    sources = first if first == second else f"{first}_{second}"
    return f"arm_{instruction}_{shape}_{sources}_{result}"


def _dot(
    instruction: str, first: str, second: str, feature: str, attribute: str
) -> Iterator[Intrinsic | Implementation]:
    result = "u32" if instruction == "udot" else "s32"
    name = _name(instruction, "m4k4", first, second, result)
    yield Intrinsic.define(
        name,
        "Dst[i1] += Src1[r1] * Src2[i1, r1]",
        {"i1": 4, "r1": 4},
        {"Src1": first, "Src2": second, "Dst": result},
        [
            Memory("Src1", "load", "memory", ("r1",), "addr_a", ("1",), broadcast=("i1",)),
            Memory("Src2", "load", "memory", ("i1", "r1"), "addr_b", ("4", "1")),
            Memory("Dst", "store", "memory", ("i1",), "addr_c", ("1",)),
        ],
        family="arm",
        source=f"{_MANUAL}{instruction.upper()} (by element)",
        description="4 lanes, each adding 4 products of bytes; the first source is one lane",
        requires=(feature,),
        registers=32,
        timing=_TIMING,
    )
    kinds = _TYPES[first], _TYPES[second], _TYPES[result]
    yield Implementation(
        name,
        "llvm",
        f"""
Dst[T.ramp(T.int32(0), 1, 4)] = T.call_llvm_pure_intrin(
    "{kinds[2]}x4",
    "llvm.aarch64.neon.{instruction}",
    Dst.vload([0], "{kinds[2]}x4"),
    T.reinterpret(
        "{kinds[0]}x16",
        T.broadcast(T.reinterpret("int32", Src1.vload([0], "{kinds[0]}x4")), 4),
    ),
    Src2.vload([0, 0], "{kinds[1]}x16"),
)
""",
        "aarch64",
        (feature,),
        ("+v8.2a", attribute),
    )
    yield Implementation(
        name,
        "c",
        f"""
int32_t group;
memcpy(&group, Src1, 4);
{kinds[0]}x16_t every = vreinterpretq_{first}_s32(vdupq_n_s32(group));
{kinds[2]}x4_t sum = vld1q_{result}(Dst);
sum = v{"usdotq_s32" if instruction == "usdot" else f"dotq_{result}"}(sum, every, vld1q_{second}(Src2));
vst1q_{result}(Dst, sum);
""",  # noqa: E501 - one C statement
        "aarch64",
        (feature,),
        (f"-march=armv8.2-a{attribute}",),
        "#include <arm_neon.h>\n#include <string.h>",
    )


def _matrix(instruction: str, first: str, second: str) -> Iterator[Intrinsic | Implementation]:
    result = "u32" if instruction == "ummla" else "s32"
    name = _name(instruction, "m2n2k8", first, second, result)
    yield Intrinsic.define(
        name,
        "Dst[i1, i2] += Src1[i1, r1] * Src2[i2, r1]",
        {"i1": 2, "i2": 2, "r1": 8},
        {"Src1": first, "Src2": second, "Dst": result},
        [
            Memory("Src1", "load", "memory", ("i1", "r1"), "addr_a", ("8", "1")),
            Memory("Src2", "load", "memory", ("i2", "r1"), "addr_b", ("8", "1")),
            Memory("Dst", "store", "memory", ("i1", "i2"), "addr_c", ("2", "1")),
        ],
        family="arm",
        source=f"{_MANUAL}{instruction.upper()} (vector)",
        description="a 2x2 tile, each element adding 8 products of bytes",
        requires=("i8mm",),
        registers=32,
        timing=_TIMING,
    )
    kinds = _TYPES[first], _TYPES[second], _TYPES[result]
    yield Implementation(
        name,
        "llvm",
        f"""
Dst[0, T.ramp(T.int32(0), 1, 4)] = T.call_llvm_pure_intrin(
    "{kinds[2]}x4",
    "llvm.aarch64.neon.{instruction}",
    Dst.vload([0, 0], "{kinds[2]}x4"),
    Src1.vload([0, 0], "{kinds[0]}x16"),
    Src2.vload([0, 0], "{kinds[1]}x16"),
)
""",
        "aarch64",
        ("i8mm",),
        ("+v8.2a", "+i8mm"),
    )
    function = "vusmmlaq_s32" if instruction == "usmmla" else f"vmmlaq_{result}"
    yield Implementation(
        name,
        "c",
        f"vst1q_{result}(Dst, {function}(vld1q_{result}(Dst), vld1q_{first}(Src1), "
        f"vld1q_{second}(Src2)));",
        "aarch64",
        ("i8mm",),
        ("-march=armv8.2-a+i8mm",),
        "#include <arm_neon.h>",
    )
