"""Compiled networks run as operators of onnxruntime, which needs no AMOS for it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import amos
from amos.codegen.c.compiler import c_compiler
from amos.errors import NetworkError
from amos.network.external.compiled import CompiledNetwork
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.race import Timing
from tests.network.models import Builder

needs_compiler = pytest.mark.skipif(c_compiler() is None, reason="needs a C compiler")

#: Runs an exported model where AMOS cannot be imported.
_ALONE = """
import sys
sys.modules["amos"] = None
import json, pathlib, threading, numpy as np, onnxruntime
folder = pathlib.Path(sys.argv[1])
results = []
for threads in (1, 2, 4):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(str(folder / "libamos.so"))
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    data = np.load(folder / "inputs.npz")
    unaligned = {}
    for name in data.files:
        bytes_ = np.empty(data[name].nbytes + 4, np.uint8)[4:]
        unaligned[name] = bytes_.view(data[name].dtype).reshape(data[name].shape)
        unaligned[name][...] = data[name]
    outputs = [session.run(None, unaligned)[0] for _ in range(3)]
    def call():
        outputs.append(session.run(None, unaligned)[0])
    callers = [threading.Thread(target=call) for _ in range(4)]
    [each.start() for each in callers]
    [each.join() for each in callers]
    expected = np.load(folder / "expected.npy")
    results += [float(np.abs(each - expected).max()) for each in outputs]
