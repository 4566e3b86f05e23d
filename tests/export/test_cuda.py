"""Exported CUDA kernels: their files, and the loader against a driver that is a fake.

The fake has the entry points of NVIDIA's driver, and runs the exported kernel on the
host. So every call that the loader makes is made, with the arguments a driver gets.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import amos
from amos import machines, operators
from amos.cli import main
from amos.codegen.cuda.emulate import HEADERS, compiler
from amos.errors import BuildError, ExportError, MeasureError
from amos.export import export, gpu_check
from amos.codegen.cuda.loader import Device, Kernel, KernelError, reference
from amos.schedule import Candidate, ScheduleSpace
from amos.validate import evaluate

FILES = ["kernel.cu", "launch.json", "load.py", "load.hpp"]
CONV = dict(n=2, c=3, k=9, p=5, q=6, stride=2, padding=1)


def exported(folder: Path, dtype: str = "f16", seed: int = 0) -> Candidate:
    unit = {"f16": "wmma_m16n16k16_f16_f32", "s8": "wmma_m16n16k16_s8_s32"}[dtype]
    op = operators.get("conv2d", dtype=dtype, **CONV)
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get(unit))[seed]
    space = ScheduleSpace(mapping, machines.get("a100"))
    candidate = Candidate(mapping, space.sample(np.random.default_rng(seed)))
    export(candidate, "cuda", folder, architecture="sm_80", force=True)
    return candidate


def fake_driver(folder: Path, capability: int = 80) -> str:
    """A shared library that stands for the driver, with the kernel of a folder inside."""
    tool = compiler()
    if tool is None:
        pytest.skip("the fake driver needs g++ or clang++")
    launch = json.loads((folder / "launch.json").read_text())
    source = (folder / "kernel.cu").read_text()
    head = "extern __shared__ __align__(128) unsigned char shared_memory[];"
    size = max(1, launch["shared_bytes"])
    source = source.replace(head, f"alignas(128) unsigned char shared_memory[{size}];")
    (folder / "host.cu").write_text(source)
    names = {"float16": "const half", "int8": "const signed char"}
    names |= {"float32": "float", "int32": "int"}
    call = ", ".join(
        f"*static_cast<{names[a['dtype']]} **>(arguments[{n}])"
        for n, a in enumerate(launch["arguments"])
    )
    text = Path(__file__).with_name("fake_driver.cpp.txt").read_text()
    for word, value in (
        ("SOURCE", str(folder / "host.cu")),
        ("CAPABILITY", str(capability)),
        ("KERNEL", launch["kernel"]),
        ("CALL", f"{launch['kernel']}({call})"),
    ):
        text = text.replace(word, value)
    (folder / "driver.cpp").write_text(text)
    library = folder / f"libfake{capability}.so"
    flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", f"-I{HEADERS}"]
    subprocess.run([tool, *flags, str(folder / "driver.cpp"), "-o", str(library)], check=True)
    return str(library)


def test_files(tmp_path: Path) -> None:
    candidate = exported(tmp_path)
    assert all((tmp_path / name).exists() for name in FILES)
    launch = json.loads((tmp_path / "launch.json").read_text())
    assert {"grid", "block", "shared_bytes", "arguments"} <= launch.keys()
    assert [a["name"] for a in launch["arguments"]] == ["image", "weight", "out"]
    assert launch["operations"] == candidate.mapping.operator.operations
    assert (
        f'"C" __global__ void __launch_bounds__({launch["block"][0]})'
        in (tmp_path / "kernel.cu").read_text()
    )
    assert "amos" not in (tmp_path / "load.py").read_text()


def test_launches_from_cpp(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    exported(tmp_path)
    (tmp_path / "main.cu").write_text(
        '#include "load.hpp"\n'
        "int main() { half *in = 0; float *out = 0; return launch_conv2d(in, in, out); }\n"
    )
    command = [nvcc, "-std=c++17", "-arch=sm_80", "-c", "main.cu", "-o", "main.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", ["f16", "s8"])
def test_loader_on_a_fake_driver(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(tmp_path, dtype, seed=1)
    library = fake_driver(tmp_path)
    monkeypatch.setattr("amos.codegen.cuda.loader._machine_code", lambda *_: b"image")
    monkeypatch.setattr(gpu_check, "Device", lambda: Device(library))
    (row,) = gpu_check.check_folder(tmp_path)
    assert row.correct and row.largest_difference == 0 and row.elements == 2 * 9 * 5 * 6
    assert row.gpu == "fake"
    assert row.seconds is not None and row.seconds > 0
    # With another weight's stride in its description the same kernel is wrong.
    path = tmp_path / "launch.json"
    launch = json.loads(path.read_text())
    launch["operator"]["operands"][0]["indices"][2]["constant"] += 1
    path.write_text(json.dumps(launch))
    assert not gpu_check.check_folder(tmp_path, timed=False)[0].correct


def test_reference_is_the_operator() -> None:
    op = operators.get("conv2d", dtype="f32", **CONV)
    from amos.codegen.cuda.launch import described_operand

    rng = np.random.default_rng(0)
    values = {t.name: rng.integers(-9, 9, t.shape).astype(float) for t in op.inputs}
    described = {
        "iterations": {it.name: it.extent for it in op.iterations},
        "operands": [described_operand(load) for load in op.operands],
    }
    where, found, scale = reference(described, values, rng)
    inputs = {name: array.astype(np.float32) for name, array in values.items()}
    assert np.array_equal(evaluate(op, inputs).reshape(-1)[where], found)
    assert (scale >= np.abs(found)).all()


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = exported(tmp_path)
    library = fake_driver(tmp_path, 75)
    with pytest.raises(KernelError, match="needs sm_80, and fake is sm_75"):
        Kernel(tmp_path, Device(library))
    with pytest.raises(KernelError, match="no NVIDIA driver"):
        Device("libnothing.so.7")
    monkeypatch.setattr(gpu_check, "Device", lambda: Device("libnothing.so.7"))
    with pytest.raises(MeasureError, match="gpu-check: there is no NVIDIA driver"):
        gpu_check.check_folder(tmp_path)
    with pytest.raises(ExportError, match=r"launch\.json"):
        gpu_check.check_folder(tmp_path / "nothing")
    with pytest.raises(BuildError, match="needs sm_70, which sm_61 is not"):
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


def test_measured_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of a search on the model, exported, measured, and taken into records."""
    sizes = ["--extent", "m=48", "--extent", "n=40", "--extent", "k=64"]
    search = ["explore", "gemm", "wmma_m16n16k16_f16_f32", "--machine", "a100", *sizes]
    out = tmp_path / "top"
    assert main([*search, "--trials", "6", "--export", str(out), "--top", "2", "--json"]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["1", "2"]
    shutil.rmtree(out / "2")
    library = fake_driver(out / "1")
    monkeypatch.setattr("amos.codegen.cuda.loader._machine_code", lambda *_: b"image")
    monkeypatch.setattr(gpu_check, "Device", lambda: Device(library))
    lines, store = tmp_path / "measured.jsonl", tmp_path / "records.db"
    assert main(["gpu-check", str(out), "--records", str(lines)]) == 0
    assert main(["records", "import", str(store), str(lines)]) == 0
    capsys.readouterr()
    assert main(["records", "list", str(store), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["machine"]["name"] == "a100"
    assert main(["export", f"{store}:{row['id']}", "--format", "cuda", "--out", str(tmp_path)]) == 0
    host = [*search[:4], "host", *sizes, "--export", str(out)]
    capsys.readouterr()
    assert main(host) == 2
    assert "'host' is no GPU" in capsys.readouterr().err


def test_suite_for_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amos.operators.TABLE_6", {"gemm": 1, "mean": 1})
    monkeypatch.setattr("amos.export.cuda.compilers", lambda: ())
    made = gpu_check.write_suite(tmp_path, "sm_70", shapes=1, seed=0)
    assert [path.name for path in made] == ["gemm_f16_f32_0", "gemm_f16_f16_0"] + [
        "mean_f16_f32_0",
        "mean_f16_f16_0",
    ]
    assert all((path / "launch.json").exists() for path in made)
