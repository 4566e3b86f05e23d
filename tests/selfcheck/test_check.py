"""The self-check finds what is wrong, survives what crashes, and says what it skips."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from amos import intrinsics
from amos.cuda import selfcheck as cuda
from amos.cuda.codegen import compilers
from amos.cuda.codegen.emulate import compiler
from amos.cuda.selfcheck import check_cuda, cuda_source
from amos.intrinsics import Implementation, Intrinsic, execute, registry
from amos.machine.cpu import cpu
from amos.selfcheck import Report, check
from amos.selfcheck.data import compare, draw_fragments
from amos.selfcheck.opencl import opencl_source
from tests.support.fake_cuda import fake_driver, fake_nvcc

pytestmark = pytest.mark.features

SDOT = "arm_sdot_m4k4_s8_s32"
GEMMINI = "gemmini_matmul_m16n16k16_s8_s32"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registry.names()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(registry, "_implemented", dict(registry._implemented))
    yield


def _new(name: str, kind: str, source: str) -> Intrinsic:
    unit = replace(intrinsics.get(SDOT), name=name, requires=())
    return intrinsics.register(unit, Implementation(name, kind, source))


def test_native_vnni_is_what_it_is_said_to_be() -> None:
    names = ["vnni_dpbusds_lhs_m16k4_u8_s8_s32", "avx512bf16_dpbf16ps_m8k2_bf16_f32"]
    units = [intrinsics.get(name) for name in names]
    if missing := {r for u in units for r in u.requires} - cpu().features:
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
    for report in check(units):
        assert report.ok and report.equal, str(report)
        assert "llvm native: x86_64" in report.ran_on


def test_shared_scalars_in_half_precision_are_converted() -> None:
    unit = intrinsics.get("avx2_fmadd_m8_f16_f32")
    if missing := {*unit.requires} - cpu().features:
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
    (report,) = check([unit])
    assert report.ok, str(report)


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """One check of what is wrong in several ways, and of what is not."""
    narrow = Intrinsic.define(
        "acme_narrow_m4k8_s8_s16",
        "Dst[i1] += Src1[r1] * Src2[i1, r1]",
        {"i1": 4, "r1": 8},
        {"Src1": "s8", "Src2": "s8", "Dst": "s16"},
        [
            "reg.Src1[r1] = memory.Src1[addr_a + r1]",
            "reg.Src2[i1, r1] = memory.Src2[addr_b + i1 * 8 + r1]",
            "memory.Dst[addr_c + i1] = reg.Dst[i1]",
        ],
        family="acme",
        source="nowhere",
        arithmetic=intrinsics.Arithmetic(saturate=True),
    )
    registry.names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registered", dict(registry._registered))
        patch.setattr(registry, "_implemented", dict(registry._implemented))
        units = [
            _new("acme_wrong_m4k4_s8_s32", "llvm", "Dst[0] = Dst[0] + T.int32(1)"),
            _new("acme_bad_m4k4_s8_s32", "c", "Dst[0] = no_such_thing;"),
            intrinsics.register(narrow),
            _new("acme_crash_m4k4_s8_s32", "llvm", 'T.evaluate(T.call_extern("int32", "abort"))'),
            intrinsics.get(GEMMINI),
        ]
        return {report.name: report for report in check(units)}


def test_a_wrong_implementation_is_found(reports: dict[str, Report]) -> None:
    report = reports["acme_wrong_m4k4_s8_s32"]
    assert report.equal is False and not report.ok
    assert "the meaning gives" in str(report) and "NOT EQUAL" in str(report)


def test_a_narrow_saturating_accumulator_is_described(reports: dict[str, Report]) -> None:
    """No operator that wraps around fits it, yet it is itself."""
    report = reports["acme_narrow_m4k8_s8_s16"]
    assert report.ok and report.equal and report.enumerates == 1, str(report)


def test_a_crash_is_a_reported_failure(reports: dict[str, Report]) -> None:
    crashed, after = reports["acme_crash_m4k4_s8_s32"], reports[GEMMINI]
    assert crashed.equal is False
    assert any("SIGABRT" in problem for problem in crashed.problems)
    assert after.ok and after.equal


def test_what_does_not_compile_is_a_failure_and_no_skip(reports: dict[str, Report]) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    report = reports["acme_bad_m4k4_s8_s32"]
    assert not report.ok
    assert "c: x86_64: does not compile" in str(report) or "no_such_thing" in str(report)


def test_a_description_alone_is_checked_through_generated_loops(reports: dict[str, Report]) -> None:
    report = reports[GEMMINI]
    assert report.ok and report.equal and report.enumerates == 1
    assert [entry.partition(": ")[0] for entry in report.ran_on] == ["llvm generic"]


def test_what_is_missing_is_skipped_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("amos.codegen.c.compiler.find_spec", lambda name: None)
    monkeypatch.setattr(cuda, "compilers", lambda: ())
    names = [SDOT, "wmma_m8n8k32_s4_s32", "vnni_dpbusd_m16k4_u8_s8_s32"]
    arm, wmma, vnni = (r.skipped for r in check([intrinsics.get(name) for name in names]))
    assert "c for aarch64: aarch64-linux-gnu-gcc is not installed" in arm
    assert "llvm native: aarch64 run: aarch64-linux-gnu-gcc is not installed" in arm
    assert any(why.startswith("cuda: nvcc is not installed, nor is NVRTC") for why in wmma)
    assert any("int4, which no CPU kernel can hold" in why for why in wmma)
    assert any(why.startswith("c: no compiler: apt install gcc") for why in vnni)


def test_arm_runs_under_qemu() -> None:
    for command in ("aarch64-linux-gnu-gcc", "qemu-aarch64-static"):
        if shutil.which(command) is None:
            pytest.skip(f"{command} is not installed")
    for report in check([intrinsics.get(n) for n in (SDOT, "arm_usmmla_m2n2k8_u8_s8_s32")]):
        assert report.ok and report.equal
        assert {"c: aarch64", "llvm native: aarch64"} <= set(report.ran_on)


@pytest.mark.long
def test_every_kernel_of_nvidia_compiles() -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    units = [intrinsics.get(n) for n in intrinsics.names() if n.startswith(("wmma", "mma"))]
    for unit, report in zip(
        units, check_cuda(units, np.random.default_rng(0)).values(), strict=True
    ):
        listed = intrinsics.implementations(unit.name)["cuda"].architectures
        assert not report.problems
        left_out = [why for why in report.skipped if "is unknown to nvcc" in why]
        assert len(report.compiled_for) + len(left_out) == len(listed)


def test_a_kernel_that_does_not_compile_is_told_from_the_others() -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    wrong = replace(intrinsics.get(SDOT), name="acme_cuda_m4k4_s8_s32", requires=())
    intrinsics.register(
        wrong, Implementation(wrong.name, "cuda", "wrong();", architectures=("sm_90",))
    )
    good = intrinsics.get("mma_sync_m16n8k32_e4m3_f32")
    checks = check_cuda([wrong, good], np.random.default_rng(0))
    assert re.match(r"cuda: sm_90: nvcc \S+ does not compile", checks[wrong.name].problems[0])
    assert not checks[good.name].problems


def test_nvrtc_compiles_what_nvcc_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    library = [c for c in compilers() if c.kind == "nvrtc"]
    if not library:
        pytest.skip("NVRTC is not installed (pip: nvidia-cuda-nvrtc and its headers)")
    monkeypatch.setattr(cuda, "compilers", lambda: tuple(library))
    unit = intrinsics.get("mma_sync_m16n8k16_f16_f32")
    wrong = replace(intrinsics.get(SDOT), name="acme_cuda_m4k4_s8_s32", requires=())
    intrinsics.register(
        wrong, Implementation(wrong.name, "cuda", "wrong();", architectures=("sm_90",))
    )
    checks = check_cuda([unit, wrong], np.random.default_rng(0))
    assert f"cuda by {library[0].name}: sm_90" in checks[unit.name].compiled_for
    assert not checks[unit.name].problems
    assert f"sm_90: {library[0].name} does not compile" in checks[wrong.name].problems[0]


_DOT = """
for (int i = threadIdx.x; i < 4; i += 32)
  for (int k = 0; k < 4; ++k)
    Dst[i] += (signed char)Src1[k] * (signed char)Src2[i * 4 + k];