print(json.dumps(results))
"""


def _model(channels: int = 8, seed: int = 0) -> Any:
    b = Builder(seed)
    x = b.node("Relu", b.convolution(b.input("image", (1, 3, 12, 12)), (channels, 3, 3, 3)))
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Flatten", b.node("GlobalAveragePool", b.convolution(x, (8, channels, 3, 3))))
    return b.model(b.node("Gemm", x, b.random(10, 8), b.random(10), transB=1))


def partly() -> Any:
    """Products before and behind what depends on values."""
    b = Builder()
    x = b.node("MatMul", b.input("x", (4, 16)), b.random(16, 8))
    order = b.node("Cast", b.node("NonZero", x), to=TensorProto.FLOAT)
    total = b.node("ReduceSum", order, keepdims=0)
    y = b.node("MatMul", b.node("Mul", x, total), b.random(8, 8))
    graph = helper.make_graph(
        b.nodes, "partly", b.inputs, [helper.make_tensor_value_info(y, 1, None)], b.weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _expected(model: Any, values: dict[str, Any]) -> np.ndarray:
    result: np.ndarray = onnxruntime.InferenceSession(model.SerializeToString()).run(None, values)[
        0
    ]
    return result


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    network = amos.load_network(_model())
    assert network.is_single_region
    amos.compile(network, progress=False, verify=False).export(folder)
    return folder


@needs_compiler
def test_an_exported_model_runs_without_amos(exported: Path) -> None:
    image = np.random.default_rng(0).standard_normal((1, 3, 12, 12)).astype("float32")
    np.savez(exported / "inputs.npz", image=image)
    np.save(exported / "expected.npy", _expected(_model(), {"image": image}))
    allowed = os.sched_getaffinity(0)
    for cpus in (allowed, {min(allowed)}):  # on one CPU helpers are late
        done = subprocess.run(
            [sys.executable, "-c", _ALONE, str(exported)],
            capture_output=True,
            text=True,
            check=True,
            preexec_fn=partial(os.sched_setaffinity, 0, cpus),
        )
        differences = json.loads(done.stdout)
        assert len(differences) == 21
        assert max(differences) < 1e-4


def _session(*folders: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for folder in folders:
        options.register_custom_ops_library(str(folder / "libamos.so"))
    return onnxruntime.InferenceSession(folders[0] / "model.onnx", options)


@needs_compiler
def test_inputs_of_another_shape_are_refused(exported: Path, tmp_path: Path) -> None:
    """Also where they have as many elements, and onnxruntime does not know the shape."""
    model = onnx.load(exported / "model.onnx")
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.ClearField("shape")
    shutil.copytree(exported, tmp_path / "open")
    onnx.save(model, tmp_path / "open" / "model.onnx")
    session = _session(tmp_path / "open")
    session.run(None, {"image": np.ones((1, 3, 12, 12), "float32")})
    session.run(None, {"image": np.ones((3, 12, 12), "float32")})
    for shape in (3, 1, 12, 12), (3, 144), (1, 3, 12, 12, 2), ():
        message = f"input 0 of shape (1, 3, 12, 12), got ({', '.join(map(str, shape))});"
        with pytest.raises(Exception, match=re.escape(message)):
            session.run(None, {"image": np.ones(shape, "float32")})


@needs_compiler
def test_two_models_live_in_one_process(exported: Path, tmp_path: Path) -> None:
    second = amos.compile(amos.load_network(_model(4, seed=1)), progress=False, verify=False)
    second.export(tmp_path)
    image = np.ones((1, 3, 12, 12), "float32")
    for model, folders in (
        (_model(), (exported, tmp_path)),
        (_model(4, seed=1), (tmp_path, exported)),
    ):
        (result,) = _session(*folders).run(None, {"image": image})
        np.testing.assert_allclose(result, _expected(model, {"image": image}), atol=1e-4)


@needs_compiler
def test_a_library_refuses_constants_that_are_not_its_own(exported: Path, tmp_path: Path) -> None:
    for path in exported.iterdir():
        if path.suffix in (".so", ".onnx", ".bin"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (constants,) = tmp_path.glob("constants-*.bin")
    data = constants.read_bytes()
    _refuses(tmp_path, "holds other constants", lambda: constants.write_bytes(data[:-1] + b"?"))
    _refuses(tmp_path, "holds other constants", lambda: constants.write_bytes(data + b"more"))
    _refuses(tmp_path, "are not beside it", constants.unlink)


def _refuses(folder: Path, message: str, damage: Any) -> None:
    """A process of its own, as a library that is loaded has its constants already."""
    damage()
    code = (
        "import sys, onnxruntime\n"
        "onnxruntime.SessionOptions().register_custom_ops_library(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "libamos.so")], capture_output=True, text=True
    )
    assert done.returncode
    assert message in done.stderr


@needs_compiler
def test_a_library_refuses_a_cpu_that_lacks_an_instruction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amos.machine.cpu import cpu
    from amos.network.external import library

    features = cpu().features | {"imaginary"}
    monkeypatch.setattr(library, "LLVM_FEATURES", {"imaginary": "imaginary"})
    model = amos.compile(amos.load_network(_model()), progress=False, verify=False)
    assert isinstance(model, CompiledNetwork)
    monkeypatch.setattr(library, "cpu", lambda: type("Cpu", (), dict(features=features, cores=2)))
    library.write_library([*model.regions.values()], tmp_path)
    _refuses(tmp_path, "compiled for a CPU with imaginary, which this one lacks", lambda: None)


@needs_compiler
def test_what_amos_does_not_take_stays_with_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timing, "wins", True)
    model = partly()
    onnx.save(model, tmp_path / "partly.onnx")
    network = amos.load_network(tmp_path / "partly.onnx")
    assert isinstance(network, PartitionedNetwork)
    assert ("NonZero", "shape by values") in network.external
    assert len(network.regions) == 2 and len(network.tasks) == 2
    assert "shape by values" in str(network.report())
    compiled = amos.compile(network, progress=False)
    assert isinstance(compiled, CompiledNetwork)
    assert [each.reference for each in compiled.checks] == ["NumPy", "NumPy", "onnxruntime"]
    x = np.random.default_rng(0).standard_normal((4, 16)).astype("float32")
    np.testing.assert_allclose(compiled(x), _expected(model, {"x": x}), rtol=1e-3)
    np.testing.assert_array_equal(compiled(x=x), compiled(x))
    quiet = compiled.with_session({"session.force_spinning_stop": "1"})
    np.testing.assert_array_equal(quiet(x), compiled(x))
    with pytest.raises(NetworkError, match="onnxruntime refuses the model"):
        compiled.with_session({"session.intra_op.allow_spinning": "x" * 9999})(x)
    with pytest.raises(NetworkError, match="unknown input 'y'"):
        compiled(y=x)
    names = sorted(path.name for path in compiled.export(tmp_path / "out"))
    assert names[-2:] == ["libamos.so", "model.onnx"] and names[0].startswith("constants-")
    (result,) = _session(tmp_path / "out").run(None, {"x": x})
    np.testing.assert_array_equal(result, compiled(x))


def test_a_region_that_is_slower_stays_with_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timing, "wins", False)
    compiled = amos.compile(amos.load_network(partly()), progress=False)
    assert isinstance(compiled, CompiledNetwork)
    assert not compiled.regions and compiled.library is None
    assert {*os.listdir(compiled.folder.path)} == {".lock", "model.onnx"}
    x = np.ones((4, 16), "float32")
    np.testing.assert_allclose(compiled(x), _expected(partly(), {"x": x}), rtol=1e-3)


def test_the_compiler_may_be_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from amos.codegen.c import compiler

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    assert compiler.compiler_command() is None
    network = amos.load_network(partly())
    with pytest.raises(NetworkError, match="apt install gcc, or pip install ziglang"):
        amos.compile(network, progress=False, verify=False)
    monkeypatch.setattr(compiler, "find_spec", lambda name: name == "ziglang")
    assert compiler.compiler_command() == [sys.executable, "-P", "-m", "ziglang", "cc"]
