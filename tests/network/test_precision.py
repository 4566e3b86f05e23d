"""Other precisions: what is rounded, that kernels do as they say, and what a budget chooses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import amos
from amos.cli.app import app
from amos.errors import NetworkError
from amos.explore.choosing import Chooser
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.passes import write_passes
from amos.network.external.sessions import run_session
from amos.network.frontend import plain_session
from amos.network.model import random_arrays
from amos.network.operations import numpy_dtype
from amos.network.precision import attention, choosing, rounding
from amos.network.precision.choosing import choose_precision
from amos.network.precision.frontier import Errors, Exclusion, Frontier, Variant
from amos.network.precision.rounding import is_product
from amos.network.precision.samples import read_samples
from amos.network.precision.variants import (
    Variants,
    has_bfloat16,
    multiplies,
    relative_norm,
)
from tests.network.lines import run_graph
from tests.network.models import Builder, residual_network

multiplies_bfloat16 = pytest.mark.skipif(
    not has_bfloat16(), reason="this CPU has neither avx512_bf16 nor amx_bf16"
)


def _perceptron(width: int = 128) -> Any:
    """Two products with a ReLU between, whose hidden row another operator reads as well."""
    b = Builder()
    hidden = b.node("Relu", b.node("MatMul", b.input("x", (8, width)), b.random(width, width)))
    return b.model(b.node("Add", b.node("MatMul", hidden, b.random(width, width)), hidden))


def _rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(numpy_dtype("bfloat16")).astype(np.float64)


def _variants(network: PartitionedNetwork) -> Variants:
    return Variants(network, read_samples(network, None))


def _results(network: PartitionedNetwork, arrays: Sequence[np.ndarray]) -> np.ndarray:
    (result,) = amos.compile(network, progress=False).outputs_of(arrays)
    return result


def test_factors_are_rounded_and_sums_are_not() -> None:
    """What reads the hidden row reads the rounded one, which is stored once."""
    network = amos.load_network(_perceptron())
    rounded = _variants(network).with_rounding({"Region0": frozenset()})
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
    assert relative_norm(_results(rounded, [x]), expected) < 1e-4
    assert 1e-3 < relative_norm(_results(rounded, [x]), _results(network, [x])) < 1e-2


def test_rounding_is_a_pass_whose_model_runs(tmp_path: Path) -> None:
    network = amos.load_network(_perceptron())
    rounded = _variants(network).with_rounding({"Region0": frozenset({1})})
    (x,) = random_arrays(network)
    results = {
        path.stem.partition("-")[2]: run_session(plain_session(path), network.inputs, [x])[0]
        for path in write_passes(rounded, tmp_path)
    }
    assert [*results][-3:] == ["round_products", "channels_last", "groups"]
    before, *after = [*results.values()][-4:]
    assert all(relative_norm(each, after[0]) < 1e-6 for each in after)
    assert relative_norm(before, after[0]) > 1e-4


def test_products_can_be_left_out() -> None:
    network = amos.load_network(_perceptron())
    rounded = _variants(network).with_rounding({"Region0": frozenset({1})})
    kinds = [str(task.operator.inputs[1].dtype) for task in rounded.tasks]
    assert kinds == ["bfloat16", "float32"]
    (x,) = random_arrays(network)
    assert 1e-4 < relative_norm(_results(rounded, [x]), _results(network, [x])) < 1e-2


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
    variants = _variants(network)
    places = {"Region0": frozenset[int]()}
    rounded = variants.with_rounding(places)
    arrays = random_arrays(network)
    model = variants.model_of(places)
    (expected,) = run_session(plain_session(model), network.inputs, arrays)
    assert relative_norm(_results(rounded, arrays), expected) < 1e-3


def test_errors_of_small_sigmoids_are_those_of_rounding() -> None:
    """onnxruntime's own sigmoid errs by several percent of results of 5e-7."""
    b = Builder()
    product = b.node("MatMul", b.input("x", (8, 64)), b.random(64, 64))
    network = amos.load_network(
        b.model(b.node("Sigmoid", b.node("Sub", product, b.constant(14.5))))
    )
    variants = _variants(network)
    exact, (x,) = variants._expected[0][0], variants.choosing[0]
    (weight, offset) = network.graph.initializers.values()
    factor = np.frombuffer(weight.raw_data, np.float32).reshape(weight.dims)
    logits = x.astype(np.float64) @ factor - np.frombuffer(offset.raw_data, np.float32)
    assert relative_norm(exact, 1 / (1 + np.exp(-logits))) < 1e-4
    assert variants.sensitivity([("Region0", 0)]) < 0.02


