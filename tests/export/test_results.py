"""Several results in C: under sanitizers, against NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import amos
from amos.export import export
from amos.machine.cpu import cpu
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from tests.support.programs import run_test_program

BYTES = amos.Operator.parse(
    "out[i,j] += a[i,k] * weight[j,k]",
    extents=dict(i=5, j=32, k=16),
    dtypes=dict(a="u8", weight="s8", out="s32"),
)
FLOATS = amos.Operator.parse(
    "out[i,j] += a[i,k] * weight[k,j]",
    extents=dict(i=5, j=19, k=6),
    dtypes=dict(a="f32", weight="f32", out="f32"),
)
RESULTS = [
    "exact[j,i] = f32(acc) * s[j]",
    "wide[i,j+1] = bf16(acc)",
    "pooled[j] += relu(acc) * 0.125",
    "top[i] max= acc",
    "least[] min= s8(acc * 0.01)",
    "count[i] += s8(acc)",
    "ended[j] += acc then u8(acc * 0.01 + s[j])",
    "last[i] max= acc then bf16(gelu(acc * 0.001))",
    "mean[] += acc * 0.5 then tanh(acc * 0.0001)",
]
#: Of gcc: what this CPU has, and products that are rounded.
NATIVE = ("-march=native", "-ffp-contract=off")


@pytest.mark.features
@pytest.mark.parametrize(
    ("op", "unit", "count"),
    [(BYTES, "vnni_dpbusd_m16k4_u8_s8_s32", 566), (FLOATS, "avx2_fmadd_m8_f32_f32", 345)],
)
@pytest.mark.long
def test_every_result_is_right(op: amos.Operator, unit: str, count: int, tmp_path: Path) -> None:
    for text in RESULTS:
        op = op.with_result(text)
    fast = set(amos.intrinsics.get(unit).requires) <= cpu().features
    code = None if fast else "generic"
    mapping = amos.enumerate_mappings(op.with_epilogue("u8(relu(acc * s[j]))"), unit)[0]
    schedule = ScheduleSpace(mapping).sample(np.random.default_rng(1))
    export(Candidate(mapping, schedule), "c", tmp_path, name="kernel", implementation=code)
    ran = run_test_program(tmp_path, NATIVE)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    assert f"{count} elements are right" in ran.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("top[i] max= acc", "top differs from NumPy's"),
        ("sums[j] += acc then acc * 0.1", "1 of 19 elements of sums are not what NumPy had"),
        ("more[i,j] = acc * 3", "more differs from NumPy's"),
    ],
)
def test_a_wrong_result_is_told(text: str, message: str, tmp_path: Path) -> None:
    mapping = amos.enumerate_mappings(FLOATS.with_result(text), "avx2_fmadd_m8_f32_f32")[0]
    export(mapping, "c", tmp_path, name="kernel", implementation="generic")
    assert run_test_program(tmp_path, NATIVE).returncode == 0
    source, name = tmp_path / "kernel_test.c", text.partition("[")[0]
    spoiled = source.read_text().replace("size_t wrong;", f"size_t wrong; of_{name}[0] += 1;")
    source.write_text(spoiled)
    ran = run_test_program(tmp_path, NATIVE)
    assert ran.returncode == 1
    assert message in ran.stdout


def test_some_of_many_rounded_elements_are_compared(tmp_path: Path) -> None:
    """Sums of rounded floats differ from order to order: they have no digest."""
    op = amos.Operator.parse("out[i,j] += a[i,k] * b[k,j]", extents=dict(i=97, j=53, k=3))
    op = op.with_prologue("a", "x[i,k] * 0.3")
    mapping = amos.enumerate_mappings(op, "avx2_fmadd_m8_f32_f32")[0]
    export(mapping, "c", tmp_path, name="kernel", implementation="generic")
    assert (
        "4096 of 5141 elements were compared and are right"
        in run_test_program(tmp_path, NATIVE).stdout
    )
    source = tmp_path / "kernel_test.c"
    spoiled = source.read_text().replace("size_t wrong;", "size_t wrong; of_out[5140] += 1e-3f;")
    source.write_text(spoiled)
    assert (
        "1 of 4096 elements of out are not what NumPy had"
        in run_test_program(tmp_path, NATIVE).stdout
    )