"""


@pytest.mark.long
def test_kernels_run_through_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fake GPU: a right kernel, one that gives something else, one that faults, none."""
    if compiler() is None:
        pytest.skip("no C++ compiler for the fakes")
    monkeypatch.setattr(cuda, "_DRIVER", fake_driver(tmp_path))
    monkeypatch.setenv("PATH", f"{fake_nvcc(tmp_path)}{os.pathsep}{os.environ['PATH']}")
    compilers.cache_clear()
    messages = {}
    for name, body in (("right", _DOT), ("wrong", _DOT.replace("k = 0", "k = 1"))):
        unit = replace(intrinsics.get(SDOT), name=f"acme_{name}_m4k4_s8_s32", requires=())
        source = Implementation(unit.name, "cuda", body, architectures=("sm_80",))
        intrinsics.register(unit, source)
        messages[name] = check_cuda([unit], np.random.default_rng(0))[unit.name]
        assert messages[name].ran_on == ["cuda: GPU sm_80"]
    assert messages["right"].equal and not messages["right"].problems
    assert "the meaning gives" in messages["wrong"].problems[0]
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuLaunchKernel")
    (fault,) = check_cuda([unit], np.random.default_rng(0))[unit.name].problems
    assert fault.endswith("cuLaunchKernel: an illegal memory access was encountered")
    monkeypatch.setattr(cuda, "_DRIVER", "libno.so.1")
    (none,) = check_cuda([unit], np.random.default_rng(0))[unit.name].skipped
    assert none == "cuda run: no GPU: there is no NVIDIA driver here (libno.so.1)"
    compilers.cache_clear()


