"""Networks on a unit that a simulator runs, and onnxruntime for everything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import amos
from amos._progress import ProgressLine
from amos.cli.app import main
from amos.errors import BuildError, NetworkError
from amos.network.inputs import random_arrays
from amos.network.sessions import plain_session
from amos.streams.networks import UnitNetwork
from amos.streams.runtime import StreamKernel
from tests.network.quantized_models import CASES, SHAPE, Model, convolution
from tests.support.architects import BOARD, UNIT, files

pytest.importorskip("onnxruntime")


def _compiled(model: Any, **options: Any) -> UnitNetwork:
    return amos.compile_for_unit(amos.load_network(model), BOARD, [UNIT], progress=False, **options)


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.__name__ in {"_transposed", "_residual", "moves"}],
    ids=lambda case: case.__name__.strip("_"),
)
def test_a_network_computes_what_onnxruntime_does(case: Callable[[Model], str]) -> None:
    """Layers are compared with NumPy, and the whole with the model of its files."""
    small = Model(3)
    network = amos.load_network(small.model(case(small)))
    compiled = amos.compile_for_unit(network, BOARD, [UNIT], progress=False)
    assert compiled.check is None or compiled.check.passed
    assert compiled.compared == {run.name for run in compiled.runs}
    assert bool(compiled.runs) == any("s8" in str(t) or "u8" in str(t) for t in network.tasks)


@pytest.fixture(scope="module")
def compiled() -> UnitNetwork:
    """A strided layer, a pooling, and one more layer."""
    small = Model(5)
    first = convolution(small)
    weight, scales = small.weight(6, 5, 1, 1)
    bias = small.bias(np.float32(0.05) * scales)
    pooled = small.add("MaxPool", first, kernel_shape=[2, 2], strides=[2, 2])
    x = small.pair(pooled, 0.05, 9)
    return _compiled(small.model(small.pair(small.add("Conv", x, weight, bias), 0.1, 7)))


def test_files_run_in_onnxruntime(compiled: UnitNetwork, tmp_path: Path) -> None:
    assert len(compiled.runs) == 2
    written = compiled.export(tmp_path)
    assert all(path.exists() for path in written)
    arrays = random_arrays(compiled.network, seed=4)
    session = plain_session(str(tmp_path / "model.onnx"))
    (expected,) = session.run(None, {"x": arrays[0]})
    np.testing.assert_allclose(compiled(*arrays), expected, rtol=1e-6)
    functions = {f.name for f in onnx.load(tmp_path / "model.onnx").functions}
    assert {run.name for run in compiled.runs} < functions
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["cycles"] == sum(layer["cycles"] for layer in report["layers"])
    for run in compiled.runs:
        stream = json.loads((tmp_path / "streams" / run.stream / "stream.json").read_text())
        assert stream["simulated_cycles"] == run.cycles
        assert 0 < run.utilization <= 1
        assert 0 < run.transfer_share <= 1
    assert "every element of 2 layers equals NumPy's" in str(compiled)


def test_constants_of_layers_are_written(compiled: UnitNetwork, tmp_path: Path) -> None:
    """With one number a channel that the host adds."""
    written = {path.name: path.read_bytes() for path in compiled.export(tmp_path)}
    for layer in (layer for each in compiled.layers.values() for layer in each):
        assert layer.correction is not None
        assert layer.correction.shape == (1, 1, 1, layer.site.result.shape[-1])
        weights = layer.kernel.prepare(layer.constants)["weight"]
        assert written[f"{layer.name}.weight.bin"] == weights.tobytes()
        assert written[f"{layer.name}.added.bin"] == layer.correction.tobytes()


def test_a_wrong_stream_is_refused(compiled: UnitNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    right = StreamKernel.result
    monkeypatch.setattr(StreamKernel, "result", lambda self, x: right(self, x) + 1)
    with pytest.raises(NetworkError, match="does not compute what NumPy does"):
        compiled.verify(None, ProgressLine(False))


def test_what_a_call_refuses(compiled: UnitNetwork) -> None:
    with pytest.raises(BuildError, match="x"):
        compiled(np.zeros((1, 2), np.float32))
    with pytest.raises(NetworkError, match="unknown input 'z'"):
        compiled(z=np.zeros(SHAPE, np.float32))
    for machine in ("xeon_6240", "a100"):
        with pytest.raises(NetworkError, match=f"'{machine}': expected a unit with a simulator"):
            amos.compile_for_unit(compiled.network, machine, progress=False)
    with pytest.raises(NetworkError, match="budget: expected a number from 0 on, got -1"):
        amos.compile_for_unit(compiled.network, BOARD, [UNIT], budget=-1, progress=False)


def test_a_whole_that_differs_by_more_than_rounding_is_refused(
    compiled: UnitNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By more than a quantum, and than the two modes of onnxruntime differ from each other."""
    arrays = random_arrays(compiled.network)
    assert compiled.check is not None
    assert compiled.check.passed
    right = compiled(*arrays)
    monkeypatch.setattr(UnitNetwork, "_run", lambda self, *_, **__: (right + 0.25,))
    words = r"differs from onnxruntime by 0\.\d+, 0\.\d+ is allowed"
    with pytest.raises(NetworkError, match=words):
        compiled.verify(None, ProgressLine(False))
    # Modes of which one has no number allow nothing.
    monkeypatch.setattr(
        "amos.streams.networks.compiled.evaluate_reference",
        lambda *_, optimized=True: [right if optimized else right * np.nan],
    )
    with pytest.raises(NetworkError, match=words):
        compiled.verify(None, ProgressLine(False))


