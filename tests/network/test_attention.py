"""Attention of networks as one kernel: what is matched, what it reads, and that it is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from amos.chains import rebuild_chain
from amos.explore.choosing import Chooser
from amos.ir import Chain
from amos.network.attention import match_attention
from amos.network.graph import Graph, Node, Operand
from amos.network.groups import group_nodes
from amos.network.lowerings import cascade, fused
from amos.network.lowerings.chains import FusedChain
from amos.network.lowerings.fused import choose_fused
from amos.network.precision.rounding import round_products
from amos.network.task_records import rank_records
from amos.network.tuning import tune
from amos.validate import evaluate
from tests.network.graphs import evaluate_graph
from tests.network.models import (
    Builder,
    WholeNetwork,
    compile_whole,
    load_whole,
    normal_inputs,
    sites_of,
)

LENGTH, HEADS, WIDTH = 20, 3, 16
ROW = HEADS * WIDTH
_CHOOSER = Chooser("host")


def _split(b: Builder, x: str, perm: list[int]) -> str:
    parts = b.node("Reshape", x, b.constant([1, LENGTH, HEADS, WIDTH], "int64"))
    return b.node("Transpose", parts, perm=perm)


def _projected(b: Builder, x: str) -> str:
    return b.node("Add", b.node("MatMul", x, b.random(ROW, ROW)), b.random(ROW))


def _joined(b: Builder, x: str) -> str:
    rows = b.node("Transpose", x, perm=[0, 2, 1, 3])
    return b.node("Reshape", rows, b.constant([1, LENGTH, ROW], "int64"))


def _bert(b: Builder, x: str, mask: str) -> str:
    query, key, value = (_projected(b, x) for _ in range(3))
    scores = b.node("MatMul", _split(b, query, [0, 2, 1, 3]), _split(b, key, [0, 2, 3, 1]))
    scores = b.node("Add", b.node("Div", scores, b.constant(4.0)), mask)
    shares = b.node("Softmax", scores, axis=-1)
    return _joined(b, b.node("MatMul", shares, _split(b, value, [0, 2, 1, 3])))


def _export_of_torch(b: Builder, x: str, mask: str) -> str:
    """As PyTorch exports its attention: both factors are scaled, and NaN is replaced."""
    query, key, value = (_split(b, _projected(b, x), [0, 2, 1, 3]) for _ in range(3))
    flat = b.node("Reshape", key, b.constant([-1, LENGTH, WIDTH], "int64"))
    flat = b.node("Transpose", flat, perm=[0, 2, 1])
    key = b.node("Reshape", flat, b.constant([1, HEADS, WIDTH, LENGTH], "int64"))
    query, key = (b.node("Mul", each, b.constant(0.5)) for each in (query, key))
    shares = b.node("Softmax", b.node("Add", b.node("MatMul", query, key), mask), axis=-1)
    shares = b.node("Where", b.node("IsNaN", shares), b.constant(0.0), shares)
    return _joined(b, b.node("MatMul", shares, value))


def _gpt(b: Builder, x: str, mask: str) -> str:
    """One projection for all three, and a causal mask whose upper half is infinite."""
    projected = b.node("Add", b.node("MatMul", x, b.random(ROW, 3 * ROW)), b.random(3 * ROW))
    names = ["query", "key", "value"]
    b.nodes.append(
        helper.make_node("Split", [projected, b.constant([ROW] * 3, "int64")], names, axis=2)
    )
    query, key, value = (_split(b, name, [0, 2, 1, 3]) for name in names)
    scores = b.node("MatMul", query, b.node("Transpose", key, perm=[0, 1, 3, 2]))
    causal = b.constant(np.where(np.tri(LENGTH, dtype=bool), 0, -np.inf)[None, None])
    scores = b.node("Add", b.node("Mul", scores, b.constant(0.25)), causal)
    shares = b.node("Softmax", b.node("Add", scores, mask), axis=-1)
    return _joined(b, b.node("MatMul", shares, value))


def _whisper(b: Builder, x: str, mask: str) -> str:
    """Heads are the only leading axis, and the residual is added behind the second product."""

    def split(value: str, perm: list[int]) -> str:
        parts = b.node("Reshape", value, b.constant([LENGTH, HEADS, WIDTH], "int64"))
        return b.node("Transpose", parts, perm=perm)

    query, key, value = (_projected(b, x) for _ in range(3))
    scores = b.node("MatMul", split(query, [1, 0, 2]), split(key, [1, 2, 0]))
    flat = b.node("Reshape", mask, b.constant([1, 1, LENGTH], "int64"))
    shares = b.node("Softmax", b.node("Add", scores, flat), axis=2)
    mixed = b.node("MatMul", shares, split(value, [1, 0, 2]))
    mixed = b.node("Sigmoid", mixed)
    rows = b.node("Transpose", mixed, perm=[1, 0, 2])
    return b.node("Reshape", rows, b.constant([1, LENGTH, ROW], "int64"))


def _eager_gpt(b: Builder, x: str, mask: str) -> str:
    """As PyTorch exports GPT-2 without its fused attention: keys behind a query are filled."""
    query, key, value = (_split(b, _projected(b, x), [0, 2, 1, 3]) for _ in range(3))
    scores = b.node("MatMul", query, b.node("Transpose", key, perm=[0, 1, 3, 2]))
    scores = b.node("Div", scores, b.constant(4.0))
    seen = b.constant(np.tri(LENGTH, dtype=bool)[None, None], "bool")
    scores = b.node("Where", seen, scores, b.constant(np.finfo("f").min))
    shares = b.node("Softmax", b.node("Add", scores, mask), axis=-1)
    return _joined(b, b.node("MatMul", shares, value))


def _turned(b: Builder, x: str) -> str:
    """Rotary embedding: halves of a row are turned by an angle of its position."""
    starts, middle, end, axis = (b.constant([n], "int64") for n in (0, 4, 8, 3))
    first, second = b.node("Slice", x, starts, middle, axis), b.node("Slice", x, middle, end, axis)
    turned = b.node("Concat", b.node("Neg", second), first, axis=3)
    cosines, sines = b.random(LENGTH, 8), b.random(LENGTH, 8)
    return b.node("Add", b.node("Mul", x, cosines), b.node("Mul", turned, sines))


def _llama(b: Builder, x: str, mask: str) -> str:
    """Six heads of queries, of which three share a key and a value, and a bias of each head."""

    def heads(count: int) -> str:
        rows = b.node("Add", b.node("MatMul", x, b.random(ROW, 8 * count)), b.random(8 * count))
        rows = b.node("Reshape", rows, b.constant([1, LENGTH, count, 8], "int64"))
        return b.node("Transpose", rows, perm=[0, 2, 1, 3])

    def repeated(value: str) -> str:
        value = b.node("Unsqueeze", value, b.constant([2], "int64"))
        value = b.node("Expand", value, b.constant([1, 2, 3, LENGTH, 8], "int64"))
        return b.node("Reshape", value, b.constant([1, 6, LENGTH, 8], "int64"))

    query, key, value = _turned(b, heads(6)), _turned(b, heads(2)), heads(2)
    key = b.node("Transpose", repeated(key), perm=[0, 1, 3, 2])
    scores = b.node("Mul", b.node("MatMul", query, key), b.constant(0.35))
    scores = b.node("Add", b.node("Add", scores, mask), b.random(1, 6, 1, LENGTH))
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), repeated(value))
    return _joined(b, mixed)


Attention = Callable[[Builder, str, str], str]


def _network(attention: Attention) -> WholeNetwork:
    b = Builder()
    x, mask = b.input("x", (1, LENGTH, ROW)), b.input("mask", (1, 1, 1, LENGTH))
    model = b.model(b.node("MatMul", attention(b, x, mask), b.random(ROW, ROW)))
    return load_whole(model)


def _inputs(hidden: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    mask = np.zeros((1, 1, 1, LENGTH), np.float32)
    mask[..., :hidden] = -np.inf
    return {"x": rng.standard_normal((1, LENGTH, ROW)).astype(np.float32), "mask": mask}


@pytest.fixture
def paying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains pay everywhere, in the tiles of a brief search."""
    monkeypatch.setattr(cascade, "_LEAST", 1)
    monkeypatch.setattr(fused, "predict_separate", lambda *_: float("inf"))


