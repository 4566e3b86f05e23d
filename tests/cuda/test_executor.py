"""Measuring on a GPU, with a driver and a compiler that run kernels on the host.

The driver is a shared library with the entry points of NVIDIA's, the compiler a command
in the place of nvcc: see :mod:`tests.support.fake_cuda`. Everything else is the product.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import amos
from amos import machines, operators
from amos.cli import main
from amos.cuda.codegen.emulate import compiler
from amos.cuda.codegen.toolchain import compilers
from amos.cuda.executor import Gpu, GpuExecutor, find_gpu
from amos.cuda.plan import STATIC_LIMIT, GpuPlan
from amos.errors import MeasureError, ToolchainError
from amos.measure.task import Task
from amos.plan import Candidate
from amos.plan.target import ExecutorRequest, target_of
from amos.records import Measurement
from amos.schedule import ScheduleSpace
from tests.support.fake_cuda import fake_driver, fake_nvcc

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the fakes")
UNIT = "wmma_m16n16k16_f16_f32"


@dataclass(frozen=True)
class Fakes:
    """A driver, a folder with a compiler, and the files by which tests talk to the driver."""

    library: str
    tools: Path
    log: Path
    fails: Path

    def calls(self, name: str) -> list[list[str]]:
        """Arguments of each call of a function of the driver."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [line[1:] for line in lines if line[0] == name]


@pytest.fixture(scope="module")
def _fakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fakes]:
    """The fake compiler is first on the path, and the driver keeps a log."""
    folder = tmp_path_factory.mktemp("fakes")
    fakes = Fakes(fake_driver(folder), fake_nvcc(folder), folder / "log", folder / "fails")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{fakes.tools}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("FAKE_CUDA_LOG", str(fakes.log))
        patch.setenv("FAKE_CUDA_FAIL", f"@{fakes.fails}")
        compilers.cache_clear()
        yield fakes
    compilers.cache_clear()


@pytest.fixture
def fakes(_fakes: Fakes) -> Fakes:
    """The same with an empty log, and no function that fails."""
    _fakes.log.write_text("")
    _fakes.fails.write_text("")
    return _fakes


@pytest.fixture(scope="module")
def executor(_fakes: Fakes) -> Iterator[GpuExecutor]:
    """One for all tests: its workers may be lost, and it stays."""
    with GpuExecutor(machines.get("a100"), find_gpu(_fakes.library), 60.0) as executor:
        yield executor


@cache
def candidate(large: bool = False, unit: str = UNIT, dtype: str = "f16") -> Candidate:
    """A kernel of several blocks; a large one needs more than 48 KiB of shared memory."""
    op = operators.get("gemm", dtype=dtype, m=40, n=24, k=2048 if large else 48)
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get(unit))[0]
    space = ScheduleSpace(mapping, machines.get("a100"))
    for schedule in space.draw(400, np.random.default_rng(0)):
        program = GpuPlan.of(mapping, schedule, "sm_80")
        if (program.shared_bytes > STATIC_LIMIT) == large == program.zeroed:
            return Candidate(mapping, schedule)
    raise AssertionError("no such schedule")


def measured(executor: GpuExecutor, candidate: Candidate, flush: int = 0) -> Measurement:
    ((number, measurement),) = executor.measure(iter([(7, Task(candidate, repeat=3, flush=flush))]))
    assert number == 7
    return measurement


def test_what_gpu_is_there(fakes: Fakes) -> None:
    gpu = find_gpu(fakes.library)
    assert gpu == Gpu("Fake GPU", 80, 1 << 20, "12.9", fakes.library)
    assert str(gpu) == "Fake GPU, sm_80"


def test_measured_and_right(fakes: Fakes, executor: GpuExecutor) -> None:
    sample = candidate()
    result = measured(executor, sample)
    assert result.ok, result.message
    assert result.verified_elements == 40 * 24 and result.max_difference == 0
    assert len(result.times) >= 3 and min(result.times) > 0
    program = GpuPlan.of(sample.mapping, sample.schedule, "sm_80")
    launches = fakes.calls("cuLaunchKernel")
    grid = [str(n) for n in (*program.grid[:2], program.threads, 0)]
    assert launches and all(launch == grid for launch in launches)
    assert not fakes.calls("cuFuncSetAttribute")
    # Inputs as bit patterns: half precision; the output is read back once.
    assert ["3840"] in fakes.calls("cuMemcpyHtoD") and ["2304"] in fakes.calls("cuMemcpyHtoD")
    assert fakes.calls("cuMemcpyDtoH") == [["3840"]]
    # Many launches are one graph, and the driver gets the module back.
    assert fakes.calls("cuGraphLaunch") and len(fakes.calls("cuModuleUnload")) == 1


def test_an_epilogue_is_measured(fakes: Fakes, executor: GpuExecutor) -> None:
    """Bias and scale are uploaded like the sources; a byte an element comes back."""
    op = operators.get("gemm", dtype="s8", m=40, n=24, k=48)
    op = op.with_epilogue("u8(relu((acc + bias[n]) * scale[n]))", {"bias": "int32"})
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get("mma_sync_m16n8k32_s8_s32"))[0]
    schedule = ScheduleSpace(mapping, machines.get("a100")).smallest()
    result = measured(executor, Candidate(mapping, schedule))
    assert result.ok, result.message
    assert result.max_difference == 0 and result.verified_elements == 960
    assert fakes.calls("cuMemcpyDtoH") == [["960"]]


