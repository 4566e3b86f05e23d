"""The instructions of an imaginary accelerator: one in Python, one in TOML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from amos.intrinsics import Implementation, Intrinsic, read

__all__ = ["provide"]


def provide() -> Iterator[Intrinsic | Implementation]:
    """What the entry point ``amos.intrinsics`` names: intrinsics and implementations."""
    yield Intrinsic.define(
        "acme_outer_m8n8_f32_f32",
        "Dst[i1, i2] += Src1[i1] * Src2[i2]",
        {"i1": 8, "i2": 8},
        {"Src1": "f32", "Src2": "f32", "Dst": "f32"},
        [
            "reg.Src1[i1] = memory.Src1[addr_a + i1]",
            "reg.Src2[i2] = memory.Src2[addr_b + i2]",
            "memory.Dst[addr_c + i1 * stride_c + i2] = acc.Dst[i1, i2]",
        ],
        family="acme",
        source="ACME Accelerator Manual, section 4.1, OUTER",
        requires=("acme",),
    )
    yield from read(Path(__file__).with_name("matmul.toml"))
