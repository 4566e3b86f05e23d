"""ONNX's recurrent layers, written out: against what the standard says, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import amos
from amos.errors import NetworkError
from tests.network.models import Builder, load_whole

STEPS, BATCH, WIDTH, HIDDEN = 3, 2, 6, 5
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
BACKWARDS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _relu(x: Any) -> Any:
    return np.maximum(x, 0)


def _step(kind: str, last: bool, f: Any, x: Any, w: Any, r: Any, b: Any, h: Any, c: Any) -> Any:
    """The next states of one cell, as https://onnx.ai/onnx/operators defines them."""
    wb, rb = np.split(b, 2)
    if kind == "RNN":
        return f(x @ w.T + h @ r.T + wb + rb), c
    if kind == "LSTM":
        i, o, forget, fresh = np.split(x @ w.T + h @ r.T + wb + rb, 4, axis=-1)
        c = f(forget) * c + f(i) * np.tanh(fresh)
        return f(o) * np.tanh(c), c
    (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
    (bz, br, bh), (sz, sr, sh) = np.split(wb, 3), np.split(rb, 3)
    z, reset = f(x @ wz.T + h @ rz.T + bz + sz), f(x @ wr.T + h @ rr.T + br + sr)
    state = reset * (h @ rh.T + sh) if last else (reset * h) @ rh.T + sh
    return (1 - z) * np.tanh(x @ wh.T + state + bh) + z * h, c


def _layer(
    kind: str, direction: str, *, states: bool, bias: bool, layout: int = 0, **attributes: Any
) -> tuple[Any, dict[str, np.ndarray], list[np.ndarray]]:
    """A model of one layer, inputs of it, and its results."""
    b, count = Builder(), len(BACKWARDS[direction])
    sides = [(GATES[kind] * HIDDEN, WIDTH), (GATES[kind] * HIDDEN, HIDDEN)]
    w, r = (b.rng.standard_normal((count, *side)).astype(np.float32) / 3 for side in sides)
    biases = b.rng.standard_normal((count, 2 * GATES[kind] * HIDDEN)).astype(np.float32) * bias
    values = {"x": b.rng.standard_normal((STEPS, BATCH, WIDTH)).astype(np.float32)}
    h, c = np.zeros((2, count, BATCH, HIDDEN), np.float32)
    reads = ["x", b.constant(w), b.constant(r), b.constant(biases) if bias else "", ""]
    if states:
        h, c = b.rng.standard_normal((2, count, BATCH, HIDDEN)).astype(np.float32)
        values |= {"h": h, "c": c} if kind == "LSTM" else {"h": h}
    function = attributes.get("activations", ["Sigmoid"])[0]
    f = _relu if function == "Relu" else np.tanh if kind == "RNN" else _sigmoid
    sequences, ends = [], []
    for n, backwards in enumerate(BACKWARDS[direction]):
        state, memory, results = h[n], c[n], []
        for x in values["x"][:: -1 if backwards else 1]:
            last = bool(attributes.get("linear_before_reset"))
            state, memory = _step(kind, last, f, x, w[n], r[n], biases[n], state, memory)
            results.append(state)
        sequences.append(np.stack(results[:: -1 if backwards else 1]))
        ends.append((state, memory))
    expected = [np.stack(sequences, 1), *map(np.stack, zip(*ends, strict=True))]
    if layout:
        values = {n: value.swapaxes(0, 1).copy() for n, value in values.items()}
        whole, *rest = expected
        expected = [whole.transpose(2, 0, 1, 3), *(each.swapaxes(0, 1) for each in rest)]
        attributes["layout"] = 1
    for name, value in values.items():
        b.input(name, value.shape)
    names = ["y", "y_h", "y_c"][: 3 if kind == "LSTM" else 2]
    reads += [name for name in values if name != "x"]
    b.node(kind, *reads, direction=direction, hidden_size=HIDDEN, **attributes)
    b.nodes[-1].output[:] = names
    return b.model(*names), values, expected[: len(names)]


@pytest.mark.parametrize(
    ("kind", "direction", "options"),
    [
        ("LSTM", "forward", dict(states=False, bias=True)),
        ("LSTM", "bidirectional", dict(states=True, bias=True, layout=1)),
        ("GRU", "forward", dict(states=True, bias=True, linear_before_reset=1)),
        ("GRU", "bidirectional", dict(states=False, bias=True)),
        ("GRU", "reverse", dict(states=True, bias=False, linear_before_reset=1)),
        ("RNN", "reverse", dict(states=True, bias=True, layout=1)),
        ("RNN", "forward", dict(states=False, bias=False, activations=["Relu"])),
    ],
)
def test_layers_compute_what_the_standard_says(
    kind: str, direction: str, options: dict[str, Any]
) -> None:
    model, inputs, expected = _layer(kind, direction, **options)
    network = load_whole(model)
    directions = len(BACKWARDS[direction])
    products = 2 if kind == "GRU" and not options.get("linear_before_reset") else 1
    # Inputs are multiplied once, states in each step; nothing of it stays with the engine.
    weights = sorted(task.weight for task in network.tasks)
    assert sum(weights) == directions * (1 + STEPS * products)
    assert not network.grouping.refused
    compiled = amos.compile(network, verify=False, progress=False)
    for got, right in zip(compiled(**inputs), expected, strict=True):
        assert got.shape == right.shape
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5)


