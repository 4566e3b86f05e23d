"""Arm Mali GPUs: the dot product of four bytes (AMOS, section 7.6)."""

from __future__ import annotations

from collections.abc import Iterator

from amos.intrinsics.arithmetic import Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation

_SOURCE = (
    "Khronos OpenCL extension cl_arm_integer_dot_product (cl_arm_integer_dot_product_int8, "
    "cl_arm_integer_dot_product_accumulate_int8), revision 2, section New Built-in Functions"
)
_TIMING = Timing(
    1, "Arm Mali-G76 product description: a dot product a lane and cycle", machine="mali_g76"
)
_HEADERS = """
#ifdef cl_arm_integer_dot_product_accumulate_int8
#pragma OPENCL EXTENSION cl_arm_integer_dot_product_accumulate_int8 : enable
#endif
#ifdef cl_arm_integer_dot_product_int8
#pragma OPENCL EXTENSION cl_arm_integer_dot_product_int8 : enable
#endif
"""
#: The last branch is for every other device.
_KERNEL = """
#if defined(cl_arm_integer_dot_product_accumulate_int8)
*Dst = arm_dot_acc(vload4(0, Src1), vload4(0, Src2), *Dst);
#elif defined(cl_arm_integer_dot_product_int8)
*Dst += arm_dot(vload4(0, Src1), vload4(0, Src2));
#else
const WIDE a = CONVERT(vload4(0, Src1)), b = CONVERT(vload4(0, Src2));
const WIDE p = a * b;
*Dst += p.x + p.y + p.z + p.w;
#endif
"""


def intrinsics() -> Iterator[Intrinsic | Implementation]:
    """``arm_dot`` with its accumulator, on signed and on unsigned bytes."""
    for kind, result, wide in (("s8", "s32", "int4"), ("u8", "u32", "uint4")):
        name = f"mali_arm_dot_m1k4_{kind}_{result}"
        yield Intrinsic.define(
            name,
            "Dst[] += Src1[r1] * Src2[r1]",
            {"r1": 4},
            {"Src1": kind, "Src2": kind, "Dst": result},
            [
                "reg.Src1[r1] = global.Src1[addr_a + r1]",
                "reg.Src2[r1] = global.Src2[addr_b + r1]",
                "global.Dst[addr_c] = reg.Dst[]",
            ],
            family="mali",
            source=_SOURCE,
            description="one work-item adds 4 products of bytes",
            requires=("cl_arm_integer_dot_product_int8",),
            timing=[_TIMING],
        )
        kernel = _KERNEL.replace("WIDE", wide).replace("CONVERT", f"convert_{wide}")
        yield Implementation(name, "opencl", kernel, headers=_HEADERS)
