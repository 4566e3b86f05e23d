"""Products of integers: a float product of dequantized tensors as the sum that it stands for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amos.network.graph import Constant, Graph, Node, Operand
from amos.network.levels import BYTES, Levels, constant_floats, levels_of
from amos.network.program import Writer, const

#: Convolutions, with the axis of the weights that counts the features.
_FEATURES = {"nn.conv1d": 0, "nn.conv2d": 0, "nn.conv3d": 0, "nn.conv2d_transpose": 1}
#: How much the scale of a bias may be off the product of the other two.
_SAME = 1e-5


@dataclass(frozen=True, eq=False)
class IntegerProduct:
    """Integers that are multiplied and summed, and what follows at once.

    Attributes:
        node: the convolution or matrix product of floats.
        data: its first operand; ``single``.
        weight: int8, around zero.
        scale: of the result without bias, one or one for each feature.
        bias: int32 in units of the scale, for each feature.
        rest: a bias of floats; ``None`` if there is none.
    """

    node: Node
    data: Levels
    weight: np.ndarray
    scale: np.ndarray
    bias: np.ndarray
    rest: np.ndarray | None = None

    def shaped(self, values: np.ndarray) -> np.ndarray:
        """One value for each feature, as they are broadcast to the result."""
        if values.size == 1 or self.node.operation == "matmul":
            return values
        return values.reshape(1, -1, *[1] * (len(self.node.shape) - 2))


def integer_product(graph: Graph, node: Node) -> IntegerProduct | None:
    """The integer product that a node is, or that the bias it adds follows."""
    if node.operation != "add":
        return _bare_product(node)
    for source, other in (node.operands, node.operands[::-1]):
        bias = constant_floats(other)
        if bias is None or not isinstance(source, Node) or not read_once(graph, source):
            continue
        product = _bare_product(source)
        if product is not None:
            return _biased(product, node, other, bias)
    return None


def read_once(graph: Graph, node: Node) -> bool:
    """Whether a single node reads a value."""
    return len(graph.users[node.number]) == 1 and node.number not in graph.kept


def _bare_product(node: Node) -> IntegerProduct | None:
    axis = _FEATURES.get(node.operation, -1)
    if axis < 0 and node.operation != "matmul":
        return None
    data, weight = levels_of(node.operands[0]), _weight(node.operands[1])
    if data is None or weight is None or not data.single or data.integers.dtype not in BYTES:
        return None
    axis = axis if axis >= 0 else weight.values.ndim - 1
    transposed = node.operation == "nn.conv2d_transpose"
    if transposed and (data.zero.any() or int(node.attributes.groups) > 1):
        return None  # what is inserted between its elements is not padding
    if node.operation == "matmul" and weight.values.ndim != 2:
        return None
    if weight.scale.size > 1 and weight.axis != axis:
        return None
    others = tuple(d for d in range(weight.values.ndim) if d != axis)
    sums = weight.values.sum(axis=others, dtype=np.int64)
    return IntegerProduct(
        node=node,
        data=data,
        weight=weight.values,
        scale=data.scale * weight.scale,
        bias=(-int(data.zero[0]) * sums).astype(np.int32),
    )


@dataclass(frozen=True, eq=False)
class _Weight:
    """Constant int8 weights around zero, with one scale or one for each step of an axis."""

    values: np.ndarray
    scale: np.ndarray
    axis: int


def _weight(operand: Operand) -> _Weight | None:
    """What a dequantize of a constant stands for, transposed or not."""
    axes: tuple[int, ...] = ()
    if isinstance(operand, Node) and operand.operation == "permute_dims":
        given = operand.attributes.axes
        axes = tuple(map(int, given)) if given else tuple(reversed(range(len(operand.shape))))
        operand = operand.operands[0]
    levels = levels_of(operand)
    if levels is None or not isinstance(levels.integers, Constant):
        return None
    centred = levels.integers.array.astype(np.int32) - levels.shaped(levels.zero)
    if centred.size == 0 or centred.min() < -128 or centred.max() > 127:
        return None
    axis = levels.axis % centred.ndim
    if axes:
        centred, axis = centred.transpose(axes), axes.index(axis)
    return _Weight(np.ascontiguousarray(centred.astype(np.int8)), levels.scale, axis)


def _biased(
    product: IntegerProduct, node: Node, other: Operand, bias: np.ndarray
) -> IntegerProduct | None:
    """The product with a bias for each feature, as integers where they are meant so."""
    features = product.bias.size
    if node.shape != product.node.shape or bias.size not in (1, features):
        return None
    if bias.size > 1 and bias.shape not in (product.shaped(product.bias).shape, (features,)):
        return None
    if bias.ndim == 1 and product.node.operation != "matmul" and bias.size > 1:
        return None  # it belongs to the last axis
    flat = np.broadcast_to(bias.reshape(-1), (features,))
    while isinstance(other, Node) and other.operation != "dequantize":
        other = other.operands[0]
    levels = levels_of(other)
    meant = levels is not None and np.allclose(levels.scale, product.scale, rtol=_SAME, atol=0)
    if levels is None or not meant or not isinstance(levels.integers, Constant):
        return replace(product, rest=flat)
    integers = levels.integers.array.astype(np.int64).reshape(-1) - levels.zero
    # Sums of int32 wrap around, on their way too.
    total = (product.bias + np.broadcast_to(integers, (features,))).astype(np.int32)
    return replace(product, bias=total)


def sums(writer: Writer, product: IntegerProduct) -> Any:
    """The sums of a product with the bias of its integers."""
    from tvm import relax

    node, attributes = product.node, product.node.attributes
    data, weight = writer.value(product.data.integers), const(product.weight)
    if node.operation == "matmul":
        value = writer.emit(relax.op.matmul(data, weight, out_dtype="int32"))
    else:
        padding = node.integers("padding")
        zero = int(product.data.zero[0])
        if zero and any(padding):
            half = len(padding) // 2
            both = zip(padding[:half], padding[half:], strict=True)
            widths = [0, 0, 0, 0, *(width for pair in both for width in pair)]
            data = writer.emit(relax.op.nn.pad(data, widths, "constant", zero))
            padding = (0,) * len(padding)
        options = dict(
            strides=list(node.integers("strides")),
            padding=list(padding),
            dilation=list(node.integers("dilation")),
            groups=int(attributes.groups),
            data_layout=str(attributes.data_layout),
            kernel_layout=str(attributes.kernel_layout),
            out_dtype="int32",
        )
        if node.operation == "nn.conv2d_transpose":
            options["output_padding"] = list(node.integers("output_padding"))
        function = getattr(relax.op.nn, node.operation.removeprefix("nn."))
        value = writer.emit(function(data, weight, **options))
    if product.bias.any():
        value = writer.emit(relax.op.add(value, const(product.shaped(product.bias))))
    return value
