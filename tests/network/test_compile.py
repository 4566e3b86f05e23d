"""Compiled networks against NumPy and the engine alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from amos.errors import BuildError, NetworkError
from amos.network import CompiledNetwork
from amos.network.comparison import compare_alone
from amos.network.groups import Job
from amos.network.inputs import random_arrays
from amos.network.kernels import TaskKernel
from amos.network.sessions import Reference
from tests.network.models import (
    Builder,
    compile_whole,
    load_whole,
    reference_result,
    residual_network,
)


@pytest.fixture(scope="module")
def compiled() -> CompiledNetwork:
    return compile_whole(load_whole(residual_network()), progress=False)


def test_a_residual_network_computes_what_onnx_says(compiled: CompiledNetwork) -> None:
    image = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)
    expected = reference_result(residual_network(), image=image)
    np.testing.assert_allclose(compiled(image), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(compiled(image=image), compiled(image))
    assert len(compiled.kernels) == 7
    assert not compiled.fallbacks
    assert [check.reference for check in compiled.checks] == ["NumPy"] * 7 + ["onnxruntime"]
    assert [check.reference for check in compiled.check(image)] == ["onnxruntime"]


def test_a_model_that_was_misread_is_told(compiled: CompiledNetwork) -> None:
    rival = Reference("onnxruntime", lambda arrays: [np.ones((1, 10), np.float32)])
    misread = replace(compiled, reference=rival)
    with pytest.raises(NetworkError, match="differs from onnxruntime by"):
        misread.check()
    silent = Reference("onnxruntime", lambda arrays: None)
    unread = replace(compiled, reference=silent)
    assert unread.check() == ()


def test_results_are_the_callers() -> None:
    """Also where the engine hands out a constant, or an input as it came."""
    b = Builder()
    x = b.input("x", (2, 3))
    identities = b.node("Identity", b.constant([1.0, 2.0])), b.node("Identity", x)
    model = b.model(b.node("Add", x, x), *identities)
    values = np.ones((2, 3), np.float32)
    compiled = compile_whole(load_whole(model), progress=False)
    for result in compiled(values):
        result[...] = 7
    np.testing.assert_array_equal(values, 1)
    np.testing.assert_array_equal(compiled(values)[1], [1, 2])


def test_an_input_may_start_anywhere(compiled: CompiledNetwork) -> None:
    """The engine reads vectors at 64 bytes; NumPy's slices begin where they begin."""
    memory = np.random.default_rng(1).standard_normal(3 * 256 + 1).astype(np.float32)
    shifted = memory[1:].reshape(1, 3, 16, 16)
    np.testing.assert_array_equal(compiled(shifted), compiled(shifted.copy()))


def test_wrong_calls_are_told(compiled: CompiledNetwork) -> None:
    with pytest.raises(NetworkError, match="missing input image"):
        compiled()
    with pytest.raises(NetworkError, match="unknown input 'picture'; inputs are image"):
        compiled(picture=np.zeros((1, 3, 16, 16), np.float32))
    with pytest.raises(BuildError, match=r"expected float32 of shape \(1, 3, 16, 16\)"):
        compiled(np.zeros((1, 3, 16, 17), np.float32))
    with pytest.raises(BuildError, match="got float64"):
        compiled(np.zeros((1, 3, 16, 16)))
    with pytest.raises(BuildError, match="got a list that is no array"):
        compiled([[1.0, 2.0], [3.0]])


def test_products_with_batches_and_grouped_convolutions() -> None:
    b = Builder()
    x = b.input("x", (2, 8, 6, 6))
    y = b.convolution(x, (8, 4, 3, 3), 2, group=2, dilations=[2, 2], pads=[2, 2, 2, 2])
    y = b.node("Reshape", b.node("Relu", y), b.constant([2, 8, 9], "int64"))
    scores = b.node("MatMul", y, b.node("Transpose", y, perm=[0, 2, 1]))
    z = b.node("Add", b.node("MatMul", scores, b.random(8, 5)), b.random(5))
    model = b.model(z)
    values = np.random.default_rng(2).standard_normal((2, 8, 6, 6)).astype(np.float32)
    network = load_whole(model)
    kinds = [task.operator.name for task in network.tasks]
    assert kinds == ["grouped_conv2d", "batched_matmul", "matmul"]
    result = compile_whole(network, progress=False)(values)
    np.testing.assert_allclose(result, reference_result(model, x=values), rtol=1e-4, atol=1e-3)


