"""An exported network runs without Python, and an export that fails leaves the old one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from amos.cli.app import main
from amos.errors import NetworkError
from amos.network import CompiledNetwork
from amos.network.model import random_arrays
from tests.network.models import Builder, compile_whole, load_whole

needs_compiler = pytest.mark.skipif(
    not shutil.which("g++") or not shutil.which("make"), reason="needs g++ and make"
)


@pytest.fixture(scope="module")
def compiled() -> CompiledNetwork:
    b = Builder()
    x, y = b.input('"first.1"', (4, 16)), b.input("second", (4, 8))
    mask = b.input("mask", (4, 8), TensorProto.BOOL)
    half = b.node("Cast", b.input("half", (4, 8), TensorProto.BFLOAT16), to=TensorProto.FLOAT)
    x = b.node("Tanh", b.node("MatMul", x, b.random(16, 8)))
    y = b.node("Where", mask, b.node("Add", x, y), half)
    model = b.model(y, x, b.node("Log", x))  # of which some is no number
    return compile_whole(load_whole(model, name="two\nlines"), progress=False)


@needs_compiler
def test_the_example_finds_what_python_found(compiled: CompiledNetwork, tmp_path: Path) -> None:
    paths = compiled.export(tmp_path / "out")
    *names, weights = sorted(path.name for path in paths if "constants-" not in path.name)
    assert names == [
        *("Makefile", "example.cpp", *(f"input{n}.bin" for n in range(4))),
        *("libamos.so", "libnetwork.so", "model.onnx"),
        *(f"output{n}.bin" for n in range(3)),
    ]
    assert weights.startswith("weights-") and weights in (tmp_path / "out/example.cpp").read_text()
    done = subprocess.run(
        ["make", "-s", "-C", tmp_path / "out", "test"], capture_output=True, text=True, check=True
    )
    assert "output 1: largest difference 0\n" in done.stdout
    assert done.stdout.rstrip().endswith("ms, right")
    sample = tmp_path / "out" / "sample" / "output1.bin"
    sample.write_bytes(b"\0" * len(sample.read_bytes()))
    again = subprocess.run([tmp_path / "out" / "example", tmp_path / "out"], capture_output=True)
    assert again.returncode == 1
    assert again.stdout.rstrip().endswith(b"WRONG")


@needs_compiler
def test_the_command_line_compiles_and_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = Builder()
    model = b.model(b.node("MatMul", b.input("x", ("rows", 16)), b.random(16, 8)))
    onnx.save(model, tmp_path / "model.onnx")
    arguments = ["compile", str(tmp_path / "model.onnx"), "--shape", "x=4,16", "--json"]
    (tmp_path / "out").mkdir()
    others = tmp_path / "out" / "weights-backup.bin"
    others.write_text("not AMOS's")
    assert main([*arguments, "-o", str(tmp_path / "out")]) == 0
    assert others.exists()
    said = json.loads(capsys.readouterr().out)
    assert [kernel["count"] for kernel in said["kernels"]] == [1]
    references = [check["reference"] for check in said["checks"]]
    assert references == ["NumPy", "the engine alone", "onnxruntime"]
    assert str(tmp_path / "out" / "libnetwork.so") in said["files"]
    assert main(["compile", str(tmp_path / "model.onnx"), "--shape", "x=four"]) == 2
    assert "expected INPUT=SIZES" in capsys.readouterr().err


def test_inputs_have_the_names_of_the_model(compiled: CompiledNetwork) -> None:
    values = random_arrays(compiled.network)
    names = ['"first.1"', "second", "mask", "half"]
    for one, other in zip(
        compiled(**dict(zip(names, values, strict=True))), compiled(*values), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_an_export_that_fails_leaves_the_old_one(
    compiled: CompiledNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libnetwork.so").write_text("old")

    class Failing:
        def export_library(self, path: str, **_: Any) -> None:
            Path(path).write_text("half")
            raise RuntimeError("it stopped\n")

    monkeypatch.setattr("amos.network.engine.executable", lambda module, **_: Failing())
    monkeypatch.setenv("CXX", "g++")
    with pytest.raises(NetworkError, match="no library was linked: it stopped"):
        compiled.export(tmp_path)
    monkeypatch.delenv("CXX")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NetworkError, match="linked: there is no C.. compiler on the PATH"):
        compiled.export(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["libnetwork.so"]
    assert (tmp_path / "libnetwork.so").read_text() == "old"
    (tmp_path / "file").write_text("")
    with pytest.raises(NetworkError, match="export to"):
        compiled.export(tmp_path / "file")
