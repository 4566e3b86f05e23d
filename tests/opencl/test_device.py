"""Devices: what is missing, what drivers say, what a probe finds, what an export runs."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import amos
from amos.chains import Tiling
from amos.errors import ExportError, MeasureError
from amos.export.request import Request
from amos.ir import Chain
from amos.measure.messages import Failure, Reply
from amos.opencl import executor, probe
from amos.opencl.chains.candidate import ParallelCandidate
from amos.opencl.executor import OpenClDevice, OpenClExecutor, PeakJob
from amos.opencl.export import files
from amos.opencl.groups import is_serial
from amos.opencl.runtime.loader import Device, Kernel, KernelError, ResourceError, _misfit
from amos.plan import Candidate
from amos.plan.target import ExecutorRequest
from amos.schedule import ScheduleSpace

HERE = importlib.util.find_spec("pyopencl") is not None
POCL = amos.machines.get("pocl")
DEVICE = OpenClDevice("PoCL: cpu", "3.0", 2, 4096, 1 << 20, 1 << 25, 2e9, ("cl_khr_fp64",), True)
FIGURES = {
    "bandwidths": {"L1": 9e10, "cache": 5e10, "memory": 2e10},
    "launch": 1e-6,
}
#: Seconds of a call by accumulators: 14 of 256 bits fit 16 registers.
RATES = {8: {1: 2e-9, 8: 2.2e-10, 14: 2e-10, 16: 3e-10}}
SUPPORT = Path(__file__).parent.parent / "support"


def _request(
    name: str = "kern", output: str = "", cast: str = "", results: tuple[str, ...] = ()
) -> Request:
    # Names that the loader in C has for itself.
    op = amos.Operator.parse(
        "done[i,j] += queue[i,k] * status[k,j]",
        extents=dict(i=7, j=11, k=9),
        dtypes=dict(queue="float32", status="float32", done="float32"),
    ).with_epilogue(f"{cast}(relu(acc + bias[j]))")
    if output:
        op = op.with_output(output)
    for result in results:
        op = op.with_result(result)
    mapping = amos.enumerate_mappings(op, "opencl_mad_m8_f32")[0]
    (schedule,) = ScheduleSpace(mapping, POCL).draw(1, np.random.default_rng(0))
    return Request(Candidate(mapping, schedule), name, described=POCL)


def test_a_machine_without_opencl(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so before any work; without an address, the model is asked alone."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    executor.find_device.cache_clear()
    with pytest.raises(MeasureError, match="pyopencl is not installed"):
        OpenClExecutor.open(ExecutorRequest(POCL, "opencl"))
    notes: list[str] = []
    assert OpenClExecutor.open(ExecutorRequest(POCL, notify=notes.append)) is None
    assert notes == ["searched on the model alone: pyopencl is not installed (extra 'opencl')"]


def test_a_device_that_lacks_something() -> None:
    """Local memory and extensions of the machine are the device's, or it is refused."""
    dot = amos.machines.get("mali_g76")
    with pytest.raises(MeasureError, match="has cl_arm_integer_dot_product_int8, which PoCL: cpu"):
        OpenClExecutor(dot, DEVICE)
    small = OpenClDevice("small", "1", 2, 4096, 1024, 1 << 20, 1e9, (), True)
    with pytest.raises(MeasureError, match="262144 bytes of local memory, but small has 1024"):
        OpenClExecutor(POCL, small)
    # PoCL states the L2 cache of a core, which has 256 KiB on the oldest CPUs with AVX2.
    OpenClExecutor(POCL, replace(DEVICE, local_bytes=1 << 18))


