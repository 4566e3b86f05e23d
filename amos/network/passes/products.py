"""Products of integers, which float products of dequantized tensors represent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from amos.network.graph import Constant, Graph, GraphBuilder, Node, Operand
from amos.network.passes.levels import Levels, constant_floats, levels_of
from amos.network.shapes import BYTES

#: Convolutions, with the axis of the weights that counts the features.
_FEATURES = {"Conv": 0, "ConvTranspose": 1}
#: How much the scale of a bias may be off the product of the other two.
_SAME = 1e-5


@dataclass(frozen=True, eq=False)
class IntegerProduct:
    """A sum of products of integers, with scale and bias.

    Attributes:
        data: its first operand; ``single``.
        weight: int8, symmetric.
        scale: of the result without bias, one or one for each feature.
        bias: int32 in units of the scale, for each feature.
        float_bias: of floats; ``None`` if there is none.
    """

    node: Node
    data: Levels
    weight: np.ndarray
    scale: np.ndarray
    bias: np.ndarray
    float_bias: np.ndarray | None = None

    def reshape(self, values: np.ndarray) -> np.ndarray:
        """Reshape one value for each feature for broadcasting to the result."""
        if values.size == 1 or self.node.operation == "MatMul":
            return values
        return values.reshape(-1, *[1] * (len(self.node.shape) - 2))


def integer_product(graph: Graph, node: Node) -> IntegerProduct | None:
    """Return the integer product that a node is, or to which it adds a bias."""
    if node.operation != "Add":
        return _bare_product(node)
    for source, summand in (node.operands, node.operands[::-1]):
        bias = constant_floats(summand)
        if bias is None or not isinstance(source, Node) or not graph.has_one_reader(source):
            continue
        product = _bare_product(source)
        if product is not None:
            return _add_bias(product, node, summand, bias)
    return None


def _bare_product(node: Node) -> IntegerProduct | None:
    axis = _FEATURES.get(node.operation, -1)
    if axis < 0 and node.operation != "MatMul":
        return None
    data, weight = levels_of(node.operands[0]), _weight(node.operands[1])
    if data is None or weight is None or not data.single or data.integers.dtype not in BYTES:
        return None
    axis = axis if axis >= 0 else weight.values.ndim - 1
    transposed = node.operation == "ConvTranspose"
    if transposed and (data.zero.any() or node.attributes["group"] > 1):
        return None  # the zeros between its elements are not the zero point
    if node.operation == "MatMul" and weight.values.ndim != 2:
        return None
    if weight.scale.size > 1 and weight.axis != axis:
        return None
    reduced = tuple(d for d in range(weight.values.ndim) if d != axis)
    sums = weight.values.sum(axis=reduced, dtype=np.int64)
    return IntegerProduct(
        node=node,
        data=data,
        weight=weight.values,
        scale=data.scale * weight.scale,
        bias=(-int(data.zero[0]) * sums).astype(np.int32),
    )


@dataclass(frozen=True, eq=False)
class _Weight:
    """Constant symmetric int8 weights, with one scale or one for each step of an axis."""

    values: np.ndarray
    scale: np.ndarray
    axis: int


def _weight(operand: Operand) -> _Weight | None:
    """Return the weights that a dequantized constant represents, transposed or not."""
    axes: tuple[int, ...] = ()
    if isinstance(operand, Node) and operand.operation == "Transpose":
        axes = tuple(operand.attributes["perm"])
        operand = operand.operands[0]
    levels = levels_of(operand)
    if levels is None or not isinstance(levels.integers, Constant):
        return None
    centred = levels.integers.array.astype(np.int32) - levels.reshape(levels.zero)
    if centred.size == 0 or centred.min() < -128 or centred.max() > 127:
        return None
    axis = levels.axis % centred.ndim
    if axes:
        centred, axis = centred.transpose(axes), axes.index(axis)
    return _Weight(np.ascontiguousarray(centred.astype(np.int8)), levels.scale, axis)


def _add_bias(
    product: IntegerProduct, node: Node, summand: Operand, bias: np.ndarray
) -> IntegerProduct | None:
    """Add a bias to a product: as integers if its scale is the product's, else as floats."""
    features = product.bias.size
    if node.shape != product.node.shape or bias.size not in (1, features):
        return None
    places = product.reshape(product.bias).shape
    if bias.size > 1 and bias.shape != (1,) * (bias.ndim - len(places)) + places:
        return None  # it belongs to another axis
    flat = np.broadcast_to(bias.reshape(-1), (features,))
    while isinstance(summand, Node) and summand.operation != "DequantizeLinear":
        summand = summand.operands[0]
    levels = levels_of(summand)
    fits = levels is not None and np.allclose(levels.scale, product.scale, rtol=_SAME, atol=0)
    if levels is None or not fits or not isinstance(levels.integers, Constant):
        return replace(product, float_bias=flat)
    integers = levels.integers.array.astype(np.int64).reshape(-1) - levels.zero
    # Sums of int32 wrap around, partial sums as well.
    total = (product.bias + np.broadcast_to(integers, (features,))).astype(np.int32)
    return replace(product, bias=total)


def emit_sums(builder: GraphBuilder, product: IntegerProduct) -> Operand:
    """Emit the sums of a product with the bias of its integers."""
    node, attributes = product.node, dict(product.node.attributes)
    data, weight = builder.value(product.data.integers), Constant(product.weight)
    zero = int(product.data.zero[0])
    if zero and any(pads := attributes.get("pads", ())):
        data = emit_padding(builder, data, pads, zero)
        attributes["pads"] = (0,) * len(pads)
    value = builder.emit(node.operation, data, weight, **attributes)
    if product.bias.any():
        value = builder.emit("Add", value, Constant(product.reshape(product.bias)))
    return value


def emit_padding(
    builder: GraphBuilder, image: Operand, pads: Sequence[int], value: float
) -> Operand:
    """Emit an image, channels second, padded with a number."""
    half = len(pads) // 2
    before, after = (0, 0, *pads[:half]), (0, 0, *pads[half:])
    return builder.emit(
        "Pad", image, before=before, after=after, mode="constant", value=float(value)
    )
