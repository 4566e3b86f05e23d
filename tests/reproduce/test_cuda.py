"""Table 6 as CUDA kernels: a sample of the rows; all of them are slow."""

from __future__ import annotations

import pytest

from amos.cuda.codegen import compilers
from amos.cuda.codegen.emulate import compiler
from amos.errors import BuildError, ToolchainError, UnknownNameError
from amos.reproduce.cuda import ARCHITECTURES, SPILL_LIMIT, cuda, cuda_jobs


def needs(*architectures: str) -> None:
    targets = {a for compiler in compilers() for a in compiler.architectures}
    if missing := set(architectures) - targets:
        pytest.skip(f"no CUDA compiler for {', '.join(sorted(missing))} here")
    if compiler() is None:
        pytest.skip("no C++ compiler to run kernels on the host")


def test_jobs() -> None:
    """Fifteen operators on three architectures; Volta has no integer instruction."""
    jobs = cuda_jobs()
    assert len(jobs) == 15 * (3 + 2)
    assert ("gemm", "s8", "sm_70") not in jobs
    assert cuda_jobs(["C2D"], ["f16"], ["sm_90"]) == [("conv2d", "f16", "sm_90")]
    with pytest.raises(UnknownNameError, match="architecture 'sm_86'"):
        cuda_jobs(["gemm"], ["f16"], ["sm_86"])
    with pytest.raises(BuildError, match="no row"):
        cuda(cuda_jobs(["gemm"], ["s8"], ["sm_70"]))


@pytest.mark.parametrize(("name", "kind"), [("gemv", "s8"), ("mean", "f16")])
def test_sample(name: str, kind: str) -> None:
    needs("sm_80")
    (row,) = cuda([(name, kind, "sm_80")])
    assert row.problem == ""
    assert row.compiled and row.simulated_equal
    assert row.tensor_core_instructions > 0
    assert row.agree
    assert 0 < row.registers <= row.space_registers
    assert row.blocks >= row.space_blocks >= 1


@pytest.mark.slow
def test_every_row() -> None:
    needs(*ARCHITECTURES)
    rows = cuda()
    assert [row for row in rows if row.problem] == []
    assert all(row.compiled and row.simulated_equal for row in rows)
    assert all(row.tensor_core_instructions > 0 for row in rows)
    assert [row for row in rows if not row.agree] == []
    assert [row for row in rows if row.spills > SPILL_LIMIT] == []
    # Not so loose that it says nothing: half of the rows use seven tenths of their count.
    used = sorted(row.registers / row.counted_registers for row in rows)
    assert used[len(used) // 2] > 0.7


def test_a_missing_compiler_is_said_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amos.cuda.codegen.toolchain.compilers", lambda: ())
    monkeypatch.setattr("amos.reproduce.cuda.cuda_row", lambda job: pytest.fail("worked"))
    with pytest.raises(ToolchainError, match="no compiler for sm_80"):
        cuda([("gemm", "f16", "sm_80")])