def test_shares_are_of_the_peak_of_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The description's rate is another computer's; a device that fails keeps it."""
    mad, dot = (amos.intrinsics.get(x) for x in ("opencl_mad_m8_f32", "mali_arm_dot_m1k4_s8_s32"))
    with OpenClExecutor(POCL, DEVICE) as device:
        assert device.machine([mad]) == POCL
        jobs: list[Any] = []
        answers: Iterator[Any] = iter([1e-10, Failure("crash", "the worker was ended")])

        def answer(job: Any) -> Reply[float]:
            jobs.append(job)
            return Reply(next(answers))

        monkeypatch.setattr(device.runner, "request", answer)
        assert device.machine([mad, dot], again=True).peak(mad.name).interval == 1e-10
        assert device.machine([mad], again=True) == POCL
        assert jobs == [PeakJob(8, "")] * 2


@pytest.mark.skipif(not HERE, reason="no pyopencl")
def test_a_search_measures_the_peak(tmp_path: Path) -> None:
    op = amos.operators.get("gemm", dtype="f32", m=64, n=64, k=64)
    options: dict[str, Any] = dict(machine="pocl", trials=2, records=tmp_path / "runs.db")
    first, again = (amos.explore(op, "opencl_mad_m8_f32", **options) for _ in range(2))
    assert again.replayed == 2
    assert first.machine.peaks != POCL.peaks
    assert first.machine == again.machine
    assert all("Top/s measured peak of" in each.speed for each in (first, again))


def test_errors_of_drivers_are_told_apart() -> None:
    """Resources at an end are no failed build."""

    class Error(Exception):
        pass

    class OutOfMemory(Error):
        pass

    def fail(error: Exception) -> None:
        raise error

    device = Device.__new__(Device)
    device.cl, device.name = SimpleNamespace(Error=Error, MemoryError=OutOfMemory), "gpu"
    for error in (OutOfMemory("MEM_OBJECT_ALLOCATION_FAILURE"), Error("OUT_OF_RESOURCES")):
        with pytest.raises(ResourceError, match="gpu"):
            device.call(fail, error)
    with pytest.raises(KernelError, match=r"x.cl:1: error: no such type") as caught:
        device.call(fail, Error("build failed\nx.cl:1: error: no such type\nrest"))
    assert not isinstance(caught.value, ResourceError)


def test_divisions_round_once_where_the_device_can() -> None:
    """Else OpenCL allows 2.5 units in the last place."""
    built: list[list[str]] = []
    program = SimpleNamespace(build=lambda options, cache_dir: built.append(options))
    device = Device.__new__(Device)
    device.context = None
    device.cl = SimpleNamespace(
        Error=OSError,
        MemoryError=OSError,
        Program=lambda context, text: program,
        device_fp_config=SimpleNamespace(CORRECTLY_ROUNDED_DIVIDE_SQRT=128),
    )
    for able in (128 | 2, 2):
        device.device = SimpleNamespace(single_fp_config=able)
        device.build("")
    assert built == [["-cl-fp32-correctly-rounded-divide-sqrt"], []]


def test_a_probed_device_is_a_machine(tmp_path: Path) -> None:
    """Its file is read again as the same machine."""
    described = probe._machine(DEVICE, FIGURES | probe._peaks(RATES))
    file = tmp_path / "mine.toml"
    file.write_text(probe.write_toml(described), encoding="utf-8")
    again = amos.machines.get(str(file))
    assert again.opencl == described.opencl
    assert described.opencl is not None
    assert described.opencl.item_bytes == 512
    # The cores of a GPU are as many as its units too, whose lanes nothing reports.
    gpu = probe._machine(replace(DEVICE, is_cpu=False), FIGURES | probe._peaks(RATES))
    assert [is_serial(machine) for machine in (again, gpu)] == [True, False]
    assert again.levels == described.levels
    assert again.peaks["opencl_mad_m8_f32"].interval == 2e-10


def test_exports_need_a_device_machine() -> None:
    """A record of another machine has no such kernel."""
    request = _request()
    foreign = Request(request.candidate, "kern", described=amos.machines.get("a100"))
    with pytest.raises(ExportError, match="OpenCL device such as pocl, got one for a100"):
        files(foreign)
    for name in ("barrier", "exp", "ilogb", "mix", "printf", "isnotequal", "event_t", "NAN"):
        with pytest.raises(ExportError, match="OpenCL C uses it itself"):
            files(_request(name))
    assert "void GEMM_1(" in str(files(_request("GEMM_1"))["kernel.cl"])


def test_elements_that_a_kernel_leaves_begin_as_expected() -> None:
    """A new buffer of OpenCL holds anything."""
    tests = [str(files(_request(output=to))["test.c"]) for to in ("", "out[i*2+1,j]")]
    assert ["buffers[3] = make_buffer(context, 616, calloc(616, 1))" in x for x in tests] == [
        False,
        True,
    ]


def test_arrays_that_do_not_fit_and_missing_files(tmp_path: Path) -> None:
    """They are refused by name: a view of an array would be taken for the whole."""
    kernel = Kernel.__new__(Kernel)
    kernel.launch = {"kernel": "k", "arguments": [{"name": "x", "shape": [2], "dtype": "float32"}]}
    flags = SimpleNamespace(c_contiguous=True)
    right = dict(base_data=0, size=2, offset=0, dtype="float32", shape=(2,), flags=flags)
    for wrong, words in (
        (SimpleNamespace(size=4), "expected 8 bytes, got 4"),
        (np.zeros(8, np.float32), "a buffer of pyopencl, got ndarray"),
        (None, "a buffer of pyopencl, got NoneType"),
        (SimpleNamespace(**right | {"offset": 8}), "contiguous array from its buffer's start"),
        (SimpleNamespace(**right | {"flags": SimpleNamespace(c_contiguous=False)}), "contiguous"),
        (SimpleNamespace(**right | {"dtype": "float64"}), r"float32 \[2\], got float64 \[2\]"),
        (SimpleNamespace(**right | {"shape": (3,)}), r"float32 \[2\], got float32 \[3\]"),
    ):
        with pytest.raises(KernelError, match=f"k: x: .*{words}"):
            kernel(wrong)
    bits = SimpleNamespace(**right | {"dtype": "uint16"})
    assert _misfit({"shape": [2], "dtype": "bfloat16"}, bits) == ""
    assert "expected float16" in _misfit({"shape": [2], "dtype": "float16"}, bits)
    (tmp_path / "launch.json").write_text("{}")
    with pytest.raises(KernelError, match=r"no kernel\.cl that can be read"):
        Kernel(tmp_path, Device.__new__(Device))


def test_a_probe_of_many_units_has_room_for_their_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 accumulators for each of 64 work-items of a unit."""
    sizes: list[int] = []
    types, flags = SimpleNamespace(CPU=2), SimpleNamespace(READ_WRITE=1)
    cl = SimpleNamespace(
        device_type=types, mem_flags=flags, Buffer=lambda context, flag, size: sizes.append(size)
    )
    gpu = SimpleNamespace(max_compute_units=132, type=4)
    stub = SimpleNamespace(cl=cl, device=gpu, context=None)
    monkeypatch.setattr(probe, "Device", lambda words: stub)
    probe.DeviceProbe("")
    assert sizes == [132 * 64 * 32 * 4]