@pytest.mark.parametrize(
    ("attention", "text"),
    [
        (_bert, "softmax(scores / 4.0 + other[k], axis=k); mixed[q,b,j]"),
        (_export_of_torch, "safe_softmax((scores * 0.25) + other[k], axis=k)"),
        (_gpt, "key[k,b+3,d]"),
        (_whisper, "out[q,a,j] = sigmoid(mixed)"),
        (_eager_gpt, "softmax(min(scores / 4.0, high[q, k]) + other[k], axis=k)"),
        (_llama, "scores[b,r,q,k] += query[q,b,r,d] * key[k,b,d]; "),
        (_llama, "mixed[q,b,r,j] += shares[b,r,q,k] * value[k,b,j]"),
    ],
)
def test_a_chain_reads_rows_where_they_are(attention: Attention, text: str) -> None:
    network = _network(attention)
    (site,) = sites_of(network)
    assert text in str(site.chain)
    assert {site.arguments[n].operation for n in ("query", "key", "value")} == {"Add"}  # type: ignore[union-attr]
    for hidden in (0, 7, LENGTH):  # rows that are masked in part, and as a whole
        values = _values(network.graph, [*site.arguments.values(), site.result], _inputs(hidden))
        *arrays, expected = values
        shapes = {tensor.name: tensor.shape for tensor in site.chain.inputs}
        named = zip(site.arguments, arrays, strict=True)
        result = evaluate(site.chain, {name: x.reshape(shapes[name]) for name, x in named})
        flat, right = np.ravel(result), np.ravel(expected)
        np.testing.assert_allclose(flat, right, rtol=1e-4, atol=1e-5)


