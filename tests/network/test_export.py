"""An exported network runs in other applications, and an export that fails leaves the old one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Thread
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import amos
from amos.cli.app import main
from amos.codegen.c.compiler import compiler_command
from amos.errors import NetworkError
from amos.network import CompiledNetwork
from amos.network.inputs import random_arrays
from tests.network.models import Builder, compile_whole, load_whole

needs_compiler = pytest.mark.skipif(compiler_command() is None, reason="needs a C compiler")


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
def test_an_export_holds_what_onnxruntime_needs(tmp_path: Path) -> None:
    b = Builder()
    model = b.model(b.node("MatMul", b.input("x", (4, 16)), b.random(16, 8)))
    compiled = compile_whole(load_whole(model), progress=False)
    (tmp_path / f"constants-{'0' * 16}.bin").write_text("of an older export")
    (tmp_path / "constants-mine.bin").write_text("not AMOS's")
    paths = compiled.export(tmp_path)
    constants, *names = sorted(path.name for path in paths)
    assert names == ["example.cpp", "example.py", "libamos.so", "model.onnx"]
    assert constants.startswith("constants-")
    assert {path.name for path in tmp_path.iterdir()} == {constants, "constants-mine.bin", *names}
    done = subprocess.run(
        [sys.executable, "-P", str(tmp_path / "example.py")],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    assert "float32 [4, 8]" in done.stdout and done.stdout.rstrip().endswith("ms")


def test_the_example_in_cpp_runs(tmp_path: Path) -> None:
    folder = os.environ.get("ORT_HOME")
    if not folder or not shutil.which("c++"):
        pytest.skip("needs c++ and onnxruntime's release in $ORT_HOME")
    b = Builder()
    model = b.model(b.node("MatMul", b.input("x", (4, 16)), b.random(16, 8)))
    compile_whole(load_whole(model), progress=False).export(tmp_path)
    libraries = Path(folder, "lib")
    command = ["c++", "-std=c++17", "-I", str(Path(folder, "include")), "example.cpp"]
    command += ["-L", str(libraries), "-lonnxruntime", f"-Wl,-rpath,{libraries}", "-o", "example"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./example"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "32 elements" in done.stdout


@needs_compiler
def test_the_command_line_compiles_and_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = Builder()
    model = b.model(b.node("MatMul", b.input("x", ("rows", 16)), b.random(16, 8)))
    onnx.save(model, tmp_path / "model.onnx")
    arguments = ["compile", str(tmp_path / "model.onnx"), "--shape", "x=4,16", "--json"]
    assert main([*arguments, "-o", str(tmp_path / "out")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [kernel["count"] for kernel in printed["kernels"]] == [1]
    references = [check["reference"] for check in printed["checks"]]
    assert references == ["NumPy", "onnxruntime"]
    assert str(tmp_path / "out" / "libamos.so") in printed["files"]
    assert main(["compile", str(tmp_path / "model.onnx"), "--shape", "x=four"]) == 2
    assert "expected INPUT=SIZES" in capsys.readouterr().err


@needs_compiler
def test_inputs_have_the_names_of_the_model(compiled: CompiledNetwork) -> None:
    (region,) = compiled.regions.values()
    values = random_arrays(region.network)
    names = ['"first.1"', "second", "mask", "half"]
    by_name = compiled(**dict(zip(names, values, strict=True)))
    for result, expected in zip(by_name, compiled(*values), strict=True):
        np.testing.assert_array_equal(result, expected)


@needs_compiler
def test_an_export_that_fails_leaves_the_old_one(
    compiled: CompiledNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libamos.so").write_text("old")

    def failing(source: Path, target: Path) -> None:
        Path(target).write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", failing)
    with pytest.raises(NetworkError, match="export to .*: No space left on device"):
        compiled.export(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["libamos.so"]
    assert (tmp_path / "libamos.so").read_text() == "old"
    (tmp_path / "file").write_text("")
    with pytest.raises(NetworkError, match="export to"):
        compiled.export(tmp_path / "file")
    with pytest.raises(NetworkError, match="No space left on device"):
        compiled.export(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@needs_compiler
def test_exports_to_one_folder_wait_for_each_other(
    compiled: CompiledNetwork, tmp_path: Path
) -> None:
    """The second one would remove the constants of the first before its model is there."""
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        thread = Thread(target=compiled.export, args=(tmp_path,))
        thread.start()
        thread.join(0.5)
        assert thread.is_alive() and not (tmp_path / "model.onnx").exists()
    finally:
        os.close(handle)
    thread.join()
    assert (tmp_path / "model.onnx").exists()


@needs_compiler
def test_a_file_system_may_lock_no_folders(
    compiled: CompiledNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.EBADF, "NFS")))
    assert compiled.export(tmp_path)[-1] == tmp_path / "model.onnx"


def test_a_folder_without_room_for_files_goes(
    compiled: CompiledNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.mkdtemp", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    with pytest.raises(NetworkError, match="full"):
        compiled.export(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@needs_compiler
def test_an_interrupt_leaves_all_files_or_none(
    compiled: CompiledNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, interrupts = os.replace, [KeyboardInterrupt]

    def interrupted(source: Path, target: Path) -> None:
        replace(source, target)
        if interrupts:
            raise interrupts.pop()

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiled.export(tmp_path)
    constants, *names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["example.cpp", "example.py", "libamos.so", "model.onnx"]


def test_the_example_runs_a_model_that_stays_as_it_is(tmp_path: Path) -> None:
    """Its open dimensions stay open; a library of an older export goes."""
    ports = ("x", ["rows", 2, 2]), ("y", ["rows"])
    x, y = ([onnx.helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in ports)
    graph = onnx.helper.make_graph([onnx.helper.make_node("Det", ["x"], ["y"])], "g", x, y)
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    (tmp_path / "libamos.so").write_text("of an older export")
    network = amos.load_network(model, shapes={"x": (3, 2, 2)})
    amos.compile(network, progress=False).export(tmp_path)
    command = [sys.executable, "-P", str(tmp_path / "example.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    assert "float32 [3]" in done.stdout
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"example.cpp", "example.py", "model.onnx"}
