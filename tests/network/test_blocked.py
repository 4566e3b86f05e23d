"""Weights of a few bits: kernels against NumPy, and models against onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import helper

import amos
from amos.errors import ExploreError, NetworkError
from amos.explore.choosing import Chooser
from amos.machine.cpu import cpu
from amos.network import Network
from amos.network.blocked import (
    BlockedWeight,
    BlockFormat,
    emit_dequantized_blocks,
    pack_codes,
    unpack_codes,
)
from amos.network.graph import Constant, GraphBuilder
from amos.network.lowerings import blocked
from amos.network.lowerings.blocked import UnpackedBlocks, format_of, lower_blocks, random_weight
from amos.network.lowerings.choosing import predict_lowering
from amos.network.precision.rounding import can_round
from tests.network.blocked_models import (
    Case,
    floats_of,
    model_of,
    random_rows,
    rounded,
    run_onnxruntime,
)
from tests.network.models import compile_whole, load_whole


def lowering_of(network: Network) -> UnpackedBlocks:
    (task,) = network.tasks
    lowering = predict_lowering(task, Chooser("host"))
    assert isinstance(lowering, UnpackedBlocks)
    return lowering


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packing_is_undone(bits: int) -> None:
    codes = np.random.default_rng(0).integers(0, 1 << bits, (3, 16), np.uint8)
    packed = pack_codes(codes, bits)
    assert packed.shape == (3, 2 * bits)
    np.testing.assert_array_equal(unpack_codes(packed, bits), codes)


@given(
    level=st.sampled_from([0, 4]),
    rows=st.sampled_from([(1,), (2,), (5,), (8,), (3, 4), (25,), (2, 1, 9)]),
    depth=st.integers(1, 150),
    columns=st.integers(1, 150),
    bits=st.sampled_from([2, 4, 8]),
    block=st.sampled_from([16, 32, 64, 256]),
    zeros=st.sampled_from(["", "uint8", "float32"]),
)
@example(level=4, rows=(1,), depth=64, columns=64, bits=4, block=32, zeros="")
@example(level=0, rows=(30,), depth=40, columns=33, bits=4, block=16, zeros="float32")
@example(level=4, rows=(27,), depth=75, columns=70, bits=2, block=64, zeros="uint8")
@example(level=0, rows=(8,), depth=5, columns=1, bits=8, block=256, zeros="uint8")
@settings(max_examples=1, deadline=None)
def test_kernels_unpack_what_models_pack(
    level: int, rows: tuple[int, ...], depth: int, columns: int, bits: int, block: int, zeros: str
) -> None:
    case = Case(rows, depth, columns, bits, block, zeros, level)
    network = load_whole(case.model("Relu"))
    (group,) = network.grouping.groups
    lowering = lowering_of(network)
    kernel = lowering.build("kernel")
    x, weight = random_rows(case), floats_of(case)
    constant = group.arguments["weight"]
    assert isinstance(constant, BlockedWeight)
    np.testing.assert_array_equal(constant.array, weight)
    got = kernel.run({"x": x, "weight": constant})
    factors = rounded(x, block) if lowering.form.rounds_rows else x.astype(np.float64)
    exact = factors @ weight
    allowed = 1e-5 * max(1.0, np.abs(exact).max())
    np.testing.assert_allclose(got.reshape(exact.shape), np.maximum(exact, 0), atol=allowed)


@pytest.mark.parametrize(("rows", "has_zeros"), [(3, False), (20, True)])
def test_kernels_of_cpus_without_avx512(rows: int, has_zeros: bool) -> None:
    """Vectors of 8 floats, and codes that are shifted rather than looked up."""
    rng = np.random.default_rng(0)
    op = amos.Operator.parse(
        "out[m,n] += x[m,k] * weight[k,n]",
        dict(m=rows, n=70, k=90),
        dict(x="float32", weight="float32", out="float32"),
    )
    weight = random_weight(90, 70, BlockFormat(4, 32, has_zeros), rng)
    lowering = lower_blocks(op, weight.format, Chooser("host"))
    assert lowering is not None
    form = replace(lowering.form, lanes=8, registers=16, has_permutes=False)
    assert not form.rounds_rows
    x = rng.standard_normal((rows, 90)).astype(np.float32)
    got = replace(lowering, form=form).build("kernel").run({"x": x, "weight": weight})
    np.testing.assert_allclose(got, x @ weight.array, atol=2e-4)


@pytest.mark.parametrize(
    "case",
    [
        Case((1,), 96, 40),
        Case((2, 3), 70, 50, zeros="uint8"),
        Case((20,), 64, 48, bits=8, block=16),
        Case((1, 4), 64, 32, block=128, zeros="float32"),
        Case((3,), 160, 40, level=4),
        Case((20,), 96, 40, bits=8, zeros="uint8", level=4),
    ],
    ids=str,
)
def test_models_are_what_onnxruntime_computes(case: Case) -> None:
    model, x = case.model("Sigmoid", bias=True), random_rows(case)
    network = load_whole(model)
    compiled = compile_whole(network, progress=False)
    (kernel,) = compiled.kernels.values()
    assert isinstance(kernel.lowering, UnpackedBlocks)
    assert isinstance(kernel.operator, amos.Operator) and kernel.operator.epilogue is not None
    rounds = kernel.lowering.form.rounds_rows
    same = model if rounds else replace(case, level=0).model("Sigmoid", bias=True)
    np.testing.assert_allclose(compiled(x), run_onnxruntime(same, x), atol=1e-5)
    assert f"{case.bits}bit_block{case.block}" in str(compiled.report())


def test_rows_are_rounded_where_the_model_allows_it() -> None:
    """Bytes of rows are those of onnxruntime, so that results are as near as those of floats."""
    if not cpu().features & {"avx512_vnni", "avx_vnni"}:
        pytest.skip("this CPU has no VNNI")
    case = Case((4,), 256, 64, level=4)
    model, x = case.model(), random_rows(case)
    x[1, 32:64] = 0
    network = load_whole(model)
    assert lowering_of(network).form.rounds_rows
    assert not lowering_of(load_whole(replace(case, level=0).model())).form.rounds_rows
    got, expected = compile_whole(network, progress=False)(x), run_onnxruntime(model, x)
    size = np.abs(expected).max()
    np.testing.assert_allclose(got, expected, atol=1e-5 * size)
    assert np.abs(got - x @ floats_of(case)).max() > 1e-4 * size


def test_halves_are_multiplied_as_floats() -> None:
    case = Case((3,), 64, 32)
    model, x = case.model(dtype="float16"), random_rows(case, "float16")
    got = compile_whole(load_whole(model), progress=False)(x)
    exact = x.astype(np.float64) @ floats_of(case)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, exact, rtol=2e-3, atol=2e-3 * np.abs(exact).max())


@pytest.mark.parametrize(
    ("dtype", "form", "has_zeros"),
    [
        ("int4", "MatMul", False),
        ("uint4", "Gemm", True),
        ("int8", "Transpose", True),
        ("uint8", "MatMul", True),
        ("int4", "Transpose", False),
        ("uint8", "Gemm", False),
    ],
)
def test_pairs_of_blocked_weights_stay_packed(dtype: str, form: str, has_zeros: bool) -> None:
    rng, kind = np.random.default_rng(0), np.dtype(getattr(ml_dtypes, dtype, dtype))
    rows, depth, columns, block = 3, 64, 24, 16
    axis = 0 if form == "MatMul" else 1
    shape = (depth, columns) if axis == 0 else (columns, depth)
    blocks = (depth // block, columns) if axis == 0 else (columns, depth // block)
    low = 0 if dtype.startswith("u") else -8
    arrays = {
        "codes": rng.integers(low, low + 16, shape).astype(kind),
        "scales": rng.uniform(0.01, 0.1, blocks).astype(np.float32),
    }
    if has_zeros:
        arrays["zeros"] = rng.integers(low, low + 16, blocks).astype(kind)
    nodes = [
        helper.make_node("DequantizeLinear", [*arrays], ["weight"], axis=axis, block_size=block)
    ]
    if form == "Gemm":
        nodes.append(helper.make_node("Gemm", ["input0", "weight"], ["y"], transB=1))
    else:
        name = "weight"
        if form == "Transpose":
            nodes.append(helper.make_node("Transpose", ["weight"], [name := "turned"]))
        nodes.append(helper.make_node("MatMul", ["input0", name], ["y"]))
    model = model_of(nodes, arrays, (rows, depth), (rows, columns))
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    network = amos.load_network(model)
    (region,) = network.regions.values()
    assert format_of(region.network.tasks[0]) is not None
    # The model of onnxruntime that it is raced against has packed weights, too.
    assert "DequantizeLinear" in {node.op_type for node in region.model.graph.node}
    got = compile_whole(region.network, progress=False)(x)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    np.testing.assert_allclose(got, session.run(None, {"input0": x})[0], atol=1e-5)


def test_blocks_that_fill_no_words_are_floats() -> None:
    rng = np.random.default_rng(0)
    for axis in (0, 1):
        x = rng.integers(-128, 128, (7, 7)).astype(np.int8)
        shape = (4, 7) if axis == 0 else (7, 4)
        scale = rng.uniform(0.01, 0.1, shape).astype(np.float32)
        operands = Constant(x), Constant(scale), None
        ours = blocked_floats(*operands, axis, 2)
        spread = np.repeat(scale, 2, axis)[:7, :7]
        np.testing.assert_array_equal(ours, x * spread)


@pytest.mark.parametrize("depth", [32, 64])
def test_blocks_of_columns_are_floats(depth: int) -> None:
    """Kernels unpack blocks of the rows that they sum over, also where the matrix is square."""
    rng, columns = np.random.default_rng(0), 64
    arrays = {
        "codes": rng.integers(-8, 8, (depth, columns)).astype(ml_dtypes.int4),
        "scales": rng.uniform(0.01, 0.1, (depth, columns // 16)).astype(np.float32),
    }
    nodes = [
        helper.make_node("DequantizeLinear", [*arrays], ["weight"], axis=1, block_size=16),
        helper.make_node("MatMul", ["input0", "weight"], ["y"]),
    ]
    model = model_of(nodes, arrays, (3, depth), (3, columns))
    x = rng.standard_normal((3, depth)).astype(np.float32)
    got = compile_whole(load_whole(model), progress=False)(x)
    weight = arrays["codes"].astype(np.float32) * np.repeat(arrays["scales"], 16, 1)
    np.testing.assert_allclose(got, x @ weight, atol=1e-5)


@pytest.mark.parametrize("block", [0, 8, 24])
def test_blocks_that_the_operator_lacks(block: int) -> None:
    model = Case((3,), 64, 32, level=4).model()
    (attribute,) = [x for x in model.graph.node[0].attribute if x.name == "block_size"]
    attribute.i = block
    with pytest.raises(NetworkError, match="onnxruntime does not take it"):
        amos.load_network(model)


def test_scales_of_other_blocks_are_refused() -> None:
    codes, scales = Constant(np.zeros((64, 8), np.int8)), Constant(np.ones((3, 8), np.float32))
    with pytest.raises(NetworkError, match=r"expected scales .* shape \(4, 8\), got \(3, 8\)"):
        blocked_floats(codes, scales, None, 0, 16)
    with pytest.raises(NetworkError, match="expected a block size from 1 on, got -16"):
        blocked_floats(codes, scales, None, 0, -16)


def blocked_floats(*operands: Any) -> np.ndarray:
    value = emit_dequantized_blocks(GraphBuilder(), *operands)
    assert isinstance(value, Constant) and not isinstance(value, BlockedWeight)
    return value.array


def test_packed_weights_are_not_rounded_to_16_bits() -> None:
    network = load_whole(Case((2,), 64, 32).model())
    (node,) = network.graph.computing()
    assert node.operation == "MatMul" and not can_round(node)


def test_kernels_of_other_rows_share_packed_weights() -> None:
    rng = np.random.default_rng(0)
    weight = random_weight(96, 100, BlockFormat(4, 32, False), rng)
    packed = []
    for rows in (1, 4, 30):
        lowering = lowering_of(load_whole(Case((rows,), 96, 100).model()))
        packed.append(lowering.form.pack(weight))
    np.testing.assert_array_equal(packed[0], packed[1])
    np.testing.assert_array_equal(packed[0], packed[2])


def test_packed_weights_are_not_tuned(tmp_path: Path) -> None:
    network = load_whole(Case((2,), 64, 32).model())
    with pytest.raises(ExploreError, match="has no task to tune"):
        amos.tune(network, trials=1, records=tmp_path / "r.db", progress=False)


def test_floats_take_the_place_of_too_many_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "MOST_ELEMENTS", 10)
    case = Case((2,), 64, 32)
    model, x = case.model(), random_rows(case)
    compiled = compile_whole(load_whole(model), progress=False)
    (kernel,) = compiled.kernels.values()
    assert not isinstance(kernel.lowering, UnpackedBlocks)
    np.testing.assert_allclose(compiled(x), run_onnxruntime(model, x), atol=1e-5)


def test_compiled_models_hold_packed_weights(tmp_path: Path) -> None:
    case = Case((1,), 512, 512)
    compiled = amos.compile(amos.load_network(case.model()), progress=False)
    if compiled.library is None:
        pytest.skip("onnxruntime was faster")
    size = sum(array.nbytes for array in case.arrays().values())
    assert compiled.library.constants.stat().st_size < 1.1 * size
    x = random_rows(case)
    np.testing.assert_allclose(compiled(x), run_onnxruntime(case.model(), x), atol=1e-5)
