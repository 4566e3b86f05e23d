"""Simplifications ahead of layouts: folded scales, idle taps, moves that move nothing.

The channels of images are the second axis here, as ONNX has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from amos.network.blocked import BlockedWeight
from amos.network.graph import Constant, Graph, GraphBuilder, Node, Operand, Rewrite, rewrite_graph
from amos.network.operations import Kind


def fold_scales(graph: Graph) -> Graph:
    """Return a graph with factors and summands of each channel folded.

    They follow a convolution or a matrix product of floats with constant weights, and nothing
    else reads what is between. Factors become part of the weights, summands a single one.
    Factors stay where they, or the weights times them, are not finite.
    """
    rewrites: dict[int, Rewrite] = {}
    for node in graph.nodes:
        chain = _follow_product(graph, node)
        if chain is not None and (chain.weight is not node.operands[1] or chain.length > 1):
            rewrites[chain.last.number] = partial(_emit_scaled, chain)
    return rewrite_graph(graph, rewrites)


@dataclass
class _ScaledProduct:
    """A linear operator with the products and sums behind it, in double precision.

    Attributes:
        last: whose result the chain's is.
        weight: the anchor's, with the factors.
        scale: a factor for all channels or one for each.
        shift: a summand for all channels or one for each; ``None`` if there is none.
    """

    anchor: Node
    last: Node
    weight: Constant
    scale: np.ndarray
    shift: np.ndarray | None = None
    length: int = 0

    @property
    def axis(self) -> int:
        """The axis of its channels."""
        return len(self.anchor.shape) - 1 if self.anchor.operation == "MatMul" else 1

    def take(self, node: Node) -> bool:
        """Append the reader of the last node; return whether it can be folded."""
        values = self._values(node)
        if values is None:
            return False
        if node.operation == "Mul":
            with np.errstate(all="ignore"):
                scale = self.scale * values
                weight = _scale_weight(self.anchor, scale)
            if not np.isfinite(weight.array).all():
                return False
            self.weight, self.scale = weight, scale
            self.shift = None if self.shift is None else self.shift * values
        else:
            self.shift = values if self.shift is None else self.shift + values
        self.last, self.length = node, self.length + 1
        return True

    def _values(self, node: Node) -> np.ndarray | None:
        """Return the constant of a product or sum, if it is one for each channel or for all."""
        constants = [each.array for each in node.operands if isinstance(each, Constant)]
        plain = node.operation in ("Mul", "Add") and node.shape == self.anchor.shape
        if not plain or len(constants) != 1:
            return None
        (array,) = constants
        axis = self.axis - len(node.shape) + array.ndim
        if array.size > 1 and (axis < 0 or array.shape[axis] != array.size):
            return None
        return array.astype(np.float64).reshape(-1)


def _follow_product(graph: Graph, node: Node) -> _ScaledProduct | None:
    """Return the chain of a linear operator of floats; ``None`` for other operators."""
    linear = node.operation in ("Conv", "ConvTranspose", "MatMul") and "float" in node.dtype
    weight = node.operands[1] if linear else None
    if not isinstance(weight, Constant) or isinstance(weight, BlockedWeight):
        return None
    chain = _ScaledProduct(node, node, weight, np.ones(1))
    while graph.has_one_reader(chain.last):
        (reader,) = graph.users[chain.last.number]
        if not chain.take(reader):
            break
    return chain


def _scale_weight(node: Node, scale: np.ndarray) -> Constant:
    """Multiply the weights of a linear operator by a factor for each of its channels."""
    weight = node.operands[1]
    assert isinstance(weight, Constant)
    array = weight.array.astype(np.float64)
    if node.operation == "Conv":
        scaled = array * scale.reshape(-1, *[1] * (array.ndim - 1))
    elif node.operation == "MatMul":
        scaled = array * scale
    else:
        group, (channels, features, *window) = node.attributes["group"], array.shape
        split = array.reshape(group, channels // group, features, -1)
        factors = scale if scale.size == 1 else scale.reshape(group, 1, features, 1)
        scaled = (split * factors).reshape(channels, features, *window)
    return Constant(scaled.astype(weight.array.dtype))


def _emit_scaled(chain: _ScaledProduct, builder: GraphBuilder) -> Operand:
    anchor = chain.anchor
    value = builder.copy(anchor, [builder.value(anchor.operands[0]), chain.weight])
    if chain.shift is None:
        return value
    ones = [1] * (len(anchor.shape) - 1 - chain.axis)
    shift = chain.shift.reshape(-1, *ones).astype(chain.weight.array.dtype)
    return builder.emit("Add", value, Constant(shift))


def without_idle_taps(graph: Graph) -> Graph:
    """Return a graph with convolutions that lack the outer taps that read only padding.

    Where images have become smaller than a window, most of its taps are such.
    """
    rewrites: dict[int, Rewrite] = {}
    for node in graph.nodes:
        if node.operation != "Conv":
            continue
        idle = [_idle_taps(node, axis) for axis in range(len(node.shape) - 2)]
        weight = _constant_of(graph, node.operands[1])
        if weight is None or not any(map(any, idle)):
            continue
        sizes = weight.shape[2:]
        taps = (slice(first, n - last) for (first, last), n in zip(idle, sizes, strict=True))
        fewer = Constant(np.ascontiguousarray(weight.array[:, :, *taps]))
        rewrites[node.number] = partial(_emit_unpadded, node, idle, fewer)
    return rewrite_graph(graph, rewrites)


def _idle_taps(node: Node, axis: int) -> tuple[int, int]:
    """Count the first and the last taps along an axis that read only padding."""
    image, weight = node.operands
    size, taps, results = (each.shape[axis + 2] for each in (image, weight, node))
    stride, step = (node.attributes[name][axis] for name in ("strides", "dilations"))
    pads = node.attributes["pads"]
    before, after = pads[axis], pads[axis + len(pads) // 2]
    # A tap that is left out takes its step of padding along, of which there has to be as much.
    ahead, end = before - (results - 1) * stride, size + before
    first = min(max(-(-ahead // step), 0), before // step)
    last = min(max(taps - -(-end // step), 0), after // step)
    return (first, last) if first + last < taps else (0, 0)


def _constant_of(graph: Graph, weight: Operand) -> Constant | None:
    """Return constant weights, also those that are dequantized for one operator alone."""
    if isinstance(weight, Constant):
        return weight
    alone = weight.operation == "DequantizeLinear" and graph.has_one_reader(weight)
    stored = weight.operands[0] if alone else None
    return stored if isinstance(stored, Constant) else None


def _emit_unpadded(
    node: Node, idle: Sequence[tuple[int, int]], fewer: Constant, builder: GraphBuilder
) -> Operand:
    """Emit a convolution with fewer taps, and with less padding."""
    image, weight = node.operands
    steps = node.attributes["dilations"]
    lost = [first * step for (first, _), step in zip(idle, steps, strict=True)]
    lost += [last * step for (_, last), step in zip(idle, steps, strict=True)]
    pads = tuple(each - less for each, less in zip(node.attributes["pads"], lost, strict=True))
    taps: Operand = fewer
    if isinstance(weight, Node):
        taps = builder.copy(weight, [fewer, *map(builder.value, weight.operands[1:])])
    return builder.emit("Conv", builder.value(image), taps, **{**node.attributes, "pads": pads})


def merge_moves(graph: Graph) -> Graph:
    """Return a graph without moves that move nothing, and with one for several in a row.

    Elementwise operators broadcast their operands themselves, so that none is repeated for them.
    """
    merged = {node.number: partial(_emit_merged, node) for node in graph.computing()}
    return rewrite_graph(graph, merged)


def _emit_merged(node: Node, builder: GraphBuilder) -> Operand:
    operands = [builder.value(each) for each in node.operands]
    source = operands[0]
    if node.operation == "Reshape":
        return _emit_reshape(builder, source, node.shape)
    if node.operation == "Transpose":
        return _emit_transpose(builder, source, node.attributes["perm"])
    if (is_nothing := _IS_NOTHING.get(node.operation)) and is_nothing(node):
        return source
    if node.kind is Kind.ELEMENTWISE:
        operands = _drop_expansions(node, operands)
    return builder.copy(node, operands)


def _emit_reshape(builder: GraphBuilder, source: Operand, shape: tuple[int, ...]) -> Operand:
    while isinstance(source, Node) and source.operation == "Reshape":
        source = source.operands[0]
    norm = _emit_group_norm(builder, source, shape)
    return builder.reshape(source, shape) if norm is None else norm


def _emit_group_norm(
    builder: GraphBuilder, norm: Operand, shape: tuple[int, ...]
) -> Operand | None:
    """Emit a norm of groups of channels on the image itself, as layouts can move its channels.

    PyTorch exports one as a norm of single channels, between reshapes that make a channel of each
    group. ``None`` if a value is anything else.
    """
    if not isinstance(norm, Node) or norm.operation != "GroupNormalization":
        return None
    reshaped, *weights = norm.operands
    groups = norm.attributes["num_groups"]
    if not isinstance(reshaped, Node) or reshaped.operation != "Reshape":
        return None
    image = reshaped.operands[0]
    same = image.shape == shape and shape[:1] == norm.shape[:1] and norm.shape[1] == groups
    if not same or norm.attributes["axis"] != 1 or len(shape) < 2 or shape[1] % groups:
        return None
    size = shape[1] // groups
    scales = [Constant(np.repeat(x.array, size)) for x in weights if isinstance(x, Constant)]
    if len(scales) < len(weights):
        return None
    return builder.emit("GroupNormalization", image, *scales, **norm.attributes)


def _emit_transpose(builder: GraphBuilder, source: Operand, perm: tuple[int, ...]) -> Operand:
    if isinstance(source, Node) and source.operation == "Transpose":
        perm = tuple(source.attributes["perm"][axis] for axis in perm)
        source = source.operands[0]
    moved = [axis for axis in perm if source.shape[axis] > 1]
    if moved == sorted(moved):
        return _emit_reshape(builder, source, tuple(source.shape[axis] for axis in perm))
    return builder.emit("Transpose", source, perm=perm)


def _reads_all(node: Node) -> bool:
    forward = set(node.attributes["steps"]) <= {1}
    return forward and node.shape == node.operands[0].shape


def _keeps_shape(node: Node) -> bool:
    return node.shape == node.operands[0].shape


#: Whether the result of a node is its first operand.
_IS_NOTHING: dict[str, Callable[[Node], bool]] = {
    "Cast": lambda node: node.dtype == node.operands[0].dtype,
    "Concat": lambda node: len(node.operands) == 1,
    "Expand": _keeps_shape,
    "Identity": lambda node: True,
    "Pad": _keeps_shape,
    "Slice": _reads_all,
    "Tile": _keeps_shape,
}


def _drop_expansions(node: Node, operands: Sequence[Operand]) -> list[Operand]:
    """Drop the repetitions of operands of an elementwise node whose others give its shape.

    Scales along an axis are no operands that broadcast.
    """
    result = [*operands]
    if "axis" in node.attributes:
        return result
    for place, operand in enumerate(operands):
        if isinstance(operand, Node) and operand.operation == "Expand":
            small = operand.operands[0]
            shapes = [each.shape for each in result]
            shapes[place] = small.shape
            if np.broadcast_shapes(*shapes) == node.shape:
                result[place] = small
    return result
