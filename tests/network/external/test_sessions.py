"""Sessions of onnxruntime, whose optimizer makes some quantized models invalid."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import amos
from amos.errors import BuildError
from amos.network.inputs import values_of
from amos.network.network import Port
from amos.network.sessions import open_session, plain_session
from tests.network.models import Builder, normal_inputs


def _pool_bytes(b: Builder) -> tuple[str, str]:
    """Return quantized inputs, and what the optimizer makes invalid.

    Pooling of bytes takes one scale, and the results are quantized with four.
    """
    levels = b.constant(0.25), b.constant(2, "uint8")
    quantized = b.node("QuantizeLinear", b.input("x", (1, 4, 6, 6)), *levels)
    x = b.node("DequantizeLinear", quantized, *levels)
    x = b.node("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4)
    scales = b.constant([0.4, 0.5, 0.3, 1.2])
    x = b.node("QuantizeLinear", x, scales, axis=1)
    return quantized, b.node("DequantizeLinear", x, scales, axis=1)


def test_a_model_is_run_that_the_optimizer_of_onnxruntime_makes_invalid(tmp_path: Path) -> None:
    b = Builder()
    _, y = _pool_bytes(b)
    model = b.model(y)
    onnx.save(model, tmp_path / "model.onnx")
    inputs = normal_inputs(x=(1, 4, 6, 6))
    (expected,) = plain_session(model).run(None, inputs)
    (result,) = open_session(tmp_path / "model.onnx", None, {}).run(None, inputs)
    np.testing.assert_array_equal(result, expected)
    compiled = amos.compile(amos.load_network(model), progress=False)
    np.testing.assert_array_equal(compiled(**inputs), expected)


def test_sums_of_bytes_are_exact_in_a_model_that_the_optimizer_makes_invalid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are those of a branch, and saturate on CPUs without VNNI unless they are optimized."""
    monkeypatch.setattr("amos.machine.cpu._INT8_DOT_PRODUCTS", frozenset())
    b = Builder()
    quantized, y = _pool_bytes(b)
    weights = np.full((6, 8), 127, np.int8)
    names = "weights", "sums"
    product = helper.make_node("MatMulInteger", [quantized, names[0]], [names[1]])
    port = helper.make_tensor_value_info(names[1], TensorProto.INT32, (1, 4, 6, 8))
    constants = [onnx.numpy_helper.from_array(weights, names[0])]
    branch = helper.make_graph([product], "branch", [], [port], constants)
    condition = b.input("condition", (), TensorProto.BOOL)
    sums = b.node("If", condition, then_branch=branch, else_branch=branch)
    sums = b.node("Cast", sums, to=TensorProto.FLOAT)
    inputs = {"x": np.full((1, 4, 6, 6), 60, np.float32), "condition": np.array(True)}
    _, result = plain_session(b.model(y, sums)).run(None, inputs)
    np.testing.assert_array_equal(result, np.full((1, 4, 6, 8), 6 * 242 * 127))


@pytest.mark.parametrize(("largest", "is_set"), [(64, False), (127, True)])
def test_sums_are_set_to_be_exact_where_weights_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int, is_set: bool
) -> None:
    monkeypatch.setattr("amos.machine.cpu._INT8_DOT_PRODUCTS", frozenset())
    b = Builder()
    weights = b.constant(np.full((6, 8), -largest), "int8")
    sums = b.node("MatMulInteger", b.input("x", (4, 6), TensorProto.UINT8), weights)
    onnx.save(b.model(b.node("Cast", sums, to=TensorProto.FLOAT)), tmp_path / "model.onnx")
    session = open_session(tmp_path / "model.onnx", None, {})
    x = np.full((4, 6), 20, np.uint8)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.full((4, 8), -120 * largest))
    with nullcontext() if is_set else pytest.raises(RuntimeError):
        session.get_session_options().get_session_config_entry("session.x64quantprecision")


def test_doubles_are_inputs_of_results_in_bfloat16() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (double[2] x) => (bfloat16[2] y) { y = Cast <to = 16> (x) }"""
    compiled = amos.compile(amos.load_network(parser.parse_model(text)), progress=False)
    x = np.array([1.0, -0.5])
    np.testing.assert_array_equal(compiled(x), x.astype(np.float32))
    np.testing.assert_array_equal(compiled(x=x), x.astype(np.float32))


@pytest.mark.parametrize(("kind", "own"), [("bfloat16", "float32"), ("string", "string")])
def test_doubles_are_no_inputs_of_dtypes_that_numpy_lacks(kind: str, own: str) -> None:
    """It says that float64 equals ``None``."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g ({kind}[2] x) => ({kind}[2] y) {{ y = Identity (x) }}"""
    compiled = amos.compile(amos.load_network(parser.parse_model(text)), progress=False)
    with pytest.raises(BuildError, match=f"input 'x': expected {own} .*, got float64"):
        compiled(np.zeros(2))


@pytest.mark.parametrize("kind", [np.bool_, np.uint8])
def test_truth_values_reach_every_program_as_such(kind: type) -> None:
    """onnxruntime takes no bytes for them."""
    values = values_of(Port("x", (2,), "bool"), np.array([1, 0], kind))
    assert values.dtype == np.bool_ and values.tolist() == [True, False]