def test_errors_of_sigmoids_of_float64_are_measured() -> None:
    b = Builder()
    product = b.node("MatMul", b.input("x", (8, 64)), b.random(64, 64))
    result = b.node("Sigmoid", b.node("Cast", product, to=11))
    network = amos.load_network(b.model(b.node("Cast", result, to=1)))
    assert 0 < _variants(network).sensitivity([("Region0", 0)]) < 0.02


def test_norms_of_what_is_not_finite() -> None:
    masked = np.array([-np.inf, 1.0, np.nan])
    assert relative_norm(masked * [1, 1.5, 1], masked) == 0.5
    assert relative_norm(np.array([0.0, 1.0, np.nan]), masked) == np.inf
    assert relative_norm(np.array([-np.inf, np.nan, np.nan]), masked) == np.inf


@pytest.mark.long
def test_places_are_the_same_in_every_layout() -> None:
    """Whichever product stays as it is, onnxruntime says so of the graph before layouts, too."""
    network = amos.load_network(residual_network())
    variants, arrays = _variants(network), random_arrays(network)
    region = network.regions["Region0"].network
    count = sum(is_product(node) for node in region.graph.nodes)
    for place in range(count):
        excluded = {"Region0": frozenset({place})}
        (expected,) = run_session(
            plain_session(variants.model_of(excluded)), network.inputs, arrays
        )
        rounded = variants.with_rounding(excluded).regions["Region0"].network
        (result,) = run_graph(rounded.graph, *arrays)
        assert relative_norm(result, expected) < 1e-3


@multiplies_bfloat16
@pytest.mark.long
def test_auto_is_the_fastest_within_the_budget() -> None:
    network = amos.load_network(_perceptron(512))
    wide = amos.compile(network, precision="auto", budget=0.05, progress=False)
    assert wide.precision is not None
    assert wide.precision.chosen.name == "bf16"
    assert str(wide).startswith("precision bf16 in 2 products: results differ by 0.00")
    assert 0 < wide.precision.chosen.error < 0.05
    (x,) = random_arrays(network)
    exact = _results(network, [x])
    assert relative_norm(wide.outputs_of([x])[0], exact) < 0.01
    narrow = amos.compile(network, precision="auto", budget=1e-6, progress=False)
    assert narrow.precision is not None
    assert narrow.precision.chosen.name == "f32"
    assert relative_norm(narrow.outputs_of([x])[0], exact) < 1e-5
    # Some of the products fit between the two.
    variants = _variants(network)
    budget = 1.5 * min(variants.sensitivity([("Region0", n)]) for n in range(2))
    between = amos.compile(network, precision="auto", budget=budget, progress=False)
    assert between.precision is not None
    chosen = between.precision.chosen
    assert chosen.name == "mixed"
    assert len(chosen.operators) == 1
    assert 0 < chosen.errors.choosing <= 0.8 * budget
    assert chosen.errors.confirming is not None and 0 < chosen.errors.confirming <= budget
    assert [*chosen.excluded.values()] == [Exclusion("over the budget")]
    # All of them may fit in f16, which was tried, too.
    names = [row.name for row in between.precision.variants]
    assert "f16" in names or any(why.startswith("f16") for why in between.precision.refused)


@multiplies_bfloat16
@pytest.mark.long
def test_random_inputs_that_no_product_reaches_choose_nothing() -> None:
    """Beyond a limit, which no random number is, the results are zeros."""
    b = Builder()
    product = b.node("MatMul", b.input("x", (8, 128)), b.random(128, 128))
    gate = b.node("Greater", b.input("level", ()), b.constant(np.array(1e6)))
    model = b.model(b.node("Where", gate, product, b.constant(np.zeros(()))))
    network = amos.load_network(model)
    frontier = choose_precision(network, "auto")
    assert frontier.chosen.name == "f32"
    assert "bf16: no result of random inputs depends on it; it needs samples" in frontier.refused
    samples = [[random_arrays(network, seed)[0], np.float32(1e7)] for seed in range(2)]
    assert choose_precision(network, "auto", samples=samples).chosen.name != "f32"


