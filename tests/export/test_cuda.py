"""Exported CUDA kernels: their files, and the loader against a driver that is a fake.

The fake has the entry points of NVIDIA's driver, and runs the exported kernel on the
host. So every call that the loader makes is made, with the arguments a driver gets.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import amos
from amos import operators
from amos.cli import main
from amos.cuda import gpu_check
from amos.cuda.runtime.driver import Device, KernelError, misfit
from amos.cuda.runtime.loader import Kernel
from amos.errors import BuildError, ExportError, MeasureError
from amos.export import export
from amos.plan import Candidate
from amos.runtime.values import encode, reference
from amos.schedule import ScheduleSpace
from amos.validate import evaluate
from tests.support.fake_cuda import fake_driver

FILES = ["kernel.cu", "launch.json", "load.py", "driver.py", "timing.py", "values.py", "load.hpp"]
CONV = dict(n=2, c=3, k=9, p=5, q=6, stride=2, padding=1)
#: The fixture that exports a kernel.
Exporter = Callable[..., Candidate]


def test_files(exported: Exporter, tmp_path: Path) -> None:
    candidate = exported(tmp_path)
    assert all((tmp_path / name).exists() for name in FILES)
    launch = json.loads((tmp_path / "launch.json").read_text())
    assert {"grid", "block", "shared_bytes", "arguments"} <= launch.keys()
    assert [a["name"] for a in launch["arguments"]] == ["image", "weight", "out"]
    assert launch["operations"] == candidate.mapping.operator.operations
    assert (
        f'"C" __global__ void __launch_bounds__({launch["block"][0]}, '
        in (tmp_path / "kernel.cu").read_text()
    )
    assert "import amos" not in (tmp_path / "load.py").read_text()


@pytest.mark.long
def test_launches_from_cpp(exported: Exporter, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    finish = EPILOGUE, {"bias": "int32", "skip": "uint8"}
    exported(tmp_path, "s8", epilogue=finish, results=["top[n,p] max= f32(acc)", "t[k] += acc"])
    (tmp_path / "main.cu").write_text(
        '#include "load.hpp"\n'
        "int main() {\n"
        "  signed char *in = 0; int *bias = 0; float *scale = 0; unsigned char *out = 0;\n"
        "  return launch_conv2d(in, in, bias, scale, out, out, scale, bias);\n}\n"
    )
    command = [nvcc, "-std=c++17", "-arch=sm_80", "-c", "main.cu", "-o", "main.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "dtype",
    ["f16", "e4m3", *(pytest.param(x, marks=pytest.mark.slow) for x in ("s8", "e5m2", "bf16"))],
)
def test_loader_on_a_fake_driver(
    exported: Exporter, tmp_path: Path, dtype: str, driver: str, nvcc: None
) -> None:
    exported(tmp_path / "one", dtype, seed=1)
    (row,) = gpu_check.check_folder(tmp_path / "one", pytorch=False, library=driver)
    assert row.problem == ""
    assert row.correct and row.largest_difference == 0 and row.elements == 2 * 9 * 5 * 6
    assert row.gpu == "Fake GPU" and row.operator == "conv2d"
    assert row.seconds is not None and row.seconds > 0
    # With another constant in its description the same kernel is wrong.
    path = tmp_path / "one" / "launch.json"
    launch = json.loads(path.read_text())
    launch["operator"]["operands"][0]["indices"][2]["constant"] += 1
    path.write_text(json.dumps(launch))
    assert not gpu_check.check_folder(tmp_path / "one", timed=False, library=driver)[0].correct


EPILOGUE = "u8(relu((acc + bias[k]) * scale[k]) + skip[n,k,p,q])"


@pytest.mark.parametrize("dtype", ["s8", "bf16"])
def test_an_epilogue_goes_along(
    exported: Exporter, tmp_path: Path, dtype: str, driver: str, nvcc: None
) -> None:
    """Described in launch.json, computed by the kernel, and checked by arithmetic of its own."""
    bias = "int32" if dtype == "s8" else "float32"
    exported(tmp_path / "one", dtype, epilogue=(EPILOGUE, {"bias": bias, "skip": "uint8"}))
    path = tmp_path / "one" / "launch.json"
    launch = json.loads(path.read_text())
    assert [a["role"] for a in launch["arguments"]] == ["input"] * 2 + ["epilogue"] * 3 + ["output"]
    assert launch["arguments"][-1]["dtype"] == "uint8"
    (row,) = gpu_check.check_folder(tmp_path / "one", timed=False, library=driver)
    assert row.problem == "" and row.correct and row.elements == 2 * 9 * 5 * 6
    assert row.largest_difference == 0 or dtype == "bf16"
    # With another function in its description the same kernel is wrong.
    assert launch["operator"]["epilogue"]["name"] == "add"
    relu = launch["operator"]["epilogue"]["arguments"][0]
    assert relu["body"]["name"] == "max"
    relu["body"]["name"] = "min"
    path.write_text(json.dumps(launch))
    assert not gpu_check.check_folder(tmp_path / "one", timed=False, library=driver)[0].correct


@pytest.mark.parametrize("dtype", ["s8", "bf16"])
@pytest.mark.long
def test_further_results_go_along(
    exported: Exporter, tmp_path: Path, dtype: str, driver: str, nvcc: None
) -> None:
    """Described, started by a kernel of their own, and checked."""
    texts = ["f[k,n,p*6 + q] = bf16(acc * s[k])", "top[n,p + 1] max= acc", "least[] min= f32(acc)"]
    texts += ["pool[n,k] += relu(acc) * 0.25 then acc * 0.1", "total[k] += u8(acc) then s32(acc)"]
    candidate = exported(tmp_path / "one", dtype, results=texts)
    path = tmp_path / "one" / "launch.json"
    launch = json.loads(path.read_text())
    assert launch["start"]["kernel"] == launch["kernel"] + "_start"
    assert launch["end"]["kernel"] == launch["kernel"] + "_end"
    outputs = [a for a in launch["arguments"] if a["role"] == "output"]
    assert [a["name"] for a in outputs] == [x.name for x in candidate.mapping.operator.results]
    assert [a.get("kept", False) for a in outputs] == [False, False, True, False, False, False]
    (row,) = gpu_check.check_folder(tmp_path / "one", pytorch=False, library=driver)
    assert row.problem == "" and row.correct and row.seconds
    assert row.elements == 2 * 9 * 5 * 6 * 2 + 2 * 5 + 1 + 2 * 9 + 9
    # With another function in its description the same kernel is wrong.
    for further in launch["operator"]["further"][1:]:
        before, further["combination"] = further["combination"], "min="
        further["combination"] = "max=" if before == "min=" else "min="
        path.write_text(json.dumps(launch))
        assert not gpu_check.check_folder(tmp_path / "one", timed=False, library=driver)[0].correct
        further["combination"] = before


class Array:
    """What a library's array looks like to the loader."""

    def __init__(self, dtype: str, shape: list[int], at: int = 256, *, cuda: bool = True) -> None:
        self.dtype, self.shape, self.is_cuda, self._at = dtype, tuple(shape), cuda, at
        self.device = SimpleNamespace(index=0)

    def data_ptr(self) -> int:
        return self._at

    def is_contiguous(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("dtype", "c_type"),
    [
        ("float16", "torch.float16"),
        ("bfloat16", "torch.bfloat16"),
        ("bfloat16", "uint16"),  # as CuPy holds it, which has no bfloat16
        ("tfloat32", "torch.float32"),
        ("float8_e4m3", "torch.float8_e4m3fn"),
        ("float8_e4m3", "uint8"),
        ("float8_e5m2", "torch.float8_e5m2"),
        ("int8", "int8"),
    ],
)
def test_arrays_that_fit(dtype: str, c_type: str) -> None:
    argument = {"dtype": dtype, "shape": [4, 8]}
    assert misfit(argument, Array(c_type, [4, 8])) == ""
    assert "expected" in misfit(argument, Array("torch.complex64", [4, 8]))
    assert "[4, 8], got" in misfit(argument, Array(c_type, [8, 4]))
    assert "one of the host" in misfit(argument, Array(c_type, [4, 8], cuda=False))
    assert "multiple of 16" in misfit(argument, Array(c_type, [4, 8], at=8))


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_eight_bit_floats_are_those_of_ml_dtypes(kind: str) -> None:
    types = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    number = types.float8_e4m3fn if kind == "e4m3" else types.float8_e5m2
    all_values = np.arange(256, dtype=np.uint8).view(number).astype(np.float32)
    finite = all_values[np.isfinite(all_values)]
    codes = encode(finite.astype(np.float64), f"float8_{kind}")
    assert np.array_equal(codes, np.arange(256)[np.isfinite(all_values)])


