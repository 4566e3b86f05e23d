"""OpenCL C: multiply-add of vectors of floats, and dot products of bytes."""

from __future__ import annotations

from collections.abc import Iterator

from amos.intrinsics.arithmetic import Arithmetic, Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation

_SOURCE = "Khronos OpenCL C Specification 3.0, section Arithmetic Operators: {} of floats"
_DOT_SOURCE = (
    "Khronos OpenCL extension cl_khr_integer_dot_product, OpenCL Extension Specification 3.0, "
    "section New Built-in Functions: dot_acc_sat"
)
_MALI = "Arm Mali-{} product description"
#: Widths of vectors.
_LANES = (4, 8, 16)
#: ``fma()`` is a slow library call where a device lacks the instruction; the compiler may contract
#: a product that is added to the instruction where there is one.
_MAD = "static {v} {name}_vectors(float a, {v} b, {v} c) {{ return a * b + c; }}"
_DOT = """
#ifdef cl_khr_integer_dot_product
#pragma OPENCL EXTENSION cl_khr_integer_dot_product : enable
#endif
static int {name}_vectors({a}4 a, {b}4 b, int c) {{
#ifdef cl_khr_integer_dot_product
  return dot_acc_sat(a, b, c);
#else
  const int4 p = convert_int4(a) * convert_int4(b);
  return add_sat(p.x + p.y + p.z + p.w, c);
#endif
}}
"""


def intrinsics() -> Iterator[Intrinsic | Implementation]:
    """Yield ``opencl_mad`` in three widths, and ``dot_acc_sat`` on signed and mixed bytes."""
    for lanes in _LANES:
        yield from _multiply_add(lanes)
    for first, second in (("s8", "s8"), ("u8", "s8")):
        yield from _dot(first, second)


def _multiply_add(lanes: int) -> Iterator[Intrinsic | Implementation]:
    name, vector = f"opencl_mad_m{lanes}_f32", f"float{lanes}"
    yield Intrinsic.define(
        name,
        "Dst[i1] += Src1[] * Src2[i1]",
        {"i1": lanes},
        {"Src1": "f32", "Src2": "f32", "Dst": "f32"},
        [
            "reg.Src1[] = global.Src1[addr_a]",
            "reg.Src2[i1] = global.Src2[addr_b + i1]",
            "global.Dst[addr_c + i1] = reg.Dst[i1]",
        ],
        family="opencl",
        source=_SOURCE.format(vector),
        description=f"{lanes} lanes of a vector, each adding its element times one scalar",
        requires=("opencl",),
        # A pass takes four cycles more (estimate).
        timing=[
            Timing(lanes, f"{_MALI.format(name)}: an addition a lane and cycle", lanes + 4, machine)
            for name, machine in (("G72", "mali_g72"), ("G76", "mali_g76"))
        ],
    )
    headers = _MAD.format(v=vector, name=name)
    call = f"{name}_vectors(*Src1, vload{lanes}(0, Src2), vload{lanes}(0, Dst))"
    source = f"vstore{lanes}({call}, 0, Dst);"
    yield Implementation(name, "opencl", source, headers=headers, function=f"{name}_vectors")


def _dot(first: str, second: str) -> Iterator[Intrinsic | Implementation]:
    kinds = "_".join(dict.fromkeys((first, second)))
    name, types = f"khr_dot_acc_sat_m1k4_{kinds}_s32", {"s8": "char", "u8": "uchar"}
    yield Intrinsic.define(
        name,
        "Dst[] += Src1[r1] * Src2[r1]",
        {"r1": 4},
        {"Src1": first, "Src2": second, "Dst": "s32"},
        [
            "reg.Src1[r1] = global.Src1[addr_a + r1]",
            "reg.Src2[r1] = global.Src2[addr_b + r1]",
            "global.Dst[addr_c] = reg.Dst[]",
        ],
        family="khr",
        source=_DOT_SOURCE,
        description="one work-item adds 4 products of bytes, and clamps the sum",
        requires=("cl_khr_integer_dot_product",),
        arithmetic=Arithmetic(saturate=True),
        timing=[
            Timing(1, f"{_MALI.format('G76')}: a dot product a lane and cycle", machine="mali_g76")
        ],
    )
    headers = _DOT.format(name=name, a=types[first], b=types[second])
    source = f"*Dst = {name}_vectors(vload4(0, Src1), vload4(0, Src2), *Dst);"
    yield Implementation(name, "opencl", source, headers=headers, function=f"{name}_vectors")
