"""Attention as one operator of ONNX, or of onnxruntime, written out as products and a softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from amos.network.graph import Constant, Operand
from amos.network.operations import numpy_dtype
from amos.network.reading.moves import slice_axes
from amos.network.reading.node import NodeSource, Read


@dataclass(frozen=True)
class _Heads:
    """The factors of attention: batch × heads × length × width.

    Attributes:
        query, key, value: the factors; heads of the last two divide those of the first.
        is_flat: whether the heads of results are parts of rows.
    """

    query: Operand
    key: Operand
    value: Operand
    is_flat: bool


def _divide(node: NodeSource, value: Operand, heads: int) -> Operand:
    """Divide rows among heads: batch × length × width to batch × heads × length × width."""
    if len(value.shape) == 4:
        return value
    batch, length, width = value.shape
    if not heads or width % heads:
        raise node.refuse(f"rows of {width} elements are not divided among {heads} heads")
    divided = node.reshape(value, (batch, length, heads, width // heads))
    return node.transpose(divided, (0, 2, 1, 3))


def _repeat(node: NodeSource, value: Operand, heads: int) -> Operand:
    """Repeat each head for the queries that share it."""
    batch, own, length, width = value.shape
    if own == heads:
        return value
    if heads % own:
        raise node.refuse(f"{heads} heads of queries do not share {own} of keys evenly")
    single = node.reshape(value, (batch, own, 1, length, width))
    shape = (batch, own, heads // own, length, width)
    return node.reshape(node.emit("Expand", single, shape=shape), (batch, heads, length, width))


def _attend(
    node: NodeSource, heads: _Heads, scale: float | None, masks: Sequence[Operand], *, ahead: int
) -> Operand:
    """Append products and softmax; a softmax of float32.

    Args:
        scale: of the scores; by default one over the root of a row's width.
        ahead: number of keys before the first query that queries see; negative for all keys.
    """
    query, count = heads.query, heads.query.shape[1]
    if query.dtype != "float32":
        raise node.refuse(f"dtype {query.dtype} is not supported")
    key, value = (_repeat(node, each, count) for each in (heads.key, heads.value))
    scores = node.emit("MatMul", query, node.transpose(key, (0, 1, 3, 2)))
    factor = 1 / sqrt(query.shape[-1]) if scale is None else scale
    scores = node.emit("Mul", scores, node.scalar(factor, scores))
    for mask in masks:
        scores = node.emit("Add", scores, mask)
    if ahead >= 0:
        scores = node.emit("Add", scores, _causal(scores, ahead))
    shares = node.emit("Softmax", scores, axis=3)
    if masks and node.operation == "Attention":  # rows that see nothing are zeros
        zero = node.scalar(0, shares)
        shares = node.emit("Where", node.emit("IsNaN", shares), zero, shares)
    result = node.emit("MatMul", shares, value)
    if not heads.is_flat:
        return result
    batch, _, length, width = result.shape
    return node.reshape(node.transpose(result, (0, 2, 1, 3)), (batch, length, count * width))


def _causal(scores: Operand, ahead: int) -> Constant:
    """Return a mask that hides the keys behind each query."""
    rows, columns = scores.shape[-2:]
    seen = np.tri(rows, columns, ahead, bool)
    return Constant(np.where(seen, 0, -np.inf).astype(numpy_dtype(scores.dtype)))


def _read_attention(node: NodeSource) -> tuple[Operand, ...]:
    """Read ``Attention`` of ONNX: also with a cache, shared keys, and a causal mask."""
    attributes = node.attributes
    if attributes.get("softcap", 0.0):
        raise node.refuse("softcap is not supported")
    if any(attributes.get(f"{side}_window_size", -1) >= 0 for side in ("left", "right")):
        raise node.refuse("windows of keys are not supported")
    if node.optional(6) is not None:
        raise node.refuse("lengths of keys are not supported")
    query, key, value = (node.input(n) for n in range(3))
    of_queries = int(attributes.get("q_num_heads", 0))
    of_keys = int(attributes.get("kv_num_heads", 0))
    is_flat = len(query.shape) == 3
    query = _divide(node, query, of_queries)
    key, value = (_divide(node, each, of_keys) for each in (key, value))
    past = node.optional(4), node.optional(5)
    ahead = past[0].shape[2] if past[0] is not None else 0
    if past[0] is not None and past[1] is not None:
        key = node.emit("Concat", past[0], key, axis=2)
        value = node.emit("Concat", past[1], value, axis=2)
    mask = node.optional(3)
    masks = []
    if mask is not None and mask.dtype == "bool":
        hidden = node.scalar(-np.inf, query)
        masks = [node.emit("Where", mask, node.scalar(0, query), hidden)]
    elif mask is not None:
        masks = [mask]
    is_causal = bool(attributes.get("is_causal", 0))
    scale = attributes.get("scale")
    heads = _Heads(query, key, value, is_flat)
    result = _attend(node, heads, scale, masks, ahead=ahead if is_causal else -1)
    return result, key, value


def _read_multi_head(node: NodeSource) -> Operand:
    """Read onnxruntime's ``MultiHeadAttention`` of three tensors, with biases and a mask."""
    if any(node.optional(n) is not None for n in (4, *range(6, 10))) or any(node.outputs[1:]):
        raise node.refuse("a mask of keys and a cache are not supported")
    factors = [node.input(n) for n in range(3)]
    if any(len(each.shape) != 3 for each in factors):
        raise node.refuse("expected query, key and value of three axes")
    count, (bias, begin) = int(node.attributes["num_heads"]), (node.constant(3), 0)
    own: list[Operand] = []
    for factor in factors:
        width = factor.shape[-1]
        if bias is not None:
            factor = node.emit("Add", factor, Constant(bias[begin : begin + width]))
        own.append(_divide(node, factor, count))
        begin += width
    scale, added = float(node.attributes.get("scale", 0.0)), node.optional(5)
    masks = [] if added is None else [added]
    ahead = 0 if node.attributes.get("unidirectional", 0) else -1
    query, key, value = own
    if ahead == 0 and query.shape[2] != key.shape[2]:
        raise node.refuse("a causal mask of queries and keys of different lengths is not supported")
    heads = _Heads(query, key, value, is_flat=True)
    return _attend(node, heads, scale or None, masks, ahead=ahead)


