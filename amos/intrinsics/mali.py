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
_FUNCTION = """
static RESULT NAME(KIND4 a, KIND4 b, RESULT c) {
#if defined(cl_arm_integer_dot_product_accumulate_int8)
  return arm_dot_acc(a, b, c);
#elif defined(cl_arm_integer_dot_product_int8)
  return c + arm_dot(a, b);
#else
  const RESULT4 p = convert_RESULT4(a) * convert_RESULT4(b);
  return c + p.x + p.y + p.z + p.w;
#endif
}
"""


def intrinsics() -> Iterator[Intrinsic | Implementation]:
    """Yield ``arm_dot`` with its accumulator, on signed and on unsigned bytes."""
    for kind, result, types in (("s8", "s32", ("char", "int")), ("u8", "u32", ("uchar", "uint"))):
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
        function = f"{name}_vectors"
        headers = _HEADERS + _FUNCTION.replace("RESULT", types[1]).replace("KIND", types[0])
        yield Implementation(
            name,
            "opencl",
            f"*Dst = {function}(vload4(0, Src1), vload4(0, Src2), *Dst);",
            headers=headers.replace("NAME", function),
            function=function,
        )