def test_reference_is_the_operator() -> None:
    op = operators.get("conv2d", dtype="f32", **CONV)
    from amos.codegen.device.launch import describe_load

    rng = np.random.default_rng(0)
    values = {t.name: rng.integers(-9, 9, t.shape).astype(float) for t in op.inputs}
    described = {
        "iterations": {it.name: it.extent for it in op.iterations},
        "operands": [describe_load(load) for load in op.operands],
    }
    extents = op.extents
    all_values = np.indices([extents[it.name] for it in op.spatial]).reshape(len(op.spatial), -1)
    at = {it.name: index for it, index in zip(op.spatial, all_values, strict=True)}
    where, indices, scale = reference(described, values, at)
    assert len(where) == op.output.tensor.elements
    inputs = {name: array.astype(np.float32) for name, array in values.items()}
    assert np.array_equal(evaluate(op, inputs).reshape(-1)[where], indices)
    assert (scale >= np.abs(indices)).all()


def test_refusals(exported: Exporter, tmp_path: Path, driver: str) -> None:
    candidate = exported(tmp_path)
    library = fake_driver(tmp_path, 75)
    with pytest.raises(KernelError, match="needs sm_80, and Fake GPU is sm_75"):
        Kernel(tmp_path, Device(library))
    with pytest.raises(MeasureError, match="needs sm_80, and Fake GPU is sm_75"):
        gpu_check.check_folder(tmp_path, library=library)
    with pytest.raises(KernelError, match="no NVIDIA driver"):
        Device("libnothing.so.7")
    with pytest.raises(MeasureError, match="gpu-check: there is no NVIDIA driver"):
        gpu_check.check_folder(tmp_path, library="libnothing.so.7")
    with pytest.raises(MeasureError, match=r"launch\.json"):
        gpu_check.check_folder(tmp_path / "nothing")
    with pytest.raises(BuildError, match="on sm_61: wmma_m16n16k16_f16_f32 needs sm_70"):
        export(candidate, "cuda", tmp_path / "old", architecture="sm_61")
    op = operators.get("gemm", dtype="u8s8", m=8, n=8, k=8)
    host = amos.enumerate_mappings(op, amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32"))[0]
    plain = Candidate(host, ScheduleSpace(host).smallest())
    with pytest.raises(ExportError, match="no intrinsic of a GPU"):
        export(plain, "cuda", tmp_path / "host")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = tmp_path / "records.db"
    sizes = ["--extent", "m=48", "--extent", "n=40", "--extent", "k=64"]
    search = ["explore", "gemm", "wmma_m16n16k16_f16_f32", "--machine", "a100", *sizes]
    assert main([*search, "--trials", "2", "--records", str(records), "--json"]) == 0
    out = tmp_path / "out"
    assert main(["export", str(records), "--format", "cuda", "--out", str(out)]) == 0
    assert json.loads((out / "launch.json").read_text())["architecture"] == "sm_80"
    capsys.readouterr()
    assert main(["gpu-check", str(tmp_path / "nothing")]) == 2
    message = capsys.readouterr().err
    assert "launch.json" in message and message.count("\n") == 1


def test_loading_and_closing(
    exported: Exporter, tmp_path: Path, driver: str, nvcc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that the driver refuses is followed by the next; a closed kernel is gone."""
    monkeypatch.setenv("FAKE_CUDA_LOG", str(tmp_path / "log"))
    exported(tmp_path / "one")
    device = Device(driver)
    with Kernel(tmp_path / "one", device) as kernel:
        assert kernel.check()["correct"]
        launch = kernel.launch
        (machine_code,) = tmp_path.glob("one/*.cubin")
        both = iter([b"no machine code of this GPU", machine_code.read_bytes()])
    assert (tmp_path / "log").read_text().count("cuModuleUnload") == 1
    with pytest.raises(KernelError, match="was closed"):
        kernel.run([])
    kernel.close()  # once more is nothing
    monkeypatch.setattr("amos.cuda.runtime.loader.images", lambda *_: both)
    with Kernel(tmp_path / "one", device) as kernel:
        assert kernel.check()["correct"]
    with pytest.raises(KernelError, match="cuModuleLoadData: device kernel image is invalid"):
        Kernel("nowhere", device, launch=launch, image=b"no machine code at all")
    large = launch | {"dynamic_shared_bytes": 240 << 10}
    with pytest.raises(KernelError, match=r"245760 bytes of shared memory.* has 232448"):
        Kernel("nowhere", device, launch=large, image=b"-")


def test_timing_without_graphs(
    exported: Exporter, tmp_path: Path, driver: str, nvcc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that records no graphs is timed all the same."""
    exported(tmp_path)
    monkeypatch.setenv("FAKE_CUDA_LOG", str(tmp_path / "log"))
    for old in (False, True):
        if old:
            monkeypatch.setenv("FAKE_CUDA_OLD", "1")
        (tmp_path / "log").write_text("")
        with Kernel(tmp_path, Device(driver)) as kernel:
            assert len(kernel.times(3)) == 3 and min(kernel.times(1)) > 0
        log = (tmp_path / "log").read_text()
        assert ("cuGraphLaunch" in log) != old
        assert "cuStreamDestroy" in log


def test_the_stream_of_the_arrays(
    exported: Exporter, tmp_path: Path, driver: str, nvcc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch follows what the arrays' library has in hand, and wants the first GPU."""

    class Torch:
        class cuda:
            @staticmethod
            def current_stream(device: object) -> SimpleNamespace:
                return SimpleNamespace(cuda_stream=77)

    exported(tmp_path)
    monkeypatch.setenv("FAKE_CUDA_LOG", str(tmp_path / "log"))
    kernel, streams = Kernel(tmp_path, Device(driver)), list[int]()
    monkeypatch.setattr(kernel, "run", lambda pointers, stream: streams.append(stream))
    arrays = [Array(a["dtype"], a["shape"]) for a in kernel.launch["arguments"]]
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    kernel(*arrays)
    monkeypatch.setitem(sys.modules, "torch", Torch)
    kernel(*arrays)
    kernel(*arrays, stream=5)
    assert streams == [0, 77, 5]
    log = (tmp_path / "log").read_text()
    assert log.count("cuCtxPushCurrent") == log.count("cuCtxPopCurrent") == 3
    arrays[0].device = SimpleNamespace(index=1)
    with pytest.raises(KernelError, match="first GPU, got one on number 1"):
        kernel(*arrays)
