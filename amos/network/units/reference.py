"""What a whole network is held against, and the step of its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amos.network.external.partition import PartitionedNetwork
from amos.network.frontend import plain_session
from amos.network.model import values_of


def evaluate_reference(
    network: PartitionedNetwork, arrays: Sequence[Any]
) -> Sequence[np.ndarray] | None:
    """Run the model as its framework does by default; ``None`` where that does not run it.

    onnxruntime then sums integers of quantized layers. Node by node it would sum floats, and round
    them.
    """
    reference = network.reference
    if reference is None:
        return None
    values = [*map(values_of, network.inputs, arrays)]
    if reference.name != "onnxruntime":
        return reference.evaluate(values)
    try:
        session = plain_session(network.source, optimized=True)
        names = [port.name for port in session.get_inputs()]
        results = session.run(None, dict(zip(names, values, strict=True)))
    except Exception:  # onnxruntime raises types of its own
        return None
    return [np.asarray(result) for result in results]


def quantum_of(network: PartitionedNetwork) -> float | None:
    """Return the largest step of results that are dequantized integers; ``None`` without any."""
    from onnx import numpy_helper

    graph, scales = network.graph, list[float]()
    for name in network.output_names:
        node = graph.nodes[graph.producers[name]] if name in graph.producers else None
        if node is None or node.op_type != "DequantizeLinear":
            continue
        if (scale := graph.initializers.get(node.input[1])) is not None:
            scales.append(float(numpy_helper.to_array(scale).max()))
    return max(scales, default=None)