def test_a_model_that_its_framework_does_not_run_is_not_compared(
    compiled: UnitNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no kernel for this operator")

    monkeypatch.setattr("amos.streams.networks.reference.plain_session", refuse)
    unchecked = compiled.verify(None, ProgressLine(False))
    assert unchecked.check is None
    assert "not compared as a whole: small: onnxruntime: no kernel for this" in str(unchecked)


def test_a_model_that_draws_numbers_is_not_compared_as_a_whole() -> None:
    """No two calls have equal results; each layer still equals NumPy's."""
    small = Model(3)
    quantized = convolution(small)
    noise = small.add("RandomNormalLike", quantized, dtype=onnx.TensorProto.FLOAT)
    compiled = _compiled(small.model(small.add("Add", quantized, noise)))
    assert compiled.check is None and len(compiled.compared) == 1
    assert "not compared as a whole: small draws random numbers" in str(compiled)


def test_layers_that_differ_on_the_host_share_a_stream() -> None:
    small = Model(2)
    x = small.pair("x", 0.05, 7)
    layers = list[str]()
    for _ in range(2):
        weight, scales = small.weight(4, 4, 1, 1)
        y = small.add("Conv", x, weight, small.bias(np.float32(0.05) * scales))
        layers.append(small.pair(small.add("Relu", y) if layers else y, 0.1, 3))
    unverified = _compiled(small.model(*layers), verify=False)
    first, second = unverified.runs
    assert (first.stream, second.stream) == (first.name, first.name)
    assert (first.equal, unverified.check) == (None, None)


def test_products_that_are_no_tasks_count() -> None:
    small = Model(0)
    doubles = small.add("Cast", "x", to=onnx.TensorProto.DOUBLE)
    product = small.add("Cast", small.add("MatMul", doubles, doubles), to=onnx.TensorProto.FLOAT)
    results = [convolution(small), product]
    (layer,) = (compiled := _compiled(small.model(*results), verify=False)).runs
    assert compiled.reasons == {"MatMul": "dtype float64 is not supported"}
    assert compiled.unit_share == layer.products / (layer.products + 2 * 4 * 6**3)
    integers = small.add("Cast", "x", to=onnx.TensorProto.INT32)
    external = small.add("Cast", small.add("MatMul", integers, integers), to=onnx.TensorProto.FLOAT)
    compiled = _compiled(small.model(*results, external), verify=False)
    assert compiled.unit_share == layer.products / (layer.products + 2 * 2 * 4 * 6**3)
    assert "float64 is not supported; dtype int32 is not supported" in compiled.reasons["MatMul"]
    network = replace(compiled.network, external={("MatMul", "no dtype of AMOS"): 1})
    unknown = replace(compiled, network=network)
    assert unknown.unit_share is None
    assert "an unknown share of the products" in str(unknown)


@pytest.mark.slow
def test_floats_stay_with_the_host_until_they_are_quantized() -> None:
    pytest.importorskip("onnxruntime.quantization")
    rng = np.random.default_rng(0)
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    weight = onnx.numpy_helper.from_array(
        rng.standard_normal((8, 4, 1, 1)).astype(np.float32), "weight"
    )
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "weight"], ["y"])],
        "floats",
        [helper.make_tensor_value_info("x", floats, SHAPE)],
        [helper.make_tensor_value_info("y", floats, None)],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    plain = _compiled(model)
    assert (plain.runs, plain.utilization, plain.cycles) == ((), None, 0)
    assert len(plain.reasons) == 1
    assert "products of floats are quantized by samples" in str(plain)
    samples = [[rng.standard_normal(SHAPE).astype(np.float32)] for _ in range(2)]
    quantized = _compiled(model, samples=samples, budget=0.5)
    assert len(quantized.runs) == 1
    assert quantized.quantization_error is not None
    assert 0 < quantized.quantization_error < 0.1
    assert "quantized to int8, which changes results by" in str(quantized)
    with pytest.raises(NetworkError, match=r"int8 changes results by .*the budget of 1e-05"):
        _compiled(model, samples=samples, budget=1e-5)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = Model(0)
    onnx.save(small.model(convolution(small)), tmp_path / "small.onnx")
    board, unit = files(tmp_path)
    command = ["compile", str(tmp_path / "small.onnx"), "--machine", board, "--intrinsic", unit]
    assert main([*command, "-o", str(tmp_path / "out"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["unit_share"], len(printed["layers"])) == (1.0, 1)
    assert printed["layers"][0]["equal"] is True
    assert str(tmp_path / "out" / "timeline.html") in printed["files"]
    assert main(["compile", str(tmp_path / "small.onnx"), "--machine", board, "--measure"]) == 2
    assert "amos: --measure: only for this CPU" in capsys.readouterr().err
    assert main(["compile", str(tmp_path / "small.onnx"), "--intrinsic", unit]) == 2
    assert "expected --machine with a unit" in capsys.readouterr().err