def _attended(b: Builder, query: str, key: str, value: str) -> str:
    scores = b.node("MatMul", query, b.node("Transpose", key, perm=[0, 2, 1]))
    return b.node("MatMul", b.node("Softmax", scores, axis=-1), value)


def _reversed(b: Builder, x: str) -> str:
    starts, ends, axis = (b.constant([n], "int64") for n in (-1, -1000, 1))
    return b.node("Slice", x, starts, ends, axis, starts)


def _filled(
    b: Builder, x: str, fill: float, *, hides_seen: bool = False, is_causal: bool = False
) -> str:
    """Attention whose scores are filled where a mask of choices says so."""
    scores = b.node("MatMul", x, b.node("Transpose", x, perm=[0, 2, 1]))
    if is_causal:  # with the mask, some rows see nothing: the fill counts there, and no infinity
        seen = np.tri(LENGTH, dtype=bool)
        scores = b.node("Add", scores, b.constant(np.where(seen, 0, -np.inf)))
    mask = b.node("Greater", b.input("keys", (2, 1, LENGTH)), b.constant(0.0))
    scores = b.node("Mul", scores, b.constant(9.0))
    pair = (b.constant(fill), scores) if hides_seen else (scores, b.constant(fill))
    return b.node("MatMul", b.node("Softmax", b.node("Where", mask, *pair), axis=-1), x)


def _scaled(b: Builder, x: str, factor: float) -> str:
    return b.node("Mul", x, b.constant(factor))


