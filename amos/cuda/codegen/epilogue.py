"""Epilogues of accumulators and prologues of sources, as CUDA.

The arithmetic is that of :mod:`amos.ir.epilogue`, bit for bit: intrinsics that round
once and that no compiler fuses, and integers that wrap around.
"""

from __future__ import annotations

from functools import partial

from amos.codegen.device import arithmetic
from amos.codegen.device.arithmetic import Dialect
from amos.codegen.device.text import WIDE_CPP
from amos.cuda.codegen.text import ELEMENT_THREADS, INLINE
from amos.cuda.plan import GpuPlan

#: Rarer ones, which are defined only where they are called.
_MORE = {
    "i_shift": "int(int a, int b) { return a >> b; }",
    "f_divide": "float(float a, float b) { return __fdiv_rn(a, b); }",
    "f_sqrt": "float(float a) { return __fsqrt_rn(a); }",
    "f_fma": "float(float a, float b, float c) { return __fmaf_rn(a, b, c); }",
    # The lowest bits of such a sum are the exponent of a float.
    "f_pow2": "float(float a) { return __uint_as_float(__float_as_uint("
    "__fadd_rn(a, 12583039.0f)) << 23); }",
    "f_exponent": "float(float a) { return float(int(__float_as_uint(a) >> 23) - 127); }",
    "f_choose": "float(float a, float b, float c, float d) { return a > b ? c : d; }",
}
CUDA = Dialect(
    inline=INLINE,
    wrapped="static_cast<int>(static_cast<unsigned>(a) {} static_cast<unsigned>(b))",
    rounded=("__fadd_rn(a, b)", "__fsub_rn(a, b)", "__fmul_rn(a, b)"),
    rare=_MORE,
    narrowed={"bfloat16": "__float2bfloat16_rn({})", "float16": "__float2half_rn({})"},
    widened={"bfloat16": "__bfloat162float({})", "float16": "__half2float({})"},
    integer="static_cast<int>({})",
    real="static_cast<float>({})",
    converted="__int2float_rn({})",
    nearest_integer="__float2int_rn({})",
    nearest="rintf({})",
    wide=WIDE_CPP,
    pointer="reinterpret_cast<{} *>({})",
    from_bits="__uint_as_float({})",
    thread=f"static_cast<int>(blockIdx.x) * {ELEMENT_THREADS} + threadIdx.x",
)


#: See the functions of the same names in :mod:`amos.codegen.device.arithmetic`.
write_result = partial(arithmetic.write_result, CUDA)
write_wide = partial(arithmetic.write_wide, CUDA)
write_source = partial(arithmetic.write_source, CUDA)


def epilogue_helpers(plan: GpuPlan) -> str:
    """Write the functions of an epilogue's and a prologue's arithmetic, if any."""
    return arithmetic.arithmetic_helpers(plan.mapping.operator, plan.accumulator, CUDA)
