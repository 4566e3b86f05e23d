"""AMOS, Table 2: how many operators of real networks map to Tensor Cores.

The paper does not say how it counts. Here an operator is an ONNX node that computes:
nodes that only move or reshape data, and constants, are none. It maps if the access
rule has a mapping of it on ``wmma_m16n16k16_f16_f32``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from amos import intrinsics
from amos.errors import MappingError
from amos.ir import Operator
from amos.mapping import enumerate_mappings
from amos.reproduce.networks import NETWORKS, network

_INTRINSIC = "wmma_m16n16k16_f16_f32"
#: Nodes that compute nothing.
_MOVES = {"Constant", "Reshape", "Transpose", "Flatten", "Concat"}
#: Table 2: total, mapped by XLA, mapped by AMOS.
_PAPER = {
    "ShuffleNet": (70, 6, 50),
    "ResNet-50": (71, 15, 54),
    "MobileNet": (30, 7, 29),
    "Bert": (204, 42, 84),
    "MI-LSTM": (11, 0, 9),
}


@dataclass(frozen=True)
class Table2Row:
    """One network.

    Attributes:
        total: nodes that compute.
        mapped: those of them that map to Tensor Cores.
        kinds: the mapped ones by kind.
        unmapped: the others by kind of node.
        paper_total: the paper's number of operators.
        paper_xla: those that XLA mapped.
        paper_amos: those that AMOS mapped.
    """

    network: str
    total: int
    mapped: int
    kinds: Mapping[str, int]
    unmapped: Mapping[str, int]
    paper_total: int
    paper_xla: int
    paper_amos: int


def table2() -> list[Table2Row]:
    """Count mapped operators, a row a network; ToolchainError without onnx."""
    return [_row(name) for name in NETWORKS]


def _row(name: str) -> Table2Row:
    kinds: Counter[str] = Counter()
    unmapped: Counter[str] = Counter()
    for node, op in operators_of(network(name)):
        if op is not None and _maps(op):
            kinds[op.name] += 1
        else:
            unmapped[node] += 1
    mapped = kinds.total()
    return Table2Row(
        name, mapped + unmapped.total(), mapped, dict(kinds), dict(unmapped), *_PAPER[name]
    )


def operators_of(model: Any) -> list[tuple[str, Operator | None]]:
    """Return the kind of each computing node of an ONNX model, and its sum of products.

    The operator is ``None`` where the node is no sum of products.
    """
    shapes = {
        value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
    }
    return [
        (node.op_type, _operator(node, shapes))
        for node in model.graph.node
        if node.op_type not in _MOVES
    ]


def _operator(node: Any, shapes: Mapping[str, tuple[int, ...]]) -> Operator | None:
    inputs, out = [shapes.get(name, ()) for name in node.input], shapes[node.output[0]]
    if node.op_type == "Conv":
        return _conv(node, inputs[0], inputs[1], out)
    if node.op_type == "MatMul":
        return _product(inputs[0], inputs[1])
    if node.op_type == "GlobalAveragePool":
        i, k = prod(inputs[0][:2]), prod(inputs[0][2:])
        return _parse("mean", "out[i] += x[i,k] * coefficient[k]", {"i": i, "k": k})
    return None


def _conv(
    node: Any, image: tuple[int, ...], weight: tuple[int, ...], out: tuple[int, ...]
) -> Operator:
    settings = {attribute.name: attribute for attribute in node.attribute}
    stride, pad = settings["strides"].ints[0], settings["pads"].ints[0]
    groups = settings["group"].i
    n, k, p, q = out
    _, c, r, s = weight
    window = f"p*{stride}+r-{pad},q*{stride}+s-{pad}"
    extents = {"n": n, "k": k, "p": p, "q": q, "c": c, "r": r, "s": s}
    h, w = image[2:]
    if groups == 1:
        text = f"out[n,k,p,q] += pad(image[n,c,{window}]) * weight[k,c,r,s]"
        return _parse("convolution", text, extents, image=(n, c, h, w))
    if c == 1 and k == groups:
        text = f"out[n,k,p,q] += pad(image[n,k,{window}]) * weight[k,r,s]"
        del extents["c"]
        return _parse("depthwise convolution", text, extents, image=(n, k, h, w))
    text = f"out[n,g,k,p,q] += pad(image[n,g,c,{window}]) * weight[g,k,c,r,s]"
    extents |= {"g": groups, "k": k // groups}
    return _parse("grouped convolution", text, extents, image=(n, groups, c, h, w))


def _product(x: tuple[int, ...], y: tuple[int, ...]) -> Operator:
    k, n = y[-2:]
    if len(y) > 2:
        extents = {"b": prod(y[:-2]), "m": x[-2], "n": n, "k": k}
        return _parse("batched product", "out[b,m,n] += x[b,m,k] * y[b,k,n]", extents)
    m = prod(x[:-1])
    if m == 1:
        return _parse("matrix-vector product", "out[n] += y[k,n] * x[k]", {"n": n, "k": k})
    return _parse("matrix product", "out[m,n] += x[m,k] * y[k,n]", {"m": m, "n": n, "k": k})


def _parse(name: str, text: str, extents: Mapping[str, int], **shapes: tuple[int, ...]) -> Operator:
    return Operator.parse(text, extents, name=name, shapes=shapes)


@lru_cache(maxsize=256)
def _maps(op: Operator) -> bool:
    try:
        return bool(enumerate_mappings(op, intrinsics.get(_INTRINSIC), "access").count)
    except MappingError:
        return False