def test_opencl_runs_on_every_device_that_compiles() -> None:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed (extra 'opencl')")
    (report,) = check([intrinsics.get("mali_arm_dot_m1k4_s8_s32")])
    ran = [entry for entry in report.ran_on if entry.startswith("opencl: ")]
    if not ran:
        pytest.skip("; ".join(why for why in report.skipped if why.startswith("opencl: ")))
    assert report.ok and report.equal


def test_programs_are_generated_for_what_is_not_here() -> None:
    wmma = intrinsics.get("wmma_m16n16k16_f16_f32")
    text = cuda_source([(wmma, intrinsics.implementations(wmma.name)["cuda"])])
    assert "Dst = (float *)((const unsigned char *)Dst + (size_t)blockIdx.x * 1024);" in text
    mali = intrinsics.get("mali_arm_dot_m1k4_s8_s32")
    text = opencl_source(mali, intrinsics.implementations(mali.name)["opencl"])
    assert "__global const char *Src1" in text and "arm_dot_acc" in text


@pytest.mark.parametrize("name", intrinsics.names())
def test_data_reaches_the_edges(name: str) -> None:
    unit = intrinsics.get(name)
    inputs = draw_fragments(unit, np.random.default_rng(0))
    calls = len(inputs["Dst"])
    assert all(array.shape[0] == calls for array in inputs.values())
    result = execute(unit, inputs)
    assert compare(unit, inputs, result, exact=True) == ""
    if result.dtype.kind in "iu":
        wrong = result.copy()
        wrong.reshape(-1)[-1] ^= 1
        assert "1 of" in compare(unit, inputs, wrong, exact=True)
    if unit.arithmetic.saturate:
        info = np.iinfo(result.dtype)
        assert (result == info.max).any() and (result == info.min).any()
    if unit.arithmetic.flush:
        assert ((inputs["Dst"] != 0) & (np.abs(inputs["Dst"]) < 1e-38)).any()


@pytest.mark.slow
def test_the_whole_catalogue_is_right() -> None:
    reports = check([intrinsics.get(name) for name in intrinsics.names()])
    assert [str(report) for report in reports if not report.ok] == []
