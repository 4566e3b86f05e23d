"""Other precisions: what is rounded, that kernels do as they say, and what a budget chooses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import helper

import amos
from amos.errors import NetworkError
from amos.explore.choosing import Chooser
from amos.network.checks import relative_norm
from amos.network.external.passes import write_passes
from amos.network.inputs import random_arrays
from amos.network.operations import numpy_dtype
from amos.network.precision import attention, rounding
from amos.network.precision.choosing import choose_precision
from amos.network.precision.quantizing import Quantizer
from amos.network.precision.rounding import is_product
from amos.network.precision.variants import Variants, multiplies
from amos.network.sessions import SessionRunner, plain_session
from tests.network.lines import run_graph
from tests.network.models import Builder, residual_network
from tests.network.precisions import multiplies_bfloat16, perceptron, results_of, variants_of


def _rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(numpy_dtype("bfloat16")).astype(np.float64)


def test_factors_are_rounded_and_sums_are_not() -> None:
    """What reads the hidden row reads the rounded one, which is stored once."""
    network = amos.load_network(perceptron())
    rounded = variants_of(network).with_rounding([("Region0", 0), ("Region0", 1)])
    first, second = (task.operator for task in rounded.tasks)
    assert {str(each.dtype) for each in (*first.inputs, first.result)} == {"bfloat16"}
    assert str(second.result.dtype) == "float32"
    (x,) = random_arrays(network)
    first_weight, second_weight = network.graph.initializers.values()
    weights = [
        np.frombuffer(w.raw_data, np.float32).reshape(w.dims) for w in (first_weight, second_weight)
    ]
    hidden = _rounded(np.maximum(_rounded(x) @ _rounded(weights[0]), 0))
    expected = hidden @ _rounded(weights[1]) + hidden
    # A sum that lies between two numbers of bfloat16 may be rounded to either.
    assert relative_norm(results_of(rounded, [x]), expected) < 1e-4
    assert 1e-3 < relative_norm(results_of(rounded, [x]), results_of(network, [x])) < 1e-2


def test_rounding_is_a_pass_whose_model_runs(tmp_path: Path) -> None:
    network = amos.load_network(perceptron())
    rounded = variants_of(network).with_rounding([("Region0", 0)])
    (x,) = random_arrays(network)
    results = {
        path.stem.partition("-")[2]: SessionRunner(plain_session(path), network.inputs)([x])[0]
        for path in write_passes(rounded, tmp_path)
    }
    assert [*results][-3:] == ["round_products", "channels_last", "groups"]
    before, *after = [*results.values()][-4:]
    assert all(relative_norm(each, after[0]) < 1e-6 for each in after)
    assert relative_norm(before, after[0]) > 1e-4


def test_products_can_be_left_out() -> None:
    network = amos.load_network(perceptron())
    rounded = variants_of(network).with_rounding([("Region0", 0)])
    kinds = [str(task.operator.inputs[1].dtype) for task in rounded.tasks]
    assert kinds == ["bfloat16", "float32"]
    (x,) = random_arrays(network)
    assert 1e-4 < relative_norm(results_of(rounded, [x]), results_of(network, [x])) < 1e-2


@pytest.mark.parametrize(
    ("channels", "feature", "is_rounded"),
    [
        (3, "avx512_bf16", False),
        (4, "avx512_bf16", True),
        (3, "amx_bf16", True),
    ],
)
def test_first_layers_of_few_channels_are_not_rounded(
    monkeypatch: pytest.MonkeyPatch, channels: int, feature: str, is_rounded: bool
) -> None:
    """Unless tiles read rows of a window as they are."""
    b = Builder()
    image = b.input("x", (1, channels, 8, 8))
    network = amos.load_network(b.model(b.node("Conv", image, b.random(16, channels, 3, 3))))
    (node,) = filter(is_product, network.regions["Region0"].network.graph.nodes)
    monkeypatch.setattr(rounding, "cpu", lambda: SimpleNamespace(features={feature}))
    assert rounding.can_round(node) == is_rounded


def test_convolutions_with_residual_sums() -> None:
    """Kernels compute what onnxruntime does of the same graph with the same roundings."""
    network = amos.load_network(residual_network())
    variants = variants_of(network)
    places = [*variants.roundable]
    rounded = variants.with_rounding(places)
    arrays = random_arrays(network)
    model = variants.model_of(places)
    (expected,) = SessionRunner(plain_session(model), network.inputs)(arrays)
    assert relative_norm(results_of(rounded, arrays), expected) < 1e-3


def test_errors_of_small_sigmoids_are_those_of_rounding() -> None:
    """onnxruntime's own sigmoid errs by several percent of results of 5e-7."""
    b = Builder()
    product = b.node("MatMul", b.input("x", (8, 64)), b.random(64, 64))
    network = amos.load_network(
        b.model(b.node("Sigmoid", b.node("Sub", product, b.constant(14.5))))
    )
    variants = variants_of(network)
    exact, (x,) = variants._expected[0][0], variants.choosing[0]
    (weight, offset) = network.graph.initializers.values()
    factor = np.frombuffer(weight.raw_data, np.float32).reshape(weight.dims)
    logits = x.astype(np.float64) @ factor - np.frombuffer(offset.raw_data, np.float32)
    assert relative_norm(exact, 1 / (1 + np.exp(-logits))) < 1e-4
    assert variants.sensitivities([[("Region0", 0)]])[0] < 0.02


def test_errors_of_sigmoids_of_float64_are_measured() -> None:
    b = Builder()
    product = b.node("MatMul", b.input("x", (8, 64)), b.random(64, 64))
    result = b.node("Sigmoid", b.node("Cast", product, to=11))
    network = amos.load_network(b.model(b.node("Cast", result, to=1)))
    assert 0 < variants_of(network).sensitivities([[("Region0", 0)]])[0] < 0.02