def _chain_request() -> Request:
    text = "t[i,j] += a[i,k] * sum[k,j]; queue[i,j] = exp(t[i,j] - c[j])"
    tiling = Tiling.of(Chain.parse(text, dict(i=7, j=11, k=9)), dict(i=2))
    loops = {"t.j": "local 0", "queue.j": "local 0", "i": "group 0"}
    frame = ParallelCandidate(tiling, {}, {"t": "local"})
    choices = {loop.name: loops.get(loop.name, "sequential") for loop in frame.nest.loops}
    return Request(replace(frame, choices=choices), "kern", described=POCL)


def test_a_chain_is_compared_with_its_own_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing, short and wrong ones are noticed."""
    contents = {
        name: x if isinstance(x, bytes) else x.encode()
        for name, x in files(_chain_request()).items()
    }
    kernel = Kernel.__new__(Kernel)
    kernel.folder, kernel.launch = tmp_path, json.loads(contents["launch.json"])
    right = np.frombuffer(contents["expected/queue.bin"], np.float32).copy()
    (tmp_path / "expected").mkdir()
    (tmp_path / "inputs").mkdir()
    right.tofile(tmp_path / "expected" / "queue.bin")
    with pytest.raises(KernelError, match=r"a\.bin: expected 252 bytes, got 0"):
        kernel.check()
    for name in "a", "sum", "c":
        (tmp_path / "inputs" / f"{name}.bin").write_bytes(contents[f"inputs/{name}.bin"])
    wrong = 2 * kernel.launch["tolerance"]
    for difference, verdict in ((0, True), (wrong, False), (np.nan, False)):
        result = right + np.float32(difference) * (np.arange(77) == 5)
        data = result.astype(np.float32).view(np.uint8)
        monkeypatch.setattr(kernel, "compute", lambda inputs, x=data: [x])
        assert kernel.check()["correct"] is verdict
    with pytest.raises(ExportError, match="chains are exported as c, so or opencl only"):
        str(_chain_request().alone)


_HALVES = [partial(_request, cast=cast) for cast in ("f16", "bf16")]


#: Functions before and behind, and results of names that the loader in C has for itself.
_reduced = partial(_request, results=("start[i] max= acc", "end_items[] += acc then acc * 2"))


@pytest.mark.parametrize("request_", [_request, _chain_request, _reduced, *_HALVES])
def test_exported_programs(tmp_path: Path, request_: Callable[[], Request]) -> None:
    """The C program compiles; both loaders say that the kernel is right where a device is."""
    for name, content in files(request_()).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    command = [compiler, "-Wall", "-Werror", f"-I{SUPPORT}", "test.c"]
    subprocess.run([*command, "-fsyntax-only"], cwd=tmp_path, check=True)
    if not HERE:
        pytest.skip("exported programs are compiled, and not run: pyopencl is not here")
    loaded = subprocess.run([sys.executable, "load.py"], cwd=tmp_path, capture_output=True)
    elements = 77 + 7 + 1 if request_ is _reduced else 77
    assert f"right in {elements} elements" in loaded.stdout.decode(), loaded.stderr
    spec = importlib.util.find_spec("pyopencl")
    assert spec is not None
    libraries = [*Path(str(spec.origin)).parent.glob(".libs/libOpenCL*")]
    if libraries:
        # The library of the wheel finds its driver only where pyopencl has looked for it.
        built = [*command, "-shared", "-fPIC", "-Dmain=run_test", str(libraries[0]), "-lm"]
        subprocess.run([*built, "-o", "test.so"], cwd=tmp_path, check=True)
        run = "import ctypes, pyopencl as cl; cl.get_platforms()"
        run += "; raise SystemExit(ctypes.CDLL('./test.so').run_test())"
        done = subprocess.run([sys.executable, "-c", run], cwd=tmp_path, capture_output=True)
        assert done.returncode == 0, done.stderr