def test_further_results_are_measured(fakes: Fakes, executor: GpuExecutor) -> None:
    """Each comes back; what starts a reduction is launched before."""
    op = operators.get("gemm", dtype="s8", m=40, n=24, k=48)
    op = op.with_result("top[m] max= acc").with_result("f[n,m] = f32(acc)")
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get("mma_sync_m16n8k32_s8_s32"))[0]
    schedule = ScheduleSpace(mapping, machines.get("a100")).smallest()
    result = measured(executor, Candidate(mapping, schedule))
    assert result.ok, result.message
    assert result.max_difference == 0 and result.verified_elements == 960 * 2 + 40
    assert fakes.calls("cuMemcpyDtoH") == [["3840"], ["160"], ["3840"]]


def test_more_than_48_kib_is_asked_for(fakes: Fakes, executor: GpuExecutor) -> None:
    """Dynamic shared memory, and an output that is added to."""
    sample = candidate(large=True)
    program = GpuPlan.of(sample.mapping, sample.schedule, "sm_80")
    result = measured(executor, sample)
    assert result.ok, result.message
    assert fakes.calls("cuFuncSetAttribute") == [[str(program.shared_bytes)]]
    assert fakes.calls("cuLaunchKernel")[0][3] == str(program.shared_bytes)
    # A split reduction adds to the output, which is cleared before each launch.
    cleared = [size for (size,) in fakes.calls("cuMemsetD8") if size == "3840"]
    assert len(cleared) >= len(fakes.calls("cuLaunchKernel"))


def test_cold_caches(fakes: Fakes, executor: GpuExecutor) -> None:
    result = measured(executor, candidate(), flush=1)
    assert result.ok
    # Twice the cache of the GPU is overwritten before each timing of one launch.
    assert len([1 for (size,) in fakes.calls("cuMemsetD8") if size == str(2 << 20)]) >= 3


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        ("cuModuleLoadData", "build", "illegal memory access"),
        ("cuLaunchKernel", "error", "cuLaunchKernel: an illegal memory access"),
        ("cuCtxSynchronize", "error", "cuCtxSynchronize: an illegal memory access"),
    ],
)
def test_errors_of_the_driver(
    fakes: Fakes, executor: GpuExecutor, function: str, kind: str, words: str
) -> None:
    fakes.fails.write_text(function)
    result = measured(executor, candidate())
    assert result.failure == kind and words in result.message
    assert "\n" not in result.message


@pytest.mark.long
def test_a_kernel_that_hangs(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_HANG", "cuLaunchKernel")
    with GpuExecutor(machines.get("a100"), find_gpu(fakes.library), timeout=2.0) as executor:
        assert measured(executor, candidate()).failure == "timeout"


def test_a_wrong_kernel_is_found_out(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler takes something out of the kernel, as a wrong generator would."""
    folder = tmp_path / "wrong"
    folder.mkdir()
    script = fake_nvcc(folder) / "nvcc"
    text = script.read_text().replace(
        "exec",
        'for last; do :; done\n[ -f "$last" ] && sed -i "s/step < [0-9]*;/step < 0;/" '
        '"$last"\nexec',
    )
    script.write_text(text)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    with GpuExecutor(machines.get("a100"), find_gpu(fakes.library)) as executor:
        assert measured(executor, candidate()).failure == "wrong"


def test_said_before_any_work(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = find_gpu(fakes.library)
    with pytest.raises(MeasureError, match=r"'h200' is sm_90, and the GPU here \(Fake GPU, sm_80"):
        GpuExecutor(machines.get("h200"), gpu)
    with pytest.raises(MeasureError, match="no NVIDIA driver here"):
        GpuExecutor.open(ExecutorRequest(machines.get("a100"), "gpu:libnothing.so.7"))
    with pytest.raises(MeasureError, match="'xeon_4110' is a description; expected 'model'$"):
        xeon = machines.get("xeon_4110")
        target_of(xeon).open_executor(ExecutorRequest(xeon, "gpu"))
    fakes.fails.write_text("cuInit")
    with pytest.raises(MeasureError, match="no GPU: cuInit: an illegal"):
        GpuExecutor.open(ExecutorRequest(machines.get("a100"), f"gpu:{fakes.library}"))
    monkeypatch.setattr("amos.cuda.codegen.toolchain.compilers", lambda: ())
    with pytest.raises(ToolchainError, match="neither nvcc nor NVRTC"):
        GpuExecutor(machines.get("a100"), gpu)


def test_without_being_asked(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU that is here measures if it is the machine's; else the model decides alone."""
    a100, h200 = machines.get("a100"), machines.get("h200")
    gpu = find_gpu(fakes.library)
    messages: list[str] = []
    free = ExecutorRequest(a100, notify=messages.append)
    assert GpuExecutor.open(replace(free, address="model")) is None and not messages
    monkeypatch.setattr("amos.cuda.executor.find_gpu", lambda: gpu)
    assert isinstance(GpuExecutor.open(free), GpuExecutor)
    assert messages.pop() == "measured on the GPU here (Fake GPU, sm_80)"
    assert GpuExecutor.open(replace(free, machine=h200)) is None
    assert "is no h200 (sm_90)" in messages.pop()


@pytest.mark.long
def test_explore(fakes: Fakes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A measured search from the command line, its records, and an export of its best."""
    store = tmp_path / "gpu.db"
    sizes = ["--extent", "m=40", "--extent", "n=24", "--extent", "k=48"]
    search = [
        "explore",
        "gemm",
        UNIT,
        "--machine",
        "a100",
        "--executor",
        f"gpu:{fakes.library}",
        *sizes,
    ]
    search += ["--trials", "2", "--timeout", "60", "--records", str(store)]
    assert main(search) == 0
    text = capsys.readouterr().out
    assert "measured" in text and "960 elements against NumPy" in text
    assert main([*search, "--json"]) == 0
    assert '"replayed": 2' in capsys.readouterr().out
    out = tmp_path / "best"
    assert main(["export", str(store), "--format", "cuda", "--out", str(out)]) == 0
    assert (out / "kernel.cu").exists()