def test_without_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "has_bfloat16", lambda: False)
    monkeypatch.setattr(choosing, "multiplies", lambda factors: False)
    network = amos.load_network(_perceptron())
    with pytest.raises(NetworkError, match="this CPU does not multiply bf16"):
        amos.compile(network, precision="bf16", progress=False)
    assert amos.compile(network, precision="auto", progress=False).precision is None
    assert str(choose_precision(network, "auto")) == (
        "precision f32: this CPU does not multiply bf16 (amx_bf16, avx512_bf16); "
        "this CPU does not multiply f16 (avx512f, f16c); int8 needs samples, which give the ranges"
    )


def test_integers_by_samples(tmp_path: Path) -> None:
    network = amos.load_network(_perceptron())
    samples = np.random.default_rng(1).standard_normal((4, 8, 128)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=samples)
    compiled = amos.compile(network, precision="int8", samples=tmp_path / "x.npz", progress=False)
    assert compiled.precision is not None
    assert compiled.precision.chosen.operators
    assert all(task.operator.inputs[0].dtype == "uint8" for task in compiled.kernels)
    (exact,) = run_session(plain_session(network.source), network.inputs, [samples[0]])
    assert relative_norm(compiled.outputs_of([samples[0]])[0], exact) < 0.05


@multiplies_bfloat16
def test_accuracy_instead_of_a_norm() -> None:
    """The budget is then the loss of it that is allowed."""
    network = amos.load_network(_perceptron(512))

    def accuracy(results: Sequence[np.ndarray]) -> float:
        return float(np.mean(results[0] > 0))

    frontier = choose_precision(network, "auto", budget=0.5, accuracy=accuracy)
    assert frontier.chosen.name == "bf16"
    assert "(loss of accuracy) on 1 random input, by" in str(frontier)
    with pytest.raises(NetworkError, match="accuracy: expected a finite number, got nan"):
        choose_precision(network, "auto", accuracy=lambda _: float("nan"))

    def raising(results: Sequence[np.ndarray]) -> float:
        raise ValueError("no labels")

    with pytest.raises(NetworkError, match="accuracy: ValueError: no labels"):
        choose_precision(network, "bf16", accuracy=raising)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "f17"}, "precision: expected f32, bf16, f16, int8, auto, got 'f17'"),
        ({"precision": "auto", "budget": -1}, "budget: expected a number from 0 on, got -1"),
        ({"precision": "auto", "budget": "1%"}, "budget: expected a number from 0 on"),
        ({"precision": "int8"}, "precision int8: int8 needs samples"),
        ({"precision": "auto", "samples": []}, "samples: there is none"),
        ({"precision": "auto", "samples": 3}, "samples: expected a file or inputs of calls, got 3"),
        ({"precision": "auto", "samples": [3]}, "samples: expected inputs by name or in order"),
        ({"precision": "auto", "samples": [{"y": 0}]}, "unknown input 'y'"),
        ({"precision": "auto", "samples": "none.npz"}, "samples 'none.npz': .*No such file"),
        (
            {"precision": "auto", "samples": [np.zeros((8, 127), np.float32)]},
            r"samples: 'x' is float32 of shape \(8, 128\), got float32 of shape \(8, 127\)",
        ),
        (
            {"precision": "auto", "samples": [np.full((8, 128), np.nan, np.float32)]},
            "samples: 'x' has elements that are not finite",
        ),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    network = amos.load_network(_perceptron())
    with pytest.raises(NetworkError, match=message):
        amos.compile(network, progress=False, **options)


