"""Integers whose levels are computed from call to call.

A model that is quantized dynamically takes scale and zero point from the smallest and the largest
element of each tensor, multiplies integers, and scales the sums. Here each such operator of ONNX is
written with plain ones: the product is one of bytes, and what it is corrected and scaled by is
small and read behind it, element by element, so that it becomes a part of the product's kernel.

With zero points, ``sum((x - a) * (w - b))`` is ``sum(x * w) - a * sum(w) - b * sum(x - a)``.
Weights are shifted so that ``b`` is 0 wherever they fit ``int8`` then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from amos.errors import NetworkError
from amos.network.graph import Constant, GraphBuilder, Operand
from amos.network.passes.products import emit_padding


def emit_quantize(
    builder: GraphBuilder, x: Operand, scale: Operand, zero: Operand, axis: int
) -> Operand:
    """Emit QuantizeLinear with a scale and a zero point that may be computed.

    Args:
        scale: one, or one for each step of the axis.
        zero: as many, of the result's dtype.
    """
    info = np.iinfo(zero.dtype)
    levels = _emit_along(builder, scale, x, axis), _emit_along(builder, zero, x, axis)
    divisor, offset = (builder.cast(each, "float32") for each in levels)
    value = builder.emit("Div", builder.cast(x, "float32"), divisor)
    value = builder.emit("Round", value)
    value = value if _is_zero(zero) else builder.emit("Add", value, offset)
    value = builder.emit("Max", value, _number(info.min, "float32"))
    value = builder.emit("Min", value, _number(info.max, "float32"))
    return builder.emit("Cast", value, to=zero.dtype)


def emit_dequantize(
    builder: GraphBuilder, x: Operand, scale: Operand, zero: Operand, axis: int
) -> Operand:
    """Emit DequantizeLinear with a scale and a zero point that may be computed.

    Args:
        scale: one, or one for each step of the axis; the result has its dtype.
        zero: as many.
    """
    factor = builder.cast(_emit_along(builder, scale, x, axis), "float32")
    value = builder.cast(x, "int32")
    if not _is_zero(zero):
        offset = builder.cast(_emit_along(builder, zero, x, axis), "int32")
        value = builder.emit("Sub", value, offset)
    value = builder.emit("Mul", builder.emit("Cast", value, to="float32"), factor)
    return builder.cast(value, scale.dtype)


def emit_dynamic_quantize(builder: GraphBuilder, x: Operand) -> tuple[Operand, Operand, Operand]:
    """Emit DynamicQuantizeLinear: bytes, their scale and their zero point.

    The range is that of the elements and 0. Where it is 0 alone, the scale is 1, as onnxruntime
    has it.
    """
    axes = tuple(range(len(x.shape)))
    zero, most = _number(0, "float32"), _number(255, "float32")
    low = builder.emit("Min", builder.emit("ReduceMin", x, axes=axes, keepdims=False), zero)
    high = builder.emit("Max", builder.emit("ReduceMax", x, axes=axes, keepdims=False), zero)
    extent = builder.emit("Sub", high, low)
    scale = builder.emit("Div", extent, most)
    scale = builder.emit("Where", builder.emit("Equal", low, high), _number(1, "float32"), scale)
    middle = builder.emit("Neg", builder.emit("Div", low, scale))
    middle = builder.emit("Min", builder.emit("Max", middle, zero), most)
    middle = builder.emit("Cast", builder.emit("Round", middle), to="uint8")
    return emit_quantize(builder, x, scale, middle, 0), scale, middle


def emit_matmul_integer(
    builder: GraphBuilder, a: Operand, b: Operand, a_zero: Operand | None, b_zero: Operand | None
) -> Operand:
    """Emit MatMulInteger: a product of matrices of bytes less their zero points, as int32.

    Args:
        a_zero: one zero point; ``None`` for 0.
        b_zero: one, or one for each column; ``None`` for 0.
    """
    zero = _emit_zero(builder, a_zero, "MatMulInteger")
    if not isinstance(b, Constant) or len(b.shape) != 2 or not _is_constant(b_zero):
        x = builder.emit("Cast", a, to="int32")
        y = builder.emit("Cast", b, to="int32")
        x = x if zero is None else builder.emit("Sub", x, zero)
        if b_zero is not None and not _is_zero(b_zero):
            y = builder.emit("Sub", y, builder.emit("Cast", b_zero, to="int32"))
        return builder.emit("MatMul", x, y)
    weight, offset_zeros = _centre(b.array, _zeros(b_zero))
    value = builder.emit("MatMul", a, Constant(weight))
    value = _emit_less(builder, value, zero, weight.sum(0, dtype=np.int32))
    if not offset_zeros.any():
        return value
    wide, last = builder.emit("Cast", a, to="int32"), (len(a.shape) - 1,)
    sums = builder.emit("ReduceSum", wide, axes=last, keepdims=True)
    sums = _emit_less(builder, sums, zero, np.array(len(weight), np.int32))
    return builder.emit("Sub", value, builder.emit("Mul", sums, Constant(offset_zeros)))


def emit_conv_integer(
    builder: GraphBuilder,
    x: Operand,
    w: Operand,
    x_zero: Operand | None,
    w_zero: Operand | None,
    attributes: Mapping[str, Any],
) -> Operand:
    """Emit ConvInteger: a convolution of bytes less their zero points, as int32.

    What the image is padded with is its zero point.

    Args:
        x: an image of bytes, channels second.
        w: constant bytes.
        x_zero: one zero point; ``None`` for 0.
        w_zero: one, or one for each feature; ``None`` for 0.
    """
    if not isinstance(w, Constant) or not _is_constant(w_zero):
        raise NetworkError("ConvInteger: weights that the network computes are not supported")
    ones = (1,) * (len(x.shape) - 2)
    zeros = _zeros(w_zero)
    weight, offset_zeros = _centre(w.array, zeros.reshape(-1, 1, *ones) if zeros.ndim else zeros)
    offset_zeros = offset_zeros.reshape(-1, *ones) if offset_zeros.ndim else offset_zeros
    zero = _emit_zero(builder, x_zero, "ConvInteger")
    if zero is not None and x_zero is not None and any(pads := attributes["pads"]):
        x = _emit_border(builder, x, x_zero, pads)
        attributes = {**attributes, "pads": (0,) * len(pads)}
    inner = tuple(range(1, weight.ndim))
    sums = weight.sum(inner, dtype=np.int32).reshape(-1, *ones)
    value = builder.emit("Conv", x, Constant(weight), **attributes)
    value = _emit_less(builder, value, zero, sums)
    if not offset_zeros.any():
        return value
    features = 1 if attributes["group"] == 1 else len(weight)
    plain = np.ones((features, *weight.shape[1:]), np.int8)
    window_sums = builder.emit("Conv", x, Constant(plain), **attributes)
    window_sums = _emit_less(builder, window_sums, zero, np.array(prod(weight.shape[1:]), np.int32))
    return builder.emit("Sub", value, builder.emit("Mul", window_sums, Constant(offset_zeros)))


def _number(value: float, dtype: str) -> Constant:
    return Constant(np.array(value, dtype))


def _emit_along(builder: GraphBuilder, values: Operand, x: Operand, axis: int) -> Operand:
    """Emit one value, or one for each step of an axis, as they are broadcast to a tensor."""
    count = prod(values.shape)
    if count == 1:
        return builder.reshape(values, ())
    if values.shape != (x.shape[axis],):
        raise NetworkError(
            f"levels of shape {values.shape} for a tensor of shape {x.shape} are not supported: "
            "expected one, or one for each step of an axis"
        )
    return builder.emit("Reshape", values, shape=(count, *[1] * (len(x.shape) - axis - 1)))


def _is_constant(value: Operand | None) -> bool:
    return value is None or isinstance(value, Constant)


def _is_zero(value: Operand) -> bool:
    return isinstance(value, Constant) and not value.array.any()


def _zeros(value: Operand | None) -> np.ndarray:
    """Return constant zero points: one without axes, or one for each column or feature."""
    if not isinstance(value, Constant):
        return np.array(0, np.int32)
    array = value.array.astype(np.int32)
    return array.reshape(()) if array.size == 1 else array


def _emit_zero(builder: GraphBuilder, value: Operand | None, name: str) -> Operand | None:
    """Emit one zero point as int32; ``None`` if it is 0."""
    if value is None or _is_zero(value):
        return None
    if prod(value.shape) != 1:
        raise NetworkError(f"{name}: zero points of shape {value.shape} are not supported")
    return builder.emit("Cast", builder.reshape(value, ()), to="int32")


def _emit_less(
    builder: GraphBuilder, value: Operand, zero: Operand | None, sums: np.ndarray
) -> Operand:
    """Emit sums of products less the zero point of what they are of, times sums of the others."""
    if zero is None:
        return value
    return builder.emit("Sub", value, builder.emit("Mul", zero, Constant(sums)))


def _centre(values: np.ndarray, zeros: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Subtract the zero points that fit from bytes; return int8 and the remaining zero points."""
    wide = values.astype(np.int32)
    centred = wide - zeros
    if centred.min(initial=0) >= -128 and centred.max(initial=0) <= 127:
        return centred.astype(np.int8), np.zeros_like(zeros)
    shift = 128 if values.dtype == np.uint8 else 0
    return (wide - shift).astype(np.int8), zeros - shift


def _emit_border(
    builder: GraphBuilder, image: Operand, zero: Operand, pads: Sequence[int]
) -> Operand:
    """Emit an image with its zero point around it."""
    if isinstance(zero, Constant):
        return emit_padding(builder, image, pads, zero.array.item())
    half = len(pads) // 2
    ones = np.ones((1, 1, *image.shape[2:]), bool)
    widths = [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)]
    padded = emit_padding(builder, image, pads, 0)
    mask = Constant(np.pad(ones, widths))
    return builder.emit("Where", mask, padded, builder.reshape(zero, ()))
