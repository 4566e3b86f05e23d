"""Shapes and dtypes of results, of operands and attributes; operators by their names in ONNX."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from amos import ir
from amos.errors import NetworkError

#: dtypes that quantized tensors have.
BYTES = ("uint8", "int8")
#: Floats of 16 bits.
HALVES = ("float16", "bfloat16")
#: Attributes of an operator by name.
Attributes = Mapping[str, Any]


class Typed(Protocol):
    """A value with a shape and a dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""

    @property
    def dtype(self) -> str:
        """Of its elements."""


def count_bytes(value: Typed) -> int:
    """Return the size of a tensor in bytes."""
    return math.prod(value.shape) * -(-ir.dtype(value.dtype).bits // 8)


@dataclass(frozen=True)
class Result:
    """Shape and dtype of a result."""

    shape: tuple[int, ...]
    dtype: str


def _broadcast(operands: Sequence[Typed]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*(each.shape for each in operands))
    except ValueError:
        shapes = " and ".join(str(each.shape) for each in operands)
        raise NetworkError(f"shapes {shapes} do not go together") from None


def infer_same(operands: Sequence[Typed], _: Attributes) -> Result:
    """Infer the result of the first operand's shape and dtype."""
    return Result(operands[0].shape, operands[0].dtype)


def infer_elementwise(operands: Sequence[Typed], _: Attributes) -> Result:
    """Broadcast operands of one dtype."""
    kinds = {each.dtype for each in operands}
    if len(kinds) > 1:
        raise NetworkError(f"operands of {' and '.join(sorted(kinds))}")
    return Result(_broadcast(operands), operands[0].dtype)


def infer_truth(operands: Sequence[Typed], _: Attributes) -> Result:
    """Broadcast operands; the result has truth values."""
    return Result(_broadcast(operands), "bool")


def infer_where(operands: Sequence[Typed], _: Attributes) -> Result:
    """Broadcast a condition and two operands."""
    return Result(_broadcast(operands), operands[1].dtype)


def infer_cast(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Keep the operand's shape, in another dtype."""
    return Result(operands[0].shape, attributes["to"])


def infer_shaped(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Take the shape that is stated."""
    return Result(attributes["shape"], operands[0].dtype)


def infer_reshape(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Check that another shape has as many elements."""
    result = infer_shaped(operands, attributes)
    if math.prod(result.shape) != math.prod(operands[0].shape):
        raise NetworkError(f"{operands[0].shape} cannot be {result.shape}")
    return result


def infer_transpose(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Permute the axes."""
    shape = operands[0].shape
    return Result(tuple(shape[axis] for axis in attributes["perm"]), operands[0].dtype)


def infer_concat(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Concatenate operands along an axis."""
    axis, first = attributes["axis"], operands[0]
    shape = list(first.shape)
    shape[axis] = sum(each.shape[axis] for each in operands)
    return Result(tuple(shape), first.dtype)


def infer_slice(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Take the stated number of elements of each axis."""
    return Result(attributes["sizes"], operands[0].dtype)


def infer_pad(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Add elements ahead of and behind each axis."""
    columns = zip(operands[0].shape, attributes["before"], attributes["after"], strict=True)
    return Result(tuple(sum(column) for column in columns), operands[0].dtype)


def infer_tile(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Repeat the operand along each axis."""
    pairs = zip(operands[0].shape, attributes["repeats"], strict=True)
    return Result(tuple(size * times for size, times in pairs), operands[0].dtype)


def infer_gather(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Put the axes of indices in place of an axis."""
    (data, indices), axis = operands, attributes["axis"]
    return Result((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]), data.dtype)


def infer_gather_elements(operands: Sequence[Typed], _: Attributes) -> Result:
    """Take the shape of the indices."""
    return Result(operands[1].shape, operands[0].dtype)


def _reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    sizes = (1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(s for axis, s in enumerate(sizes) if keepdims or axis not in axes)


def infer_reduction(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Drop some axes, or keep one element along them."""
    shape = _reduced_shape(operands[0].shape, attributes["axes"], attributes["keepdims"])
    return Result(shape, operands[0].dtype)


def infer_position(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Infer positions along an axis."""
    axes = (attributes["axis"],)
    return Result(_reduced_shape(operands[0].shape, axes, attributes["keepdims"]), "int64")


def product_dtype(operands: Sequence[Typed], attributes: Attributes = MappingProxyType({})) -> str:
    """Return the dtype of sums of products: ``int32`` for integers of 8 bits."""
    kind = operands[0].dtype
    return "int32" if kind in BYTES else str(attributes.get("sums", kind))


def infer_matmul(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Infer products of matrices, of batches that are broadcast."""
    x, y = (each.shape for each in operands)
    if len(x) < 2 or len(y) < 2 or x[-1] != y[-2]:
        raise NetworkError(f"matrices {x} and {y} do not go together")
    lead = np.broadcast_shapes(x[:-2], y[:-2])
    return Result((*lead, x[-2], y[-1]), product_dtype(operands, attributes))


def match_axes(own: Sequence[int], theirs: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the shortest runs of axes of two shapes that have as many elements."""
    i = j = 0
    while i < len(own) or j < len(theirs):
        ours, opposite = [*range(i, min(i + 1, len(own)))], [*range(j, min(j + 1, len(theirs)))]
        sizes = math.prod(own[axis] for axis in ours), math.prod(theirs[axis] for axis in opposite)
        i, j = i + len(ours), j + len(opposite)
        while sizes[0] != sizes[1]:
            if (sizes[0] < sizes[1] and i < len(own)) or j == len(theirs):
                ours.append(i)
                sizes = sizes[0] * own[i], sizes[1]
                i += 1
            else:
                opposite.append(j)
                sizes = sizes[0], sizes[1] * theirs[j]
                j += 1
        yield ours, opposite


def image_axes(shape: Sequence[int], channels_last: bool) -> range:
    """Return the axes of an image's extents: all but the batch and the channels."""
    return range(1, len(shape) - 1) if channels_last else range(2, len(shape))


def _image_result(
    image: Sequence[int], channels: int, extents: Sequence[int], channels_last: bool
) -> tuple[int, ...]:
    if channels_last:
        return (image[0], *extents, channels)
    return (image[0], channels, *extents)


def _window_extents(
    shape: Sequence[int], window: Sequence[int], attributes: Attributes
) -> list[int]:
    """Count the windows along each image axis."""
    axes = image_axes(shape, attributes["channels_last"])
    half = len(axes)
    extents = []
    for n, axis in enumerate(axes):
        span = (window[n] - 1) * attributes["dilations"][n] + 1
        size = shape[axis] + attributes["pads"][n] + attributes["pads"][half + n]
        extents.append((size - span) // attributes["strides"][n] + 1)
    return extents


def infer_conv(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Infer the result of an image and weights."""
    image, weight = operands[0].shape, operands[1].shape
    extents = _window_extents(image, weight[2:], attributes)
    channels = image[-1 if attributes["channels_last"] else 1]
    if channels != weight[1] * attributes["group"] or min(extents, default=1) < 1:
        raise NetworkError(f"image {image} and weights {weight} do not go together")
    shape = _image_result(image, weight[0], extents, attributes["channels_last"])
    return Result(shape, product_dtype(operands, attributes))


def infer_conv_transpose(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Infer the image of which a convolution would compute the operand."""
    image, weight = operands[0].shape, operands[1].shape
    axes = image_axes(image, attributes["channels_last"])
    half, extents = len(axes), []
    for n, axis in enumerate(axes):
        span = (weight[2 + n] - 1) * attributes["dilations"][n] + 1
        size = (image[axis] - 1) * attributes["strides"][n] + span + attributes["output_padding"][n]
        extents.append(size - attributes["pads"][n] - attributes["pads"][half + n])
    features = weight[1] * attributes["group"]
    shape = _image_result(image, features, extents, attributes["channels_last"])
    return Result(shape, product_dtype(operands, attributes))


def infer_pool(operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Infer one element for each window of an image."""
    image = operands[0].shape
    extents = _window_extents(image, attributes["kernel_shape"], attributes)
    channels = image[-1 if attributes["channels_last"] else 1]
    shape = _image_result(image, channels, extents, attributes["channels_last"])
    return Result(shape, operands[0].dtype)


def infer_quantize(operands: Sequence[Typed], _: Attributes) -> Result:
    """Infer integers in the dtype of the zero point."""
    return Result(operands[0].shape, operands[2].dtype)


def infer_dequantize(operands: Sequence[Typed], _: Attributes) -> Result:
    """Infer floats in the dtype of the scale."""
    return Result(operands[0].shape, operands[1].dtype)
