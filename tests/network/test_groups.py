"""Which parts of a network become groups, and what they compute."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import amos
from amos.errors import NetworkError
from amos.network.graph import Constant, GraphBuilder
from amos.network.groups import group_nodes
from amos.network.lowerings.base import ProductLowering
from tests.network.models import (
    Builder,
    compile_whole,
    load_whole,
    normal_inputs,
    reference_result,
    residual_network,
)


def _texts(network: amos.network.Network) -> list[str]:
    return [str(task.operator.epilogue) for task in network.tasks]


def test_a_residual_network_is_divided() -> None:
    network = load_whole(residual_network())
    assert [task.weight for task in network.tasks] == [1, 1, 1, 1, 1, 1, 1]
    assert Counter(_texts(network)) == {
        "relu(acc + bias[k])": 3,
        "relu(acc + bias[k] + residual[p, q, k])": 2,
        "acc + bias[k]": 1,
        "acc + bias[n]": 1,
    }
    ungrouped = Counter(node.operation for node in network.grouping.ungrouped)
    assert ungrouped == {"Transpose": 1, "MaxPool": 1, "ReduceMean": 1, "Reshape": 1}
    assert [str(port) for port in network.inputs] == ["image: float32[1, 3, 16, 16]"]


def test_equal_layers_are_one_task() -> None:
    b = Builder()
    x = b.input("x", (1, 4, 6, 6))
    for _ in range(3):
        x = b.node("Relu", b.convolution(x, (4, 4, 3, 3)))
    (task,) = load_whole(b.model(x)).tasks
    assert task.weight == 3
    assert str(task.operator.epilogue) == "relu(acc)"


def test_layers_that_differ_in_learnt_numbers_are_one_task() -> None:
    """Numbers of a function stay in its text: 3 and 6, by which a compiler may simplify."""
    b = Builder()
    x = b.input("x", (1, 8, 6, 6))
    for scale, bias in ((0.37, 0.11), (1.73, -0.29)):
        sums = b.convolution(x, (8, 8, 3, 3))
        bounded = b.node("Clip", b.node("Add", sums, b.constant(3.0)), *map(b.constant, (0.0, 6.0)))
        x = b.node("Mul", b.node("Mul", sums, bounded), b.constant(scale))
        x = b.node("Add", x, b.constant(bias))
    model = b.model(x)
    (task,) = load_whole(model).tasks
    assert task.weight == 2
    text = "acc * min(max(acc + 3.0, 0.0), 6.0) * scale[0] + bias[0]"
    assert str(task.operator.epilogue) == text
    compiled = compile_whole(load_whole(model))
    inputs = normal_inputs(x=(1, 8, 6, 6))
    np.testing.assert_allclose(
        compiled(**inputs), reference_result(model, **inputs), rtol=1e-4, atol=1e-5
    )


def test_what_is_read_elsewhere_ends_a_group() -> None:
    """The sum is the network's second output, so relu cannot swallow it."""
    b = Builder()
    x = b.convolution(b.input("x", (1, 4, 6, 6)), (4, 4, 3, 3))
    total = b.node("Add", x, b.constant([[[1.0]], [[2.0]], [[3.0]], [[4.0]]]))
    network = load_whole(b.model(b.node("Relu", total), total))
    assert _texts(network) == ["acc + bias[k]"]
    assert "Relu" in [node.operation for node in network.grouping.ungrouped]


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("low", [0.0, 3.0])
def test_a_conversion_that_cuts_off_is_no_rounding_one(rounds: bool, low: float) -> None:
    """Values between integers stay the engine's to convert."""
    builder = GraphBuilder()
    x = builder.add_input("x", (4, 8), "float32")
    y = builder.emit("MatMul", x, Constant(np.ones((8, 8), np.float32)))
    y = builder.emit("Round", y) if rounds else y
    y = builder.emit("Max", y, Constant(np.array(low, np.float32)))
    y = builder.emit("Min", y, Constant(np.array(255, np.float32)))
    graph = builder.finish([builder.emit("Cast", y, to="uint8")])
    (group,) = group_nodes(graph).groups
    assert str(group.operator.epilogue).startswith("u8(") == rounds


def test_a_bound_may_be_infinite() -> None:
    b = Builder()
    x = b.node("MatMul", b.input("x", (4, 8)), b.random(8, 8))
    (task,) = load_whole(b.model(b.node("Clip", x, b.constant(0.0), b.constant("inf")))).tasks
    assert str(task.operator.epilogue) == "max(acc, 0.0)"


