"""ONNX's recurrent layers: onnxruntime runs them as a whole, AMOS what stands around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import amos
from amos.network.external.partition import PartitionedNetwork
from amos.network.sessions import plain_session
from tests.network.models import Builder

STEPS, BATCH, WIDTH, HIDDEN = 40, 2, 16, 16
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _between_products(kind: str, **attributes: Any) -> Any:
    """A product, a recurrent layer over the sequence, and another product."""
    b = Builder()
    x = b.input("x", (STEPS, BATCH, WIDTH))
    x = b.node("Relu", b.node("MatMul", x, b.random(WIDTH, WIDTH)))
    rows = GATES[kind] * HIDDEN
    weights = b.random(1, rows, WIDTH), b.random(1, rows, HIDDEN)
    sequence = b.node(kind, x, *weights, hidden_size=HIDDEN, **attributes)
    sequence = b.node("Squeeze", sequence, b.constant([1], "int64"))
    return b.model(b.node("MatMul", sequence, b.random(HIDDEN, WIDTH)))


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("LSTM", {"direction": "reverse", "clip": 0.5}),
        ("GRU", {"linear_before_reset": 1}),
        ("RNN", {"activations": ["Relu"]}),
    ],
)
def test_a_layer_is_left_to_onnxruntime_as_a_whole(kind: str, attributes: dict[str, Any]) -> None:
    model = _between_products(kind, **attributes)
    network = amos.load_network(model)
    assert isinstance(network, PartitionedNetwork)
    assert [kind for kind, _ in network.external if kind in GATES] == [kind]
    # One product for all steps, however many these are.
    assert [task.weight for task in network.tasks] == [1, 1]
    compiled = amos.compile(network, progress=False)
    assert len(compiled.regions) == 2
    values = np.random.default_rng(0).standard_normal((STEPS, BATCH, WIDTH)).astype(np.float32)
    (expected,) = plain_session(model).run(None, {"x": values})
    np.testing.assert_allclose(compiled(values), expected, rtol=1e-4, atol=1e-4)