@pytest.mark.parametrize(
    "attention",
    [
        lambda b, x: _attended(b, x, x, _scaled(b, x, 2.0)),
        lambda b, x: _attended(b, _scaled(b, x, -0.5), x, b.node("Relu", _scaled(b, x, 2.0))),
        lambda b, x: b.node("Sigmoid", _attended(b, x, x, _scaled(b, x, 3.0))),
        lambda b, x: _attended(b, x, _reversed(b, x), x),
        lambda b, x: _attended(b, _scaled(b, x, np.inf), x, x),
        lambda b, x: _filled(b, x, -np.inf),
        lambda b, x: _filled(b, x, -1.0),
        lambda b, x: _filled(b, x, -1.0, hides_seen=True),
        lambda b, x: _filled(b, x, float(np.finfo("f").min), is_causal=True),
    ],
    ids=[
        "value",
        "query",
        "epilogue",
        "reversed",
        "infinite",
        "hidden",
        "filled",
        "swapped",
        "twice",
    ],
)
def test_a_chain_computes_what_its_nodes_do(attention: Callable[[Builder, str], str]) -> None:
    b = Builder()
    network = load_whole(b.model(attention(b, b.input("x", (2, LENGTH, WIDTH)))))
    (site,) = sites_of(network)
    inputs = normal_inputs(**{port.name: port.shape for port in network.inputs})
    *arrays, expected = _values(network.graph, [*site.arguments.values(), site.result], inputs)
    shapes = {tensor.name: tensor.shape for tensor in site.chain.inputs}
    pairs = zip(site.arguments, arrays, strict=True)
    result = evaluate(site.chain, {name: array.reshape(shapes[name]) for name, array in pairs})
    assert network.reference is not None
    (right,) = network.reference.evaluate([*inputs.values()]) or ()
    np.testing.assert_allclose(expected, right, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def _behind_a_projection(b: Builder, x: str) -> str:
    projected = b.node("Relu", b.node("MatMul", x, b.random(WIDTH, WIDTH)))
    return _attended(b, _scaled(b, projected, 0.25), x, x)


def _behind_another(b: Builder, x: str) -> str:
    """The second one reads the transposed result of the first one as its key."""
    return _attended(b, x, _attended(b, x, x, x), x)


@pytest.mark.parametrize(("attention", "count"), [(_behind_a_projection, 1), (_behind_another, 2)])
def test_a_chain_reads_results_of_kernels(
    attention: Callable[[Builder, str], str], count: int
) -> None:
    """It reads no value within another kernel, and computes no node of one."""
    b = Builder()
    network = load_whole(b.model(attention(b, b.input("x", (2, WIDTH, WIDTH)))))
    sites = sites_of(network)
    assert len(sites) == count
    fused = {group.result.number for site in sites for group in site.groups}
    groups = [x for x in network.grouping.groups if x.result.number not in fused]
    kernels = [*sites, *groups]
    numbers = [node.number for kernel in kernels for node in kernel.nodes]
    assert len(numbers) == len({*numbers})
    within = {*numbers} - {kernel.result.number for kernel in kernels}
    read = [x for site in sites for x in site.arguments.values() if isinstance(x, Node)]
    assert within.isdisjoint(node.number for node in read)


def _values(
    graph: Graph, operands: Sequence[Operand], inputs: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """The values of operands, by NumPy."""
    nodes = tuple(each for each in operands if isinstance(each, Node))
    results = iter(evaluate_graph(Graph(graph.nodes, nodes), [*inputs.values()]))
    return [next(results) if isinstance(x, Node) else x.array for x in operands]


def test_factors_that_are_rounded_are_read_so() -> None:
    graph = round_products(_network(_bert).graph)
    (site,) = match_attention(graph, group_nodes(graph))
    tensors = (*site.chain.inputs, *site.chain.temporaries, site.chain.result)
    narrow = {each.name for each in tensors if each.dtype == "bfloat16"}
    assert narrow == {"query", "key", "value", "shares"}


@pytest.mark.usefixtures("paying")
def test_a_compiled_network_calls_one_kernel() -> None:
    network = _network(_export_of_torch)
    compiled = compile_whole(network)
    assert [x.lowering for x in compiled.kernels.values() if isinstance(x.lowering, FusedChain)]
    assert all(check.passed for check in compiled.checks) and network.reference is not None
    kernel = next(each for each in compiled.to_dict()["kernels"] if each["kind"] == "attention")
    assert kernel["tiles"] and kernel["measured_seconds"] is None
    for hidden in (7, LENGTH):
        inputs = _inputs(hidden)
        expected = network.reference.evaluate([*inputs.values()])
        assert expected is not None
        np.testing.assert_allclose(compiled(**inputs), expected[0], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("paying")
@pytest.mark.long
def test_a_tuned_chain_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    x = b.input("x", (2, LENGTH, WIDTH))
    network = load_whole(b.model(_attended(b, x, x, x)))
    tuning = tune(network, trials=4, records=tmp_path / "x.db", progress=False)
    (row,) = tuning.chains
    assert row.seconds and row.trials and tuning.trials >= 4
    ranked = rank_records(tmp_path / "x.db")
    ((_, lowerings),) = choose_fused(network, _CHOOSER, ranked=ranked).items()
    best = min((r for r in sum(ranked.values(), []) if r.is_chain), key=lambda r: r.seconds)
    assert str(lowerings[0].candidate) == str(rebuild_chain(best))
    monkeypatch.setattr(fused, "lower_chain", lambda *_: lowerings)
    twice = {key: [*x, *x] for key, x in ranked.items()}
    ((_, several),) = choose_fused(network, _CHOOSER, 4, twice).items()
    assert [each.candidate for each in several].count(lowerings[0].candidate) == 1


@pytest.mark.usefixtures("paying")
def test_reports_have_a_row_of_a_chain_and_none_of_its_softmax() -> None:
    network = _network(_bert)
    report = network.report()
    (row,) = [row for row in report.tasks if row.kind == "attention"]
    assert row.seconds and row.mappings > 1 and "+" in row.instruction
    assert row.products == 2 * HEADS * LENGTH * LENGTH * WIDTH
    assert not [row for row in report.engine if row.operation in ("Softmax", "Transpose")]


def test_what_is_read_elsewhere_too_stays_in_kernels_of_its_own() -> None:
    b = Builder()
    x = b.input("x", (2, LENGTH, WIDTH))
    scores = b.node("MatMul", x, b.node("Transpose", x, perm=[0, 2, 1]))
    shares = b.node("Softmax", scores, axis=-1)
    mixed = b.node("MatMul", shares, x)
    for observed in (scores, shares):
        assert not sites_of(load_whole(b.model(mixed, observed)))
    assert len(sites_of(load_whole(b.model(mixed)))) == 1
    rows = b.node("MatMul", b.node("Softmax", scores, axis=1), x)
    assert not sites_of(load_whole(b.model(rows)))


@pytest.mark.usefixtures("paying")
def test_kernels_that_are_measured_have_different_tiles() -> None:
    network = _network(_bert)
    chosen = choose_fused(network, _CHOOSER, count=2)
    ((job, lowerings),) = chosen.items()
    assert isinstance(job.operator, Chain) and len(lowerings) == 2
    assert lowerings[0].predicted <= lowerings[1].predicted
    assert lowerings[0].candidate.tiling.tiles != lowerings[1].candidate.tiling.tiles