def test_what_is_no_epilogue_leaves_its_anchor() -> None:
    b = Builder()
    x = b.node("MatMul", b.input("x", (4, 8)), b.random(8, 8))
    for _ in range(70):  # deeper than an expression may be
        x = b.node("Abs", x)
    network = load_whole(b.model(x))
    assert _texts(network) == ["None"] and not network.grouping.refused


@pytest.mark.parametrize(("columns", "straight"), [(40, True), (64, False)])
def test_rows_that_fill_no_vectors_are_stored_straight_to_their_place(
    columns: int, straight: bool
) -> None:
    b = Builder()
    y = b.node("Relu", b.node("MatMul", b.input("x", (5, 16)), b.random(16, columns)))
    network = load_whole(b.model(y))
    (task,) = network.tasks
    assert (task.operator.store is not None) == straight
    model = compile_whole(network, progress=False)
    assert all(check.passed for check in model.checks)
    (kernel,) = model.kernels.values()
    assert isinstance(kernel.lowering, ProductLowering)
    operator = kernel.lowering.product.candidate.mapping.operator
    assert (" to out[m, n]" in str(operator)) == straight


def test_a_value_that_is_read_twice_is_written_twice() -> None:
    """Both branches meet again before anything else reads them."""
    b = Builder()
    x = b.convolution(b.input("x", (1, 4, 6, 6)), (4, 4, 3, 3))
    y = b.node("Mul", x, b.node("Clip", x, b.constant(0.0), b.constant(6.0)))
    assert _texts(load_whole(b.model(y))) == ["acc * min(max(acc, 0.0), 6.0)"]


@pytest.mark.parametrize(
    ("weight", "groups", "text"),
    [
        ((8, 1, 3, 3), 8, "out[n, p, q, g] += pad(image[n, p + r - 1, q + s - 1, g])"),
        ((8, 4, 3, 3), 2, "out[n, p, q, g, k] += pad(image[n, p + r - 1, q + s - 1, g, c])"),
    ],
)
def test_convolutions_in_groups(weight: tuple[int, ...], groups: int, text: str) -> None:
    b = Builder()
    x = b.convolution(b.input("x", (1, 8, 6, 6)), weight, group=groups)
    (task,) = load_whole(b.model(b.node("Add", x, b.random(8, 1, 1)))).tasks
    assert str(task.operator).startswith(text)


def test_a_dynamic_dimension_is_named() -> None:
    b = Builder()
    model = b.model(b.convolution(b.input("x", ("batch", 4, 6, 6)), (4, 4, 3, 3)))
    with pytest.raises(NetworkError, match="dimension 'batch' of input 'x' is dynamic"):
        load_whole(model)
    network = load_whole(model, shapes={"x": (2, 4, 6, 6)})
    assert network.inputs[0].shape == (2, 4, 6, 6)
    with pytest.raises(NetworkError, match=r"input 'x' has shape \(batch, 4, 6, 6\), got"):
        load_whole(model, shapes={"x": (2, 5, 6, 6)})
    with pytest.raises(NetworkError, match="has no input 'y'; inputs are x"):
        load_whole(model, shapes={"y": (1,)})


@pytest.mark.parametrize(
    ("first", "second", "constant"),
    [
        ((4, 6), (3, 6, 5), "first"),
        ((4, 6), (3, 6, 5), ""),
        ((3, 1, 4, 6), (2, 6, 5), "second"),
        ((1, 4, 6), (2, 3, 6, 5), "first"),
        ((2, 1, 4, 6), (1, 3, 6, 5), ""),
    ],
)
def test_batches_of_either_factor(
    first: tuple[int, ...], second: tuple[int, ...], constant: str
) -> None:
    b = Builder()
    x = b.random(*first) if constant == "first" else b.input("x", first)
    y = b.random(*second) if constant == "second" else b.input("y", second)
    model = b.model(b.node("Relu", b.node("MatMul", x, y)))
    network = load_whole(model)
    assert not network.grouping.refused and len(network.tasks) == 1
    rng = np.random.default_rng(0)
    feeds = {
        each.name: rng.standard_normal(each.shape).astype(np.float32) for each in network.inputs
    }
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    result = compile_whole(network, progress=False)(**feeds)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
