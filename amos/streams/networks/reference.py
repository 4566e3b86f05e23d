"""The reference of a whole network, and the step of its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amos.codegen.scheduling import last_line
from amos.errors import NetworkError
from amos.network.external.partition import PartitionedNetwork
from amos.network.inputs import values_of
from amos.network.sessions import plain_session


def evaluate_reference(
    network: PartitionedNetwork, arrays: Sequence[Any], *, optimized: bool = True
) -> Sequence[np.ndarray]:
    """Run the model in its framework.

    Args:
        optimized: as onnxruntime does by default: it then sums integers of quantized layers. Node
            by node it sums floats, and rounds them.

    Raises:
        NetworkError: the framework does not run it.
    """
    reference = network.reference
    assert reference is not None
    values = [*map(values_of, network.inputs, arrays)]
    if reference.name != "onnxruntime":
        if (results := reference.evaluate(values)) is None:
            raise NetworkError(f"{network.name}: {reference.name} does not run it")
        return results
    try:
        session = plain_session(network.source, optimized=optimized)
        names = [port.name for port in session.get_inputs()]
        results = session.run(None, dict(zip(names, values, strict=True)))
    except Exception as error:  # onnxruntime raises types of its own
        raise NetworkError(f"{network.name}: onnxruntime: {last_line(error)}") from error
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
