"""The contract of each target, and of one that is a folder and a line of registration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import amos
from amos.errors import BuildError, UnknownNameError
from amos.export import export, formats
from amos.ir import Operator
from amos.plan.target import TARGETS, target_of
from amos.testing.targets import TargetContract
from tests.support.toy.target import MACHINE, UNIT, ToySchedule

GEMM = "out[i,j] += a[i,k] * b[k,j]"
#: A folder, and this line.
REGISTRATION = {"toy": "tests.support.toy.target.Toy"}


class TestCpu(TargetContract):
    target, machine = "cpu", "xeon_6240"
    operator = "out[i,j] += a[i,k] * b[j,k]", dict(i=9, j=40, k=30)
    intrinsic = "vnni_dpbusd_m16k4_u8_s8_s32"


class TestCuda(TargetContract):
    target, machine = "cuda", "a100"
    operator = GEMM, dict(i=70, j=96, k=50)
    intrinsic = "wmma_m16n16k16_f16_f32"


class TestVta(TargetContract):
    target, machine = "stream", "vta_pynq"
    operator = GEMM, dict(i=9, j=40, k=70)
    intrinsic = "vta_gemm_m1n16k16_s8_s32"


class TestGemmini(TargetContract):
    target, machine = "stream", "gemmini"
    operator = GEMM, dict(i=33, j=40, k=70)
    intrinsic = "gemmini_matmul_m16n16k16_s8_s32"


class TestOpenCl(TargetContract):
    target, machine = "opencl", "pocl"
    operator = GEMM, dict(i=33, j=40, k=70)
    intrinsic = "opencl_mad_m8_f32"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, place in REGISTRATION.items():
        monkeypatch.setitem(TARGETS, name, place)
    yield


@pytest.mark.usefixtures("toy")
class TestToy(TargetContract):
    target, machine = "toy", MACHINE
    operator = GEMM, dict(i=9, j=40, k=7)
    intrinsic = UNIT


def _operator() -> Operator:
    return Operator.parse(GEMM, extents=dict(i=9, j=40, k=7))


@pytest.mark.usefixtures("toy")
def test_a_registered_target_is_searched_measured_recorded_and_exported(tmp_path: Path) -> None:
    records = tmp_path / "toy.db"
    result = amos.explore(
        _operator(), UNIT, machine=MACHINE, trials=6, records=records, progress=False
    )
    schedule = result.best.schedule
    assert isinstance(schedule, ToySchedule)
    assert result.best.measurement is not None
    assert result.best.measurement.ok
    assert schedule.lines > 1, "the model prefers what comes in more lines"
    with amos.Records(records) as store:
        (best,) = (x for x in store.all() if x.schedule == schedule.as_dict())
        assert best.rebuild().schedule == schedule
    assert "toy" in formats()
    (written,) = export(result.best, "toy", tmp_path / "out")
    assert written.read_text().endswith(f"\n{schedule.lines}")
    scaled = _operator().with_epilogue("acc * s[i]")
    with pytest.raises(BuildError, match="toy: nothing computes"):
        amos.explore(scaled, UNIT, machine=MACHINE, trials=1, progress=False)


def test_what_is_not_registered_is_a_machine_as_any() -> None:
    assert target_of(MACHINE).name == "cpu"
    with pytest.raises(UnknownNameError, match="toy"):
        export(amos.enumerate_mappings(_operator(), amos.intrinsics.get(UNIT))[0], "toy")
