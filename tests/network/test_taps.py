"""Convolutions without the taps that read only padding."""

from __future__ import annotations

import numpy as np
import pytest

from amos.network.frontend import import_model
from amos.network.graph import Graph
from amos.network.program import read
from amos.network.quantized import integer_arithmetic
from amos.network.simplify import counted, without_idle_taps
from tests.network.models import Builder, run_module


def _taps(graph: Graph) -> list[int]:
    """Extents of the window of the only convolution."""
    (node,) = (node for node in graph.nodes if node.operation.startswith("nn.conv"))
    return list(node.operands[1].shape[2:])


@pytest.mark.parametrize(
    ("image", "window", "attributes", "left"),
    [
        ([2, 1], [3, 3], {"pads": [1, 1, 1, 1]}, [3, 1]),
        ([1, 1], [5, 3], {"pads": [2, 1, 2, 1], "strides": [2, 1]}, [1, 1]),
        ([2, 2], [3, 3], {"pads": [2, 2, 2, 2], "dilations": [2, 2]}, [1, 1]),
        ([2, 3], [4, 4], {"pads": [2, 0, 1, 1], "strides": [2, 1]}, [2, 3]),
        ([1], [5], {"pads": [4, 1]}, [2]),
        ([1], [5], {"pads": [2, 4]}, [3]),
        ([1, 2, 3], [3, 3, 3], {"pads": [1] * 6}, [1, 3, 3]),
        ([1], [2], {"pads": [1, 3], "dilations": [3]}, [1]),
        # What tap 0 would take along is more than there is.
        ([1], [2], {"pads": [2, 1], "dilations": [3]}, [2]),
        ([3, 3], [3, 3], {"pads": [1, 1, 1, 1]}, [3, 3]),
    ],
)
def test_the_result_is_the_same(
    image: list[int], window: list[int], attributes: dict[str, list[int]], left: list[int]
) -> None:
    b = Builder()
    x = b.input("x", (1, 4, *image))
    y = b.node("Conv", x, b.random(4, 2, *window), group=2, **attributes)
    module = counted(import_model(b.model(y), None).module)
    fewer = without_idle_taps(module)
    assert _taps(read(fewer)) == left
    value = b.rng.standard_normal((1, 4, *image)).astype(np.float32)
    np.testing.assert_allclose(
        run_module(fewer, value), run_module(module, value), rtol=1e-5, atol=1e-6
    )


def test_dequantized_weights_lose_taps_as_well() -> None:
    b = Builder()
    scale, zero = b.constant(0.05), b.constant(7, "uint8")
    x = b.node("QuantizeLinear", b.input("x", (1, 8, 1, 2)), scale, zero)
    weight = b.constant(b.rng.integers(-127, 128, (16, 8, 3, 3)), "int8")
    scales = b.constant(b.rng.uniform(0.001, 0.004, 16))
    weight = b.node("DequantizeLinear", weight, scales, b.constant(np.zeros(16), "int8"), axis=0)
    y = b.node("Conv", b.node("DequantizeLinear", x, scale, zero), weight, pads=[1, 1, 1, 1])
    module = counted(import_model(b.model(y), None).module)
    fewer, all_taps = (integer_arithmetic(each) for each in (without_idle_taps(module), module))
    assert _taps(read(fewer)) == [1, 3]
    assert _taps(read(all_taps)) == [3, 3]
    value = b.rng.standard_normal((1, 8, 1, 2)).astype(np.float32)
    np.testing.assert_array_equal(run_module(fewer, value), run_module(all_taps, value))
