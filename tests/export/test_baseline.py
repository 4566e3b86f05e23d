"""PyTorch's form of an operator gives what the operator says."""

from __future__ import annotations

import numpy as np
import pytest

from amos import operators
from amos.codegen.device.launch import describe_load
from amos.cuda.baseline import Convolution, baseline, library_calls, own_calls
from amos.ir import Operator
from amos.validate import evaluate, random_inputs

KEPT = ("r", "s", "t", "stride", "dilation", "padding", "h", "w", "depth")
EAGER, IMAGES = {"eager"}, {"eager", "channels_last"}
#: What ways PyTorch has.
WAYS = dict.fromkeys(operators.TABLE_6, IMAGES) | {
    "gemv": EAGER,
    "gemm": {"eager", "mm"},
    "conv1d": EAGER,
    "grouped_fc": EAGER,
    "mean": EAGER,
    "variance": EAGER,
    "scan": EAGER | {"mm"},
}


def small(name: str) -> tuple[Operator, dict[str, object]]:
    builder = operators.builder(name)
    sizes = {
        key: min(size, 4)
        for key, size in builder.defaults.items()
        if isinstance(size, int) and key not in KEPT
    }
    op = builder(dtype="f32", **sizes)
    described = {
        "iterations": op.extents,
        "operands": [describe_load(load) for load in op.operands],
    }
    return op, {"operator": described, "arguments": []}


@pytest.mark.parametrize("name", operators.TABLE_6)
def test_calls(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    op, launch = small(name)
    inputs = random_inputs(op, np.random.default_rng(0))
    if name == "transposed_conv2d":
        launch["upsampled"] = 2
        zeros = np.ones(inputs["upsampled"].shape, bool)
        zeros[..., ::2, ::2] = False
        inputs["upsampled"][zeros] = 0
    tensors = {key: torch.from_numpy(array) for key, array in inputs.items()}
    calls = library_calls(torch, launch, tensors)
    assert calls.keys() == WAYS[name]
    expected = torch.from_numpy(evaluate(op, inputs))
    convolution = Convolution.of(launch["operator"])  # type: ignore[arg-type]
    for call in calls.values():
        reference = expected if convolution is None else convolution.output(expected)
        assert torch.allclose(call(), reference, atol=1e-3)


@pytest.mark.parametrize("name", ["mean", "variance", "scan"])
def test_own_calls(name: str) -> None:
    """What PyTorch has for these is what the product gives on the operator's constants."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    op, launch = small(name)
    launch["operator"]["name"] = name  # type: ignore[index]
    inputs = random_inputs(op, np.random.default_rng(0))
    *_, constant = inputs
    ones = np.ones_like(inputs[constant])
    inputs[constant] = np.triu(ones) if name == "scan" else ones / ones.size
    tensors = {key: torch.from_numpy(array) for key, array in inputs.items()}
    (call,) = own_calls(launch, tensors).values()
    assert torch.allclose(call(), torch.from_numpy(evaluate(op, inputs)))
    launch["operator"]["name"] = "gemm"  # type: ignore[index]
    assert own_calls(launch, tensors) == {}


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
    assert baseline(launch) == {}
