"""AVX-512 BF16: multiply-add of pairs of bfloat16 into float32 lanes."""

from __future__ import annotations

from amos.intrinsics.arithmetic import MEASURED, Arithmetic, Timing
from amos.intrinsics.vectors import COPIES, INTEL, Described, instruction


def intrinsics() -> Described:
    """Yield ``vdpbf16ps`` on 512 and on 256 bits.

    The manual adds the second product of a pair first, each with one rounding to
    nearest even whatever MXCSR says; subnormals count as zero on the way in and
    on the way out.
    """
    for lanes, requires in ((16, ("avx512_bf16",)), (8, ("avx512_bf16", "avx512vl"))):
        yield from instruction(
            f"avx512bf16_dpbf16ps_m{lanes}k2_bf16_f32",
            "Dst[i1] += Src1[r1] * Src2[i1, r1]",
            {"i1": lanes, "r1": 2},
            ("bf16", "bf16", "f32"),
            shared="Src1",
            embedded="Src1",
            family="avx512bf16",
            source=f"{INTEL}2C, VDPBF16PS: Dot Product of BF16 Pairs Accumulated Into Packed "
            "Single Precision",
            description=f"{lanes} lanes, each adding 2 products of bfloat16 numbers",
            requires=requires,
            registers=32,
            arithmetic=Arithmetic(rounding="fused-descending", flush=True),
            timing=[Timing(0.5, MEASURED, 6, "AMD Zen 5")],
            llvm=_llvm(lanes),
            c=_c(lanes),
            flags=("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512bf16"),
            headers=COPIES,
        )


def _llvm(lanes: int) -> str:
    """Write an LLVM function that is inlined where it is called.

    TVM passes no vectors of bfloat16 to LLVM, so the function loads the operands
    itself. Kernels hold bfloat16 as its 16 bits.
    """
    bits, pairs = 32 * lanes, 2 * lanes
    function = f"amos_dpbf16ps_{bits}"
    text = f"""
declare <{lanes} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}\
(<{lanes} x float>, <{pairs} x bfloat>, <{pairs} x bfloat>)
define linkonce_odr i32 @{function}(ptr %dst, ptr %a, ptr %b) alwaysinline \
"target-features"="+avx512f,+avx512vl,+avx512bw,+avx512bf16" {{
  %sum = load <{lanes} x float>, ptr %dst, align 4
  %pair = load i32, ptr %a, align 2
  %lanes = load <{pairs} x bfloat>, ptr %b, align 2
  %one = insertelement <{lanes} x i32> poison, i32 %pair, i64 0
  %all = shufflevector <{lanes} x i32> %one, <{lanes} x i32> poison, <{lanes} x i32> zeroinitializer
  %every = bitcast <{lanes} x i32> %all to <{pairs} x bfloat>
  %new = call <{lanes} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}\
(<{lanes} x float> %sum, <{pairs} x bfloat> %every, <{pairs} x bfloat> %lanes)
  store <{lanes} x float> %new, ptr %dst, align 4
  ret i32 0
}}
"""
    return f"""
T.attr(T.int32(0), "pragma_import_llvm", {text!r})
T.evaluate(
    T.call_extern(
        "int32",
        "{function}",
        T.address_of(Dst[0]),
        T.address_of(Src1[0]),
        T.address_of(Src2[0, 0]),
    )
)
"""


def _c(lanes: int) -> str:
    bits = 32 * lanes
    mm = f"_mm{bits}"
    return f"""
int pair;
__m{bits}i lanes;
memcpy(&pair, Src1, 4);
memcpy(&lanes, Src2, sizeof lanes);
__m{bits}i every = {mm}_set1_epi32(pair);
{mm}_storeu_ps(Dst, {mm}_dpbf16_ps({mm}_loadu_ps(Dst), (__m{bits}bh)every, (__m{bits}bh)lanes));
"""
