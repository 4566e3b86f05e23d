"""What a budget chooses of precisions, by which samples, and how the choice is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import amos
from amos.cli.app import app
from amos.errors import NetworkError
from amos.network.checks import relative_norm
from amos.network.inputs import random_arrays
from amos.network.precision import choosing
from amos.network.precision.choosing import choose_precision
from amos.network.precision.frontier import Errors, Exclusion, Frontier, Variant
from amos.network.precision.samples import read_samples
from amos.network.precision.variants import Variants
from amos.network.sessions import SessionRunner, plain_session
from tests.network.models import Builder
from tests.network.precisions import multiplies_bfloat16, perceptron, results_of, variants_of


@multiplies_bfloat16
@pytest.mark.long
def test_auto_is_the_fastest_within_the_budget() -> None:
    network = amos.load_network(perceptron(512))
    wide = amos.compile(network, precision="auto", budget=0.05, progress=False)
    assert wide.precision is not None
    assert wide.precision.chosen.name == "bf16"
    assert str(wide).startswith("precision bf16 in 2 products: results differ by 0.00")
    assert 0 < wide.precision.chosen.error < 0.05
    (x,) = random_arrays(network)
    exact = results_of(network, [x])
    assert relative_norm(wide.outputs_of([x])[0], exact) < 0.01
    narrow = amos.compile(network, precision="auto", budget=1e-6, progress=False)
    assert narrow.precision is not None
    assert narrow.precision.chosen.name == "f32"
    assert relative_norm(narrow.outputs_of([x])[0], exact) < 1e-5
    # Some of the products fit between the two.
    variants = variants_of(network)
    budget = 1.5 * min(variants.sensitivities([[("Region0", n)] for n in range(2)]))
    between = amos.compile(network, precision="auto", budget=budget, progress=False)
    assert between.precision is not None
    chosen = between.precision.chosen
    assert chosen.name == "mixed"
    assert len(chosen.operators) == 1
    assert 0 < chosen.errors.choosing <= 0.8 * budget
    assert chosen.errors.confirming is not None and 0 < chosen.errors.confirming <= budget
    assert [*chosen.excluded.values()] == [Exclusion("over the budget")]


@multiplies_bfloat16
@pytest.mark.parametrize(("rows", "is_tried"), [(8, True), (64, False)])
def test_f16_is_tried_beside_some_products_where_weights_are_waited_for(
    rows: int, is_tried: bool
) -> None:
    network = amos.load_network(perceptron(512, rows))
    budget = 1.5 * min(variants_of(network).sensitivities([[("Region0", n)] for n in range(2)]))
    frontier = choose_precision(network, "auto", budget=budget)
    names = [row.name for row in frontier.variants]
    assert "mixed" in names
    assert is_tried == any(each.startswith("f16") for each in (*names, *frontier.refused))


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
    network = amos.load_network(perceptron())
    with pytest.raises(NetworkError, match="this CPU does not multiply bf16"):
        amos.compile(network, precision="bf16", progress=False)
    assert amos.compile(network, precision="auto", progress=False).precision is None
    assert str(choose_precision(network, "auto")) == (
        "precision f32: this CPU does not multiply bf16 (amx_bf16, avx512_bf16); "
        "this CPU does not multiply f16 (avx512f, f16c); int8 needs samples, which give the ranges"
    )


def test_compile_says_that_it_keeps_the_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("choosing", "variants"):
        name = f"amos.network.precision.{module}.has_bfloat16"
        monkeypatch.setattr(name, lambda: False)
    b = Builder()
    x, weight = b.input("x", (4, 16)), b.constant(np.eye(16), "int8")
    for _ in "ab":
        levels = b.constant(0.1), b.constant(0, "int8")
        x = b.node("DequantizeLinear", b.node("QuantizeLinear", x, *levels), *levels)
        x = b.node("MatMul", x, b.node("DequantizeLinear", weight, *levels))
    for model, is_said in ((perceptron(), True), (b.model(x), False)):
        onnx.save(model, tmp_path / "model.onnx")
        done = CliRunner().invoke(app, ["compile", str(tmp_path / "model.onnx")])
        assert not done.exit_code
        assert is_said == ("this CPU lacks bf16, and int8 needs --samples" in done.output)


@pytest.mark.long
def test_some_products_become_integers_where_all_break_the_budget() -> None:
    b = Builder()
    x = b.input("x", (32, 128))
    for _ in range(4):
        x = b.node("Relu", b.node("Gemm", x, b.random(128, 128), b.random(128)))
    network = amos.load_network(b.model(x))
    samples = [(each,) for each in np.random.default_rng(1).standard_normal((4, 32, 128), "f4")]
    (_, whole) = choose_precision(network, "int8", samples=samples).variants
    budget = 0.75 * whole.errors.largest
    frontier = choose_precision(network, "auto", budget=budget, samples=samples)
    mixed = frontier.chosen
    assert mixed.name == "mixed int8" and mixed.errors.largest <= budget
    plain = next(each for each in frontier.variants if each.name == "f32")
    assert whole.predicted_seconds < mixed.predicted_seconds < plain.predicted_seconds
    assert 0 < len(mixed.operators) < 4
    assert len(mixed.operators) + len(mixed.excluded) == 4
    compiled = amos.compile(mixed.network, precision="f32", progress=False)
    (exact,) = SessionRunner(plain_session(network.source), network.inputs)(samples[0])
    assert relative_norm(compiled(*samples[0]), exact) <= budget


@multiplies_bfloat16
def test_accuracy_instead_of_a_norm() -> None:
    """The budget is then the loss of it that is allowed."""
    network = amos.load_network(perceptron(512))

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
    network = amos.load_network(perceptron())
    with pytest.raises(NetworkError, match=message):
        amos.compile(network, progress=False, **options)


def test_files_of_samples_are_checked(tmp_path: Path) -> None:
    network = amos.load_network(perceptron())
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
    onnx.save(perceptron(512), file)
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
    network = amos.load_network(perceptron(512))
    samples = [random_arrays(network, seed) for seed in range(4)]
    usual = Variants._compare

    def differ(self: Variants, results: Any) -> list[float]:
        """Other samples have twice the error."""
        return [(1 + (n >= 2)) * each for n, each in enumerate(usual(self, results))]

    choice = choose_precision(network, "auto", budget=0.01, samples=samples)
    errors = choice.chosen.errors
    assert choice.chosen.name == "bf16" and errors.confirming is not None
    assert (choice.sample_count, choice.held_back_count) == (4, 2)
    differ_by = f"{errors.choosing:.2g} (2-norm) on 2 samples, by {errors.confirming:.2g} on 2 held"
    assert differ_by in str(choice)
    monkeypatch.setattr(Variants, "_compare", differ)
    tight = choose_precision(network, "auto", budget=1.3 * errors.choosing, samples=samples)
    assert [row.name for row in tight.variants if row.errors.confirming][0] == "bf16"
    assert tight.chosen.name in ("f32", "mixed")
    assert (tight.chosen.errors.confirming or 0.0) <= tight.budget


def test_a_frontier_is_drawn() -> None:
    """Numbered points, those that are finite, and what each precision changes."""
    network = amos.load_network(perceptron())
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