def test_files_of_samples_are_checked(tmp_path: Path) -> None:
    network = amos.load_network(_perceptron())
    np.savez(tmp_path / "y.npz", y=np.zeros((8, 128), np.float32))
    with pytest.raises(NetworkError, match="no input 'y'; inputs are x"):
        read_samples(network, tmp_path / "y.npz")
    np.save(tmp_path / "x.npy", np.zeros((8, 128), np.float32))
    with pytest.raises(NetworkError, match="expected a file of numpy.savez"):
        read_samples(network, tmp_path / "x.npy")
    for name, content in {"empty": b"", "text": b"x", "torn": b"PK\3\4 torn"}.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(NetworkError, match=f"samples '.*{name}.npz'"):
            read_samples(network, tmp_path / f"{name}.npz")
    np.savez_compressed(tmp_path / "x.npz", x=random_arrays(network)[0])
    content = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "x.npz").write_bytes(content[:200] + b"\xff" * 50 + content[250:])
    with pytest.raises(NetworkError, match="samples '.*x.npz': .*decompressing"):
        read_samples(network, tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", x=np.zeros((8, 128), np.float32))
    assert len(read_samples(network, tmp_path / "x.npz")) == 1  # without an axis of samples


def test_the_frontier_is_reported(tmp_path: Path) -> None:
    import onnx

    file = tmp_path / "model.onnx"
    onnx.save(_perceptron(512), file)
    command = ["report", str(file), "--precision", "auto"]
    values = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert {"precision", "error", "predicted_seconds", "groups"} <= values["frontier"][0].keys()
    assert values["chosen"] in [row["precision"] for row in values["frontier"]]
    page = tmp_path / "page.html"
    output = CliRunner().invoke(app, [*command, "--plot", str(page)]).stdout
    assert "error against predicted time" in page.read_text(encoding="utf-8")
    assert f"precision {values['chosen']}" in output


@multiplies_bfloat16
def test_samples_that_are_held_back_confirm_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps within the budget on half of the samples only is not chosen."""
    network = amos.load_network(_perceptron(512))
    samples = [random_arrays(network, seed) for seed in range(4)]
    usual = Variants._differences

    def differ(self: Variants, model: Any, inputs: Any) -> list[float]:
        """Other samples have twice the error."""
        return [(1 + (n >= 2)) * each for n, each in enumerate(usual(self, model, inputs))]

    choice = choose_precision(network, "auto", budget=0.01, samples=samples)
    errors = choice.chosen.errors
    assert choice.chosen.name == "bf16" and errors.confirming is not None
    assert (choice.sample_count, choice.held_back_count) == (4, 2)
    differ_by = f"{errors.choosing:.2g} (2-norm) on 2 samples, by {errors.confirming:.2g} on 2 held"
    assert differ_by in str(choice)
    monkeypatch.setattr(Variants, "_differences", differ)
    tight = choose_precision(network, "auto", budget=1.3 * errors.choosing, samples=samples)
    assert [row.name for row in tight.variants if row.errors.confirming][0] == "bf16"
    assert tight.chosen.name in ("f32", "mixed")
    assert (tight.chosen.errors.confirming or 0.0) <= tight.budget


def test_a_frontier_is_drawn() -> None:
    """Numbered points, those that are finite, and what each precision changes."""
    network = amos.load_network(_perceptron())
    (group, *_) = network.networks["Region0"].grouping.groups
    variants = (
        Variant("f32", network, Errors(0.0), 4e-3),
        Variant("int8", network, Errors(np.inf, 1.0), 3e-3),
        Variant(
            "bf16", network, Errors(0.005, 0.006), 2e-3, (group.operator,),
            {"Region0 1": Exclusion("over the budget"), "Region0 2": Exclusion("over the budget")},
        ),
    )  # fmt: skip
    frontier = Frontier(variants, variants[-1], 0.01, 4, 2, False, ("int8 needs more",))
    lines = amos.viz.text(frontier).splitlines()
    grid = [line for line in lines if "|" in line]
    plot = {mark: line.index(mark) for line in grid for mark in "13" if f" {mark}" in line}
    assert plot["3"] < plot["1"] and not any(" 2" in line for line in grid)
    assert any(line.startswith("  0.01 |- - -") for line in lines)
    assert "1 matmul, 2 ms less" in lines[-2] and "2 over the budget" in lines[-2]
    assert amos.viz.html(frontier).count("<circle") == 2


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
    error = relative_norm(compiled.outputs_of([x])[0], _results(network, [x]))
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