def test_depthwise_and_transposed_convolutions() -> None:
    b = Builder()
    x = b.node("HardSwish", b.convolution(b.input("x", (1, 16, 5, 5)), (16, 1, 3, 3), group=16))
    y = b.node("ConvTranspose", x, b.random(16, 4, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1])
    model = b.model(b.node("Sigmoid", b.norm(y, 4)))
    network = load_whole(model)
    kinds = {task.operator.name: str(task.operator.epilogue) for task in network.tasks}
    assert kinds["transposed_conv2d"] == "sigmoid(acc + bias[k])"
    assert kinds["depthwise_conv2d"] == "acc * min(max(acc * scale[0] + 0.5, 0.0), 1.0)"
    values = np.random.default_rng(2).standard_normal((1, 16, 5, 5)).astype(np.float32)
    compiled = compile_whole(network, progress=False)
    assert not dict(compiled.fallbacks)
    np.testing.assert_allclose(
        compiled(values), reference_result(model, x=values), rtol=1e-4, atol=1e-5
    )


@pytest.mark.long
def test_small_tasks_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, b = np.random.default_rng(0), Builder()
    hidden = b.node("MatMul", b.input("x", (64, 512)), b.constant(rng.random((512, 512))))
    # A result, too, so that both products are not one chain.
    model = b.model(hidden, b.node("MatMul", hidden, b.constant(rng.random((512, 8)))))
    compared: list[int] = []

    def counted(kernels: Sequence[TaskKernel], task: Job) -> list[float]:
        compared.append(kernels[0].operator.result.shape[-1])
        return compare_alone(kernels, task)

    monkeypatch.setattr("amos.network.compilation.compare_alone", counted)
    compiled = compile_whole(load_whole(model), measure=True, progress=False)
    assert compared == [512]
    assert len(compiled.kernels) == 2


@pytest.mark.parametrize(
    ("axis", "sizes", "products"), [(-1, None, 1), (1, [2, 7, 3], 0), (0, [1, 2, 1], 2)]
)
def test_parts_of_a_split_are_copied_where_kernels_read_them(
    axis: int, sizes: list[int] | None, products: int
) -> None:
    b = Builder()
    y = b.node("MatMul", b.input("x", (4, 6)), b.random(6, 12))
    shapes = np.split(np.empty((4, 12)), np.cumsum(sizes[:-1]) if sizes else 3, axis)
    weights = [b.random(shape.shape[1], 5) for shape in shapes]
    b.node("Split", y, *([b.constant(sizes, "int64")] if sizes else []), axis=axis)
    parts = b.nodes[-1].output[:] = [f"part{n}" for n in range(3)]
    results = [
        b.node("Tanh", product) if n >= products else b.node("MatMul", product, weight)
        for n, (product, weight) in enumerate(zip(parts, weights, strict=True))
    ]
    model = b.model(*results, parts[2])
    values = np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32)
    compiled = compile_whole(load_whole(model), progress=False)
    for result, expected in zip(
        compiled(values), ReferenceEvaluator(model).run(None, {"x": values}), strict=True
    ):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    calls = {row.name: row.count for row in compiled.profile(values, repeat=1).rows}
    copies = [
        n for name, n in calls.items() if name.startswith("loops_slice_") and "tanh" not in name
    ]
    assert sum(copies) == products + 1  # and the result


@pytest.mark.parametrize("axes", [[-1], [2, -1], None])
def test_axes_of_extent_one_are_taken_away(axes: list[int] | None) -> None:
    b = Builder()
    x = b.convolution(b.input("x", (2, 4, 3, 3)), (8, 4, 3, 3))
    x = b.node("AveragePool", x, kernel_shape=[3, 3])
    y = b.node("Squeeze", x, *([] if axes is None else [b.constant(axes, "int64")]))
    model = b.model(y)
    values = np.random.default_rng(2).standard_normal((2, 4, 3, 3)).astype(np.float32)
    result = compile_whole(load_whole(model), progress=False)(values)
    np.testing.assert_allclose(result, reference_result(model, x=values), rtol=1e-4, atol=1e-5)