def test_norms_of_what_is_not_finite() -> None:
    masked = np.array([-np.inf, 1.0, np.nan])
    assert relative_norm(masked * [1, 1.5, 1], masked) == 0.5
    assert relative_norm(np.array([0.0, 1.0, np.nan]), masked) == np.inf
    assert relative_norm(np.array([-np.inf, np.nan, np.nan]), masked) == np.inf


@pytest.mark.long
def test_places_are_the_same_in_every_layout() -> None:
    """Whichever product stays as it is, onnxruntime says so of the graph before layouts, too."""
    network = amos.load_network(residual_network())
    variants, arrays = variants_of(network), random_arrays(network)
    region = network.regions["Region0"].network
    count = sum(is_product(node) for node in region.graph.nodes)
    for place in range(count):
        places = [("Region0", each) for each in range(count) if each != place]
        (expected,) = SessionRunner(plain_session(variants.model_of(places)), network.inputs)(
            arrays
        )
        rounded = variants.with_rounding(places).regions["Region0"].network
        (result,) = run_graph(rounded.graph, *arrays)
        assert relative_norm(result, expected) < 1e-3


def test_integers_by_samples(tmp_path: Path) -> None:
    network = amos.load_network(perceptron())
    samples = np.random.default_rng(1).standard_normal((4, 8, 128)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=samples)
    compiled = amos.compile(network, precision="int8", samples=tmp_path / "x.npz", progress=False)
    assert compiled.precision is not None
    assert compiled.precision.chosen.operators
    assert all(task.operator.inputs[0].dtype == "uint8" for task in compiled.kernels)
    (exact,) = SessionRunner(plain_session(network.source), network.inputs)([samples[0]])
    assert relative_norm(compiled.outputs_of([samples[0]])[0], exact) < 0.05


@pytest.mark.parametrize("opset", [9, 11, 12, 13])
def test_old_models_become_integers(opset: int) -> None:
    """Weights have a scale for each channel, as opset 13 allows; biases may have two dimensions."""
    b = Builder()
    x = b.node("Conv", b.input("x", (1, 4, 9, 9)), b.random(6, 4, 3, 3), b.random(6))
    x = b.node("GlobalAveragePool", b.node("Relu", x))
    x = b.node("MatMul", b.node("Flatten", x), b.random(6, 5))
    model = b.model(b.node("Softmax", b.node("Add", x, b.random(1, 5)), axis=1))
    model.opset_import[0].version = opset
    weights = [helper.make_tensor_value_info(x.name, x.data_type, x.dims) for x in b.weights]
    if opset == 9:  # weights are inputs, too
        model.ir_version = 3
        model.graph.input.extend(weights)
    elif opset == 13:
        model.graph.value_info.extend(weights)
    network = amos.load_network(model)
    samples = np.random.default_rng(1).standard_normal((4, 1, 4, 9, 9)).astype(np.float32)
    quantized = Quantizer(network, [[each] for each in samples]).quantize()
    assert any(each.quantized for each in quantized.networks.values())
    runs = (SessionRunner(plain_session(each.source), each.inputs) for each in (network, quantized))
    (exact,), (got,) = (run([samples[0]]) for run in runs)
    assert relative_norm(got, exact) < 0.05


@pytest.mark.skipif(not multiplies("float16"), reason="this CPU has neither f16c nor avx512f")
def test_weights_in_float16() -> None:
    """A product of one row takes as long as its weights to come; 10 bits of mantissa are kept."""
    b = Builder()
    hidden = b.node("Relu", b.node("MatMul", b.input("x", (1, 1024)), b.random(1024, 1024)))
    network = amos.load_network(b.model(b.node("MatMul", hidden, b.random(1024, 1024))))
    compiled = amos.compile(network, precision="f16", progress=False)
    assert compiled.precision is not None
    assert compiled.precision.chosen.name == "f16"
    assert "float16" in {str(x.dtype) for task in compiled.kernels for x in task.operator.inputs}
    (x,) = random_arrays(network)
    error = relative_norm(compiled.outputs_of([x])[0], results_of(network, [x]))
    assert 1e-5 < error < 1e-3


@pytest.mark.skipif(not multiplies("float16"), reason="this CPU has neither f16c nor avx512f")
def test_values_beyond_the_range_of_float16_are_refused() -> None:
    b = Builder()
    large = b.constant(np.full((1024, 1024), 1e5))
    network = amos.load_network(b.model(b.node("MatMul", b.input("x", (1, 1024)), large)))
    with pytest.raises(NetworkError, match="precision f16: some values are beyond the range"):
        choose_precision(network, "f16")


@multiplies_bfloat16
@pytest.mark.long
def test_products_of_attention_are_judged_as_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    x = b.input("x", (1, 128, 32))
    scores = b.node("MatMul", x, b.node("Transpose", x, perm=[0, 2, 1]))
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), x)
    big = b.node("MatMul", mixed, b.random(32, 4096))  # with most of the multiplications
    network = amos.load_network(b.model(b.node("MatMul", big, b.random(4096, 32))))
    variants = Variants(network)
    (name,) = network.regions
    before, after = variants._times[name, 0]
    assert (before, after) == variants._times[name, 1] and after < before
    assert {(name, 0), (name, 1)} <= variants.saved.keys()
    monkeypatch.setattr(attention, "lower_chain", lambda *_: ())  # as where no tile has room
    plain = network.regions[name].network
    assert not [*attention.predict_attention(plain, plain, Chooser("host"))]
