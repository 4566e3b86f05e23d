"""Systolic arrays: Google's TPU and Berkeley's Gemmini."""

from __future__ import annotations

from collections.abc import Iterator

from amos.intrinsics.arithmetic import Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.memory import Memory


def intrinsics() -> Iterator[Intrinsic]:
    """Yield a 128x128 array of bfloat16 and a 16x16 array of bytes; description only."""
    yield _array(
        "tpu_mxu_m128n128k128_bf16_f32",
        "tpu",
        128,
        ("bf16", "bf16", "f32"),
        ({"capacity": 16 << 20}, {}),
        "tpu_v2",
        "Norrie et al., The Design Process for Google's Training Chips: TPUv2 and TPUv3, IEEE "
        "Micro 2021, Matrix computation, 16 MiB of vector memory; 128 rows of inputs taken as one "
        "call",
    )
    yield _array(
        "gemmini_matmul_m16n16k16_s8_s32",
        "gemmini",
        16,
        ("s8", "s8", "s32"),
        ({"capacity": 256 << 10, "banks": 4}, {"capacity": 64 << 10, "banks": 2}),
        "gemmini",
        "Genc et al., Gemmini: Enabling Systematic Deep-Learning Architecture Evaluation via "
        "Full-Stack Integration, DAC 2021, section III, default configuration; "
        "4 and 2 banks: GemminiConfigs.defaultConfig of ucb-bar/gemmini",
    )


def _array(
    name: str,
    family: str,
    size: int,
    kinds: tuple[str, str, str],
    buffers: tuple[dict[str, int], dict[str, int]],
    chip: str,
    source: str,
) -> Intrinsic:
    a, b, c = (
        "spad.Src1[i1, r1] = global.Src1[addr_a + i1 * stride_a + r1]",
        "spad.Src2[r1, i2] = global.Src2[addr_b + r1 * stride_b + i2]",
        "global.Dst[addr_c + i1 * stride_c + i2] = acc.Dst[i1, i2]",
    )
    spad, acc = buffers
    return Intrinsic.define(
        name,
        "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]",
        {"i1": size, "i2": size, "r1": size},
        dict(zip(("Src1", "Src2", "Dst"), kinds, strict=True)),
        [Memory.parse(a, **spad), Memory.parse(b), Memory.parse(c, **acc)],
        family=family,
        source=source,
        description=f"a {size}x{size} systolic array that has taken {size} rows of inputs",
        requires=(chip,),
        timing=[Timing(size, "one row of inputs a cycle; " + source, machine=chip)],
    )