def test_constant_indices_count_from_the_end() -> None:
    b = Builder()
    x = b.node("MatMul", b.input("x", (3, 4, 8)), b.random(8, 6))
    last = b.node("Gather", x, b.constant(-1, "int64"), axis=1)
    some = b.node("Gather", x, b.constant([-3, 2], "int64"), axis=-1)
    model = b.model(last, some)
    values = np.random.default_rng(2).standard_normal((3, 4, 8)).astype(np.float32)
    results = compile_whole(load_whole(model), progress=False)(values)
    for result, expected in zip(
        results, ReferenceEvaluator(model).run(None, {"x": values}), strict=True
    ):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_stays_with_the_engine(kind: str) -> None:
    """Values of bfloat16 come and go as float32."""
    number = getattr(TensorProto, kind.upper())
    rng = np.random.default_rng(0)
    values = {"x": rng.integers(-8, 9, (4, 16)), "w": rng.integers(-4, 5, (16, 8))}
    weight = helper.make_tensor("w", number, (16, 8), values["w"].astype(np.float32).reshape(-1))
    ports = [
        helper.make_tensor_value_info(name, number, shape)
        for name, shape in (("x", (4, 16)), ("y", (4, 8)))
    ]
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([product], "half", ports[:1], ports[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    network = load_whole(model)
    (row,) = network.report("xeon_6240").engine
    assert row.reason == f"dtype {kind} is not supported"
    x = values["x"].astype(np.float16 if kind == "float16" else np.float32)
    result = compile_whole(network, progress=False)(x)
    # Sums of up to 16 products of 32 at most, of which bfloat16 keeps 8 binary digits.
    np.testing.assert_allclose(result, values["x"] @ values["w"], rtol=2**-7, atol=4)


def test_bytes_as_truth_values_are_0_or_1() -> None:
    """Also in a kernel's epilogue, which could read the bytes themselves."""
    b = Builder()
    mask = b.node("Cast", b.input("mask", (4, 8), TensorProto.UINT8), to=TensorProto.BOOL)
    y = b.node("MatMul", b.input("x", (4, 8)), b.random(8, 8))
    model = b.model(b.node("Mul", y, b.node("Cast", mask, to=TensorProto.FLOAT)))
    network = load_whole(model)
    assert not network.quantized  # so that any difference is an error
    compiled = compile_whole(network, progress=False)
    rng = np.random.default_rng(0)
    mask_, x = rng.integers(0, 3, (4, 8)).astype(np.uint8), rng.standard_normal((4, 8), np.float32)
    result = reference_result(model, mask=mask_, x=x)
    np.testing.assert_allclose(compiled(mask=mask_, x=x), result, rtol=1e-5, atol=1e-6)
    assert random_arrays(network)[0].max() > 1


def test_truth_values_are_inputs_and_results() -> None:
    b = Builder()
    mask = b.input("mask", (4, 8), TensorProto.BOOL)
    x = b.node("Where", mask, b.input("x", (4, 8)), b.constant(0.0))
    y = b.node("MatMul", x, b.random(8, 8))
    ports = [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)]
    ports += [helper.make_tensor_value_info(b.node("Not", mask), TensorProto.BOOL, None)]
    graph = helper.make_graph(b.nodes, "masked", b.inputs, ports, b.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = compile_whole(load_whole(model), progress=False)
    rng = np.random.default_rng(0)
    values = {"mask": rng.random((4, 8)) < 0.5, "x": rng.standard_normal((4, 8), np.float32)}
    product, inverse = compiled(**values)
    np.testing.assert_array_equal(inverse, np.logical_not(values["mask"]))
    np.testing.assert_allclose(product, reference_result(model, **values), rtol=1e-5, atol=1e-6)
    bytes_ = compiled(values["mask"].astype(np.uint8), values["x"])
    np.testing.assert_array_equal(bytes_[0], product)
