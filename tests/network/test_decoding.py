"""One step of a decoder: a row of queries, and keys and values of a cache that gets a row more."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper

from amos.network.attention import match_attention
from amos.network.lowerings import cascade, fused
from amos.network.lowerings.chains import FusedChain
from tests.network.models import Builder, WholeNetwork, compile_whole, load_whole

PAST, HEADS, SHARED, WIDTH = 11, 6, 2, 16
ROW = HEADS * WIDTH


def _heads(b: Builder, x: str, count: int) -> str:
    rows = b.node("Reshape", x, b.constant([1, 1, count, WIDTH], "int64"))
    return b.node("Transpose", rows, perm=[0, 2, 1, 3])


def _mixed(b: Builder, scores: str, value: str) -> str:
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), value)
    rows = b.node("Transpose", mixed, perm=[0, 2, 1, 3])
    return b.node("Reshape", rows, b.constant([1, 1, ROW], "int64"))


def _gpt2(b: Builder, x: str, keys: str, values: str) -> tuple[str, str, str]:
    """One projection for all three, and the last row of a causal mask."""
    projected = b.node("Add", b.node("MatMul", x, b.random(ROW, 3 * ROW)), b.random(3 * ROW))
    names = ["query", "key", "value"]
    sizes = b.constant([ROW] * 3, "int64")
    b.nodes.append(helper.make_node("Split", [projected, sizes], names, axis=2))
    query, key, value = (_heads(b, name, HEADS) for name in names)
    key, value = b.node("Concat", keys, key, axis=2), b.node("Concat", values, value, axis=2)
    scores = b.node("MatMul", query, b.node("Transpose", key, perm=[0, 1, 3, 2]))
    seen = b.constant(np.tri(PAST + 1, dtype=bool)[None, None, PAST:], "bool")
    scores = b.node("Where", seen, b.node("Div", scores, b.constant(4.0)), b.constant(-1e30))
    return _mixed(b, scores, value), key, value


def _llama(b: Builder, x: str, keys: str, values: str) -> tuple[str, str, str]:
    """Three heads of queries share a key and a value, which are repeated behind the cache."""

    def projected(count: int) -> str:
        return _heads(b, b.node("MatMul", x, b.random(ROW, count * WIDTH)), count)

    def repeated(value: str) -> str:
        value = b.node("Unsqueeze", value, b.constant([2], "int64"))
        shape = [1, SHARED, HEADS // SHARED, PAST + 1, WIDTH]
        value = b.node("Expand", value, b.constant(shape, "int64"))
        return b.node("Reshape", value, b.constant([1, HEADS, PAST + 1, WIDTH], "int64"))

    query, key, value = projected(HEADS), projected(SHARED), projected(SHARED)
    key, value = b.node("Concat", keys, key, axis=2), b.node("Concat", values, value, axis=2)
    scores = b.node("MatMul", query, b.node("Transpose", repeated(key), perm=[0, 1, 3, 2]))
    return _mixed(b, b.node("Mul", scores, b.constant(0.25)), repeated(value)), key, value


Step = Callable[[Builder, str, str, str], tuple[str, str, str]]


def _network(step: Step, heads: int) -> WholeNetwork:
    b = Builder()
    cache = (1, heads, PAST, WIDTH)
    x, keys, values = (
        b.input(n, s) for n, s in (("x", (1, 1, ROW)), ("keys", cache), ("values", cache))
    )
    rows, key, value = step(b, x, keys, values)
    return load_whole(b.model(b.node("MatMul", rows, b.random(ROW, ROW)), key, value))


@pytest.mark.parametrize(("step", "heads"), [(_gpt2, HEADS), (_llama, SHARED)])
def test_a_step_with_a_cache_is_one_kernel(
    step: Step, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascade, "_LEAST", 1)
    monkeypatch.setattr(fused, "predict_separate", lambda *_: float("inf"))
    network = _network(step, heads)
    (site,) = match_attention(network.graph, network.grouping)
    assert PAST + 1 in site.chain.extents.values()
    compiled = compile_whole(network)
    assert [x for x in compiled.kernels.values() if isinstance(x.lowering, FusedChain)]
    rng, cache = np.random.default_rng(0), (1, heads, PAST, WIDTH)
    inputs = {
        "x": rng.standard_normal((1, 1, ROW)).astype(np.float32),
        "keys": rng.standard_normal(cache).astype(np.float32),
        "values": rng.standard_normal(cache).astype(np.float32),
    }
    assert network.reference is not None
    expected = network.reference.evaluate([*inputs.values()])
    assert expected is not None
    for result, right in zip(compiled(**inputs), expected, strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-4, atol=1e-4)