def _odd(**changes: Any) -> Any:
    """An LSTM of which some inputs or attributes are others."""
    b = Builder()
    x = b.input("x", (STEPS, BATCH, WIDTH))
    w, r = b.random(1, 4 * HIDDEN, WIDTH), b.random(1, 4 * HIDDEN, changes.pop("columns", HIDDEN))
    reads = [x, changes.pop("w", w), r, "", "", "", "", ""]
    if (lengths := changes.pop("lengths", None)) is not None:
        reads[4] = b.constant(lengths, "int32")
    if changes.pop("peepholes", False):
        reads[7] = b.random(1, 3 * HIDDEN)
    if reads[1] == "computed":
        b.input("v", (1, 4 * HIDDEN, WIDTH))
        reads[1] = b.node("Relu", "v")
    names = b.node("LSTM", *reads, hidden_size=HIDDEN, **changes)
    b.nodes[-1].name = "cell"
    return b.model(names)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lengths": [3, 2]}, "sequence_lens are not supported, unless constant and of all steps"),
        ({"peepholes": True}, r"peepholes \(P\) are not supported"),
        ({"clip": 1.0}, "clip is not supported"),
        ({"activations": ["Elu", "Tanh", "Tanh"]}, "activation Elu is not supported"),
        ({"activations": ["Tanh", "Tanh"]}, "expected 3 activations, got 2"),
        ({"w": "computed"}, "expected constant weights; W is computed"),
        ({"columns": 4}, r"expected W of shape \(1, 16, 6\), got \(1, 20, 6\)"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(NetworkError, match=f"^model 'small': LSTM 'cell': {said}$"):
        load_whole(_odd(**changes))


def test_lengths_of_all_steps_change_nothing() -> None:
    network = load_whole(_odd(lengths=[STEPS] * BATCH))
    assert [port.shape for port in network.outputs] == [(STEPS, 1, BATCH, HIDDEN)]


def test_loops_are_refused_in_one_line() -> None:
    from onnx import helper

    b = Builder()
    on, still = (helper.make_tensor_value_info(n, TensorProto.BOOL, ()) for n in ("on", "still"))
    step, x, y = (helper.make_tensor_value_info(n, TensorProto.INT64, ()) for n in ("n", "x", "y"))
    same = [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Neg", ["x"], ["y"])]
    body = helper.make_graph(same, "body", [step, on, x], [still, y])
    count = b.constant(3, "int64")
    b.node("Loop", count, "", count, body=body)
    b.nodes[-1].output[:] = ["y"]
    graph = helper.make_graph(b.nodes, "g", [], [y], b.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(NetworkError, match="Loop"):
        load_whole(model)
