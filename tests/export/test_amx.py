"""Kernels on tile registers in C: compiled everywhere, run where the CPU has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import amos
from amos.export import export
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from tests.support.programs import run_test_program


@pytest.mark.features
@pytest.mark.parametrize(
    ("unit", "dtype", "shape", "epilogue"),
    [
        ("amx_tdpbusd_m16n16k64_u8_s8_s32", "u8s8", (33, 49, 130), "s8(acc * 0.01)"),
        ("amx_tdpbusd_m7n16k64_u8_s8_s32", "u8s8", (14, 25, 64), ""),
        ("amx_tdpbf16ps_m16n16k32_bf16_f32", "bf16", (17, 16, 70), "relu(acc)"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_test_program_agrees(
    unit: str, dtype: str, shape: tuple[int, int, int], epilogue: str, seed: int, tmp_path: Path
) -> None:
    m, n, k = shape
    op = amos.operators.get("gemm", m=m, n=n, k=k, dtype=dtype)
    op = op.with_epilogue(epilogue) if epilogue else op
    mapping = amos.enumerate_mappings(op, unit)[0]
    schedule = ScheduleSpace(mapping).sample(np.random.default_rng(seed))
    export(Candidate(mapping, schedule), "c", tmp_path, name="kernel")
    text = (tmp_path / "kernel.c").read_text()
    assert "_tile_dp" in text and "tiles_are_granted()" in text
    (flags,) = [x for x in (tmp_path / "kernel.mk").read_text().splitlines() if "CFLAGS ?=" in x]
    options = [x for x in flags.split() if x.startswith(("-ma", "-Wno", "-ff"))]
    ran = run_test_program(tmp_path, options)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    assert f"{m * n} elements are right" in ran.stdout