def _read_grouped(node: NodeSource) -> tuple[Operand, ...]:
    """Read onnxruntime's ``GroupQueryAttention``: causal, behind a cache of keys and values."""
    attributes = node.attributes
    unusual = ("softcap", "smooth_softmax", "rotary_interleaved", "qk_output")
    if names := [name for name in unusual if attributes.get(name, 0) > 0]:
        raise node.refuse(f"{names[0]} is not supported")
    if attributes.get("local_window_size", -1) >= 0:
        raise node.refuse("windows of keys are not supported")
    if any(node.optional(n) is not None for n in (9, *range(11, 14))) or any(node.outputs[3:]):
        raise node.refuse("positions, sinks and quantized caches are not supported")
    heads, shared = (int(attributes[name]) for name in ("num_heads", "kv_num_heads"))
    query, key, value = _unpack(node, heads, shared)
    past = node.optional(3), node.optional(4)
    ahead = past[0].shape[2] if past[0] is not None else 0
    length = ahead + key.shape[2]
    _check_lengths(node, query.shape[0], ahead, length)
    if attributes.get("do_rotary", 0):
        query, key = (_turn(node, each, ahead) for each in (query, key))
    if past[0] is not None and past[1] is not None and ahead:
        key = node.emit("Concat", past[0], key, axis=2)
        value = node.emit("Concat", past[1], value, axis=2)
    bias = node.optional(10)
    masks = [] if bias is None else [bias]
    scale = float(attributes.get("scale", 0.0)) or None
    own = _Heads(query, key, value, is_flat=True)
    result = _attend(node, own, scale, masks, ahead=ahead)
    return result, key, value


def _unpack(node: NodeSource, heads: int, shared: int) -> list[Operand]:
    """Return query, key and value by heads, which may be columns of one input."""
    query, key, value = node.input(0), node.optional(1), node.optional(2)
    if len(query.shape) != 3:
        raise node.refuse("expected a query of three axes")
    if key is not None and value is not None:
        columns = [query, key, value]
    else:
        width, begin, columns = query.shape[-1] // (heads + 2 * shared), 0, []
        for count in (heads, shared, shared):
            columns.append(slice_axes(node, query, {2: (begin, 1, count * width)}))
            begin += count * width
    counts = (heads, shared, shared)
    return [_divide(node, each, count) for each, count in zip(columns, counts, strict=True)]


def _check_lengths(node: NodeSource, batch: int, ahead: int, length: int) -> None:
    """Refuse keys of which rows of a batch might have different numbers, or a cache has spare ones.

    A single row has as many as the total of all rows, which is the last of both inputs.
    """
    for position, expected in ((5, length - 1), (6, length)):
        lengths = node.input(position)
        if isinstance(lengths, Constant):
            if (lengths.array != expected).any():
                raise node.refuse(f"input {position}: expected {expected} for a full cache")
        elif batch > 1 or (ahead and position == 6):
            raise node.refuse("lengths of keys that the network computes are not supported")


def _turn(node: NodeSource, value: Operand, ahead: int) -> Operand:
    """Append a rotary embedding of the positions behind a cache."""
    tables = node.constant(7), node.constant(8)
    *_, length, width = value.shape
    if tables[0] is None or tables[1] is None or 2 * tables[0].shape[1] != width:
        raise node.refuse("a rotary embedding of a part of a row is not supported")
    cosines, sines = (table[ahead : ahead + length] for table in tables if table is not None)
    half = width // 2
    halves = [slice_axes(node, value, {3: (start, 1, half)}) for start in (half, 0)]
    turned = node.emit("Concat", *halves, axis=3)
    straight = Constant(np.concatenate([cosines, cosines], axis=1))
    across = Constant(np.concatenate([-sines, sines], axis=1))
    return node.emit("Add", node.emit("Mul", value, straight), node.emit("Mul", turned, across))


READERS: dict[str, Read] = {
    "Attention": _read_attention,
    "GroupQueryAttention": _read_grouped,
    "MultiHeadAttention": _read_multi_head,
}
