"""Attention as one operator of ONNX or of onnxruntime, with and without a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from amos.errors import NetworkError
from tests.network.graphs import evaluate_graph
from tests.network.models import (
    WholeNetwork,
    load_whole,
    normal_inputs,
    sites_of,
)


@pytest.mark.parametrize(
    ("flat", "keys", "more"),
    [
        (False, 4, {}),
        (True, 4, {"is_causal": 1}),
        (True, 2, {"scale": 0.3, "is_causal": 1}),
    ],
)
@pytest.mark.parametrize("mask", ["", "bool", "float32"])
def test_attention_as_one_operator(flat: bool, keys: int, more: dict[str, Any], mask: str) -> None:
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "q": (2, 4, 5, 8),
        "k": (2, keys, 6, 8),
        "v": (2, keys, 6, 8),
    }
    if flat:
        shapes = {n: (s[0], s[2], s[1] * s[3]) for n, s in shapes.items()}
        more = more | {"q_num_heads": 4, "kv_num_heads": keys}
    inputs: dict[str, Any] = {
        n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()
    }
    if mask:
        seen = rng.random((5, 6)) < 0.7
        seen[1] = False  # such rows are zeros
        inputs["mask"] = seen if mask == "bool" else np.where(seen, 0, -np.inf).astype(np.float32)
    network = _single(helper.make_node("Attention", [*inputs], ["y"], **more), inputs)
    _compare(network, inputs)


def _single(
    node: Any,
    inputs: Mapping[str, np.ndarray],
    opset: int = 23,
    constants: Mapping[str, np.ndarray] | None = None,
) -> WholeNetwork:
    """A network of one operator."""
    weights = [numpy_helper.from_array(x, name) for name, x in (constants or {}).items()]
    kinds = {
        "bool": TensorProto.BOOL,
        "float32": TensorProto.FLOAT,
        "int32": TensorProto.INT32,
    }
    ports = [
        helper.make_tensor_value_info(n, kinds[str(x.dtype)], x.shape) for n, x in inputs.items()
    ]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in node.output]
    graph = helper.make_graph([node], "attention", ports, results, weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return load_whole(helper.make_model(graph, opset_imports=opsets, ir_version=11))


def _compare(network: WholeNetwork, inputs: Mapping[str, np.ndarray]) -> None:
    """Compare a network of one chain with onnxruntime."""
    assert len(sites_of(network)) == 1
    assert network.reference is not None
    expected = network.reference.evaluate([*inputs.values()])
    assert expected is not None
    for result, right in zip(
        evaluate_graph(network.graph, [*inputs.values()]), expected, strict=True
    ):
        np.testing.assert_allclose(result, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_causal", [0, 1])
def test_attention_with_a_cache(is_causal: int) -> None:
    cache = (2, 4, 3, 8)
    inputs = normal_inputs(q=(2, 4, 5, 8), k=(2, 4, 6, 8), v=(2, 4, 6, 8), keys=cache, values=cache)
    slots = ["q", "k", "v", "", "keys", "values"]
    results = ["y", "present_keys", "present_values"]
    node = helper.make_node("Attention", slots, results, is_causal=is_causal)
    _compare(_single(node, inputs), inputs)


@pytest.mark.parametrize(
    ("mask", "more"),
    [
        ((), {}),
        ((2, 4, 6, 6), {"scale": 0.7}),
        ((1, 1, 6, 6), {"unidirectional": 1}),
    ],
)
def test_attention_of_onnxruntime(mask: tuple[int, ...], more: dict[str, Any]) -> None:
    inputs = normal_inputs(
        q=(2, 6, 32), k=(2, 6, 32), v=(2, 6, 12), **({"mask": mask} if mask else {})
    )
    slots = ["q", "k", "v", *(["", "", "mask"] if mask else [])]
    _compare(_single(_multi_head(slots, **more), inputs), inputs)


def _multi_head(slots: Sequence[str], **more: Any) -> Any:
    return helper.make_node(
        "MultiHeadAttention", slots, ["y"], domain="com.microsoft", num_heads=4, **more
    )


def _grouped(packed: bool, past: int, rotary: bool) -> tuple[Any, dict[str, np.ndarray]]:
    """A ``GroupQueryAttention`` of six heads, of which three share a key and a value."""
    inputs = normal_inputs(q=(1, 5, 160 if packed else 96), k=(1, 5, 32), v=(1, 5, 32))
    if packed:
        del inputs["k"], inputs["v"]
    slots = ["q", *(["", ""] if packed else ["k", "v"]), "", "", "lengths", "total"]
    if past:
        inputs |= normal_inputs(keys=(1, 2, past, 16), values=(1, 2, past, 16))
        slots[3:5] = ["keys", "values"]
    if rotary:
        slots += ["cosines", "sines"]
    results = ["y", "present_keys", "present_values"]
    node = helper.make_node(
        "GroupQueryAttention", slots, results, domain="com.microsoft", num_heads=6,
        kv_num_heads=2, do_rotary=int(rotary), scale=0.4,
    )  # fmt: skip
    return node, inputs


@pytest.mark.parametrize(
    ("packed", "past", "rotary"), [(False, 0, False), (False, 3, True), (True, 3, False)]
)
def test_grouped_queries_of_onnxruntime(packed: bool, past: int, rotary: bool) -> None:
    node, inputs = _grouped(packed, past, rotary)
    angles = np.arange(9)[:, None] * np.geomspace(1, 0.01, 8)
    constants = {
        "lengths": np.full(1, past + 4, np.int32),
        "total": np.full(1, past + 5, np.int32),
        "cosines": np.cos(angles).astype("f"),
        "sines": np.sin(angles).astype("f"),
    }
    constants = {name: array for name, array in constants.items() if name in node.input}
    network = _single(node, inputs, constants=constants)
    (site,) = sites_of(network)
    assert {"r": 3, "b": 2}.items() <= site.chain.extents.items()
    _compare(network, inputs)
    with pytest.raises(NetworkError, match=f"input 5: expected {past + 4} for a full cache"):
        _single(node, inputs, constants=constants | {"lengths": np.full(1, past + 3, np.int32)})
    if past:  # a cache may have spare rows, which only the total says
        total = {"total": constants.pop("total")}
        with pytest.raises(NetworkError, match="lengths of keys that the network computes"):
            _single(node, inputs | total, constants=constants)


def test_a_window_of_keys_is_refused() -> None:
    inputs = normal_inputs(q=(2, 4, 6, 8), k=(2, 4, 6, 8), v=(2, 4, 6, 8))
    node = helper.make_node("Attention", [*inputs], ["y"], left_window_size=2)
    with pytest.raises(NetworkError, match="windows of keys are not supported"):
        _single(node, inputs, opset=25)


def test_a_causal_mask_of_different_lengths_is_refused() -> None:
    """There onnxruntime masks what no lower triangle does."""
    inputs = normal_inputs(q=(2, 5, 32), k=(2, 6, 32), v=(2, 6, 32))
    with pytest.raises(NetworkError, match="queries and keys of different lengths"):
        _single(_multi_head(["q", "k", "v"], unidirectional=1), inputs)
