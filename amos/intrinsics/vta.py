"""VTA, the versatile tensor accelerator: its GEMM instruction."""

from __future__ import annotations

from collections.abc import Iterator

from amos.intrinsics.arithmetic import Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.memory import Memory

_SOURCE = (
    "Moreau et al., A Hardware-Software Blueprint for Flexible Deep Learning Specialization, "
    "IEEE Micro 2019, GEMM core; buffer sizes: vta-hw/config/pynq_sample.json; distance of "
    "writes: VerifyDep in the runtime of TVM's VTA"
)
_SPEED = "Moreau et al., GEMM core: one micro-operation a cycle; VerifyDep for the latency"


def intrinsics() -> Iterator[Intrinsic]:
    """Yield one micro-operation: a row of 16 inputs times a 16x16 block of weights.

    The runtime refuses a micro-operation that writes the accumulator which one
    of the two before it has written, so three cycles lie between two writes. Addresses in DRAM
    count fragments, so that each begins at a multiple of its size.
    """
    yield Intrinsic.define(
        "vta_gemm_m1n16k16_s8_s32",
        "Dst[i1, i2] += Src1[i1, r1] * Src2[i2, r1]",
        {"i1": 1, "i2": 16, "r1": 16},
        {"Src1": "s8", "Src2": "s8", "Dst": "s32"},
        [
            Memory.parse("inp.Src1[] = global.Src1[addr_a]", capacity=32 << 10),
            Memory.parse("wgt.Src2[] = global.Src2[addr_b]", capacity=256 << 10),
            Memory.parse("global.Dst[addr_c] = acc.Dst[]", capacity=128 << 10, write_interval=3),
        ],
        family="vta",
        source=_SOURCE,
        description="a row of 16 accumulators, each adding 16 products of bytes",
        requires=("vta",),
        timing=[Timing(1, _SPEED, 3, "vta_pynq")],
    )
