"""PyTorch's form of an operator gives what the operator says."""

from __future__ import annotations

import numpy as np
import pytest

from amos import operators
from amos.export.baseline import Convolution, baseline, library_calls
from amos.codegen.cuda.launch import described_operand
from amos.ir import Operator
from amos.validate import evaluate, random_inputs

KEPT = ("r", "s", "t", "stride", "dilation", "padding", "h", "w", "depth")
#: How many ways PyTorch has: eager, and channels_last for images.
WAYS = dict.fromkeys(operators.TABLE_6, 2) | {
    "gemv": 1,
    "gemm": 1,
    "conv1d": 1,
    "transposed_conv2d": 0,
    "grouped_fc": 1,
    "mean": 1,
    "variance": 1,
    "scan": 1,
}


def small(name: str) -> tuple[Operator, dict[str, object]]:
    builder = operators.builder(name)
    sizes = {
        key: min(size, 4)
        for key, size in builder.defaults.items()
        if isinstance(size, int) and key not in KEPT
    }
    op = builder(dtype="f32", **sizes)
    described = {"iterations": op.extents, "operands": [described_operand(load) for load in op.operands]}
    return op, {"operator": described, "arguments": []}


@pytest.mark.parametrize("name", operators.TABLE_6)
def test_calls(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    op, launch = small(name)
    inputs = random_inputs(op, np.random.default_rng(0))
    tensors = {key: torch.from_numpy(array) for key, array in inputs.items()}
    calls = library_calls(torch, launch, tensors)
    assert len(calls) == WAYS[name]
    expected = torch.from_numpy(evaluate(op, inputs))
    found = Convolution.of(launch["operator"])  # type: ignore[arg-type]
    for call in calls:
        wanted = expected if found is None else found.output(expected)
        assert torch.allclose(call(), wanted, atol=1e-3)


def test_forms() -> None:
    """Without PyTorch: what stride, dilation, padding and groups are read from indices."""
    _, launch = small("conv2d")
    plain = Convolution.of(launch["operator"])  # type: ignore[arg-type]
    assert plain is not None and plain.groups == 1 and plain.stride == (1, 1)
    _, launch = small("grouped_conv2d")
    grouped = Convolution.of(launch["operator"])  # type: ignore[arg-type]
    assert grouped is not None and grouped.groups == 4
    _, launch = small("dilated_conv2d")
    dilated = Convolution.of(launch["operator"])  # type: ignore[arg-type]
    assert dilated is not None and dilated.dilation == (2, 2)
    _, launch = small("gemm")
    assert Convolution.of(launch["operator"]) is None  # type: ignore[arg-type]


def test_nothing_to_compare_with() -> None:
    _, launch = small("gemm")
    launch["arguments"] = [{"name": "a", "dtype": "int8", "shape": [4]}, {}]
    assert baseline(launch) is None
