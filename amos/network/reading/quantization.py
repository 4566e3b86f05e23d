"""Operators between floats and the integers that stand for them, and operators over integers.

``QLinearConv`` and its kind (ONNX's own, and those of ``com.microsoft`` that onnxruntime's
quantizer writes) say in one node what other models say as DequantizeLinear, an operator of floats
and QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from amos.network.blocked import (
    BlockedWeight,
    BlockFormat,
    constant_arrays,
    emit_blocked_product,
    emit_dequantized_blocks,
    unpack_codes,
)
from amos.network.dynamic import (
    emit_conv_integer,
    emit_dynamic_quantize,
    emit_matmul_integer,
)
from amos.network.graph import Constant, Operand
from amos.network.reading import elementwise, moves, products, windows
from amos.network.reading.node import NodeSource, Read


def _levels(node: NodeSource, value: Operand, zero_dtype: str) -> tuple[Operand, Operand, int]:
    """Return scale, zero point and their axis; refuse scales of blocks."""
    scale, zero = node.input(1), node.optional(2)
    axis = int(node.attributes.get("axis", 1))
    steps = value.shape[axis] if -len(value.shape) <= axis < len(value.shape) else 1
    if len(scale.shape) > 1 or (scale.shape and scale.shape[0] not in (1, steps)):
        raise node.refuse(
            f"scales of shape {scale.shape} for a tensor of shape {value.shape} are not "
            "supported: expected one, or one for each step of an axis"
        )
    shape = () if scale.shape == (1,) else scale.shape
    scale = node.reshape(scale, shape)
    if zero is None:
        zero = Constant(np.zeros(shape, zero_dtype))
    axis = axis % len(value.shape) if shape else 0
    return scale, node.reshape(zero, shape), axis


def _read_quantize(node: NodeSource) -> Operand:
    """Read QuantizeLinear: floats, scale and zero point."""
    value = node.input(0)
    if node.attributes.get("block_size", 0):
        raise node.refuse("blocks are not supported")
    to = node.attributes.get("output_dtype") or "uint8"
    scale, zero, axis = _levels(node, value, str(to))
    if zero.dtype not in ("uint8", "int8", "uint16", "int16", "int32"):
        raise node.refuse(f"integers of {zero.dtype} are not supported")
    return node.emit("QuantizeLinear", value, scale, zero, axis=axis)


def _read_dequantize(node: NodeSource) -> Operand:
    """Read DequantizeLinear: integers, scale and zero point."""
    value, block = node.input(0), int(node.attributes.get("block_size", 0))
    if block:
        scale, zero = node.input(1), node.optional(2)
        axis = node.axis_of(int(node.attributes.get("axis", 1)), len(value.shape))
        return emit_dequantized_blocks(node.builder, value, scale, zero, axis, block)
    if isinstance(value, Constant) and not hasattr(np, value.dtype):  # several in a byte
        wide = Constant(value.array.astype(np.int8 if value.dtype == "int4" else np.uint8))
        zero = node.optional(2)
        if isinstance(zero, Constant):
            zero = Constant(zero.array.astype(wide.array.dtype))
        return _read_dequantize(replace(node, inputs=(wide, node.input(1), zero)))
    scale, zero, axis = _levels(node, value, value.dtype)
    return node.emit("DequantizeLinear", value, scale, zero, axis=axis)


def _read_matmul_integer(node: NodeSource) -> Operand:
    a, b = node.input(0), node.input(1)
    return emit_matmul_integer(node.builder, a, b, node.optional(2), node.optional(3))


def _read_conv_integer(node: NodeSource) -> Operand:
    image, weight = node.input(0), node.input(1)
    kernel = node.integers("kernel_shape") or weight.shape[2:]
    attributes = windows.read_window(node, image, kernel).attributes()
    attributes["group"] = int(node.attributes.get("group", 1))
    return emit_conv_integer(
        node.builder, image, weight, node.optional(2), node.optional(3), attributes
    )


#: Level of accuracy from which on rows may be rounded to 8 bits.
_ROUNDS_ROWS = 4


def _read_matmul_nbits(node: NodeSource) -> Operand:
    """Read MatMulNBits of onnxruntime: a product with constant weights of a few bits each."""
    if node.optional(4) is not None:
        raise node.refuse("group indices are not supported")
    attributes, zeros = node.attributes, node.optional(3)
    format = BlockFormat(
        bits=int(attributes.get("bits", 4)),
        block=int(attributes["block_size"]),
        has_zeros=zeros is not None,
        rounds_rows=int(attributes.get("accuracy_level", 0)) >= _ROUNDS_ROWS,
    )
    if format.bits not in (2, 4, 8) or format.block < 16 or format.block & (format.block - 1):
        raise node.refuse(f"weights of {format} are not supported")
    columns, rows = int(attributes["N"]), int(attributes["K"])
    blocks, points = -(-rows // format.block), None
    codes, scales = constant_arrays(node.operation, node.input(1), node.input(2))
    if zeros is not None:  # as codes are packed, or floats
        (points,) = constant_arrays(node.operation, zeros)
        if points.dtype == np.uint8:
            points = unpack_codes(points.reshape(columns, -1), format.bits)[:, :blocks]
        points = points.reshape(columns, blocks)
    packed = codes.reshape(columns, -1)
    weight = BlockedWeight(packed, scales.reshape(columns, blocks), points, format, rows)
    value = emit_blocked_product(node.builder, node.input(0), weight)
    bias = node.optional(5)
    return value if bias is None else node.emit("Add", value, bias)


#: Readers of the float operators of which integers have their own.
_FLOATS: Mapping[str, Read] = {
    **elementwise.READERS,
    **moves.READERS,
    **products.READERS,
    **windows.READERS,
}


def _dequantize(node: NodeSource, triple: Sequence[Operand | None], axis: int) -> Operand:
    """Dequantize integers by their scale and zero point."""
    return _read_dequantize(replace(node, inputs=tuple(triple), attributes={"axis": axis}))


def _finish(
    node: NodeSource,
    operator: str,
    floats: Sequence[Operand],
    scale: Operand | None,
    zero: Operand | None,
) -> Operand:
    """Compute the operator in floats; quantize its result if it has a scale."""
    if node.attributes.get("channels_last", 0):
        raise node.refuse("channels that are last are not supported")
    result = _FLOATS[operator](replace(node, operation=operator, inputs=tuple(floats)))
    assert not isinstance(result, tuple)
    if scale is None:
        return result
    return _read_quantize(replace(node, inputs=(result, scale, zero), attributes={}))


def _read_plain(operator: str, count: int, node: NodeSource) -> Operand:
    """Read sources, each with scale and zero point, then those of the result."""
    inputs = [*node.inputs, None, None][: 3 * count + 2]
    # Weights have a scale for each feature: of a matrix last.
    floats = [_dequantize(node, inputs[3 * n : 3 * n + 3], -1 if n else 0) for n in range(count)]
    return _finish(node, operator, floats, *inputs[3 * count :])


def _read_convolution(node: NodeSource) -> Operand:
    inputs = [*node.inputs, None][:9]
    image, weight = (_dequantize(node, inputs[n : n + 3], 0) for n in (0, 3))
    bias = _bias(node, inputs[8], (node.input(1), node.input(4)))
    floats = [image, weight, *([] if bias is None else [bias])]
    return _finish(node, "Conv", floats, inputs[6], inputs[7])


def _read_gemm(node: NodeSource) -> Operand:
    inputs = [*node.inputs, None, None, None][:9]
    axis = 0 if node.attributes.get("transB", 0) else 1
    x, y = _dequantize(node, inputs[:3], 0), _dequantize(node, inputs[3:6], axis)
    bias = _bias(node, inputs[6], (node.input(1), node.input(4)))
    floats = [x, y, *([] if bias is None else [bias])]
    return _finish(node, "Gemm", floats, inputs[7], inputs[8])


def _bias(node: NodeSource, bias: Operand | None, scales: Sequence[Operand]) -> Operand | None:
    """Scale a bias of int32, which is in units of the scales of data and weights, and of alpha."""
    if bias is None:
        return None
    scale = node.emit("Mul", *(node.reshape(s, s.shape if s.shape != (1,) else ()) for s in scales))
    if (alpha := float(node.attributes.get("alpha", 1.0))) != 1:
        scale = node.emit("Mul", scale, node.scalar(alpha, scale))
    if not isinstance(scale, Constant):
        raise node.refuse("scales that are no constants are not supported")
    zero = Constant(np.zeros(scale.shape, np.int32))
    return _dequantize(node, (bias, scale, zero), 0)


def _read_concatenation(node: NodeSource) -> Operand:
    scale, zero, *inputs = node.inputs
    triples = [inputs[n : n + 3] for n in range(0, len(inputs), 3)]
    floats = [_dequantize(node, triple, 0) for triple in triples]
    return _finish(node, "Concat", floats, scale, zero)


READERS: dict[str, Read] = {
    "ConvInteger": _read_conv_integer,
    "DequantizeLinear": _read_dequantize,
    "DynamicQuantizeLinear": lambda node: emit_dynamic_quantize(node.builder, node.input(0)),
    "MatMulInteger": _read_matmul_integer,
    "MatMulNBits": _read_matmul_nbits,
    "QGemm": _read_gemm,
    "QLinearAdd": partial(_read_plain, "Add", 2),
    "QLinearAveragePool": partial(_read_plain, "AveragePool", 1),
    "QLinearConcat": _read_concatenation,
    "QLinearConv": _read_convolution,
    "QLinearGlobalAveragePool": partial(_read_plain, "GlobalAveragePool", 1),
    "QLinearLeakyRelu": partial(_read_plain, "LeakyRelu", 1),
    "QLinearMatMul": partial(_read_plain, "MatMul", 2),
    "QLinearMul": partial(_read_plain, "Mul", 2),
    "QLinearSigmoid": partial(_read_plain, "Sigmoid", 1),
    "QuantizeLinear": _read_quantize,
}
