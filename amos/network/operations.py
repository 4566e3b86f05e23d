"""The operators of a graph: of each its kind, the shape of its result, and what NumPy computes.

They are ONNX's, by its names. What ONNX says in several ways (as attribute or as input, by an
operator of its own or by others) is said in one way here: :mod:`amos.network.reading` writes it so.
Loops of each are in :mod:`amos.network.loops`.

===================  ==============================================================================
attribute            meaning
===================  ==============================================================================
``axis``, ``axes``   counted from 0, never negative; ``axes`` rises
``perm``             of ``Transpose``: axis of the operand by axis of the result
``shape``            of ``Reshape`` and ``Expand``: the result's
``starts``,          of ``Slice``, of all axes: first index, distance (which may be negative) and
``steps``,           count of what is read
``sizes``
``before``,          of ``Pad``, of all axes: elements ahead of and behind the operand
``after``
``pads``             of windows: padding ahead of each image axis, then behind each
``channels_last``    of windows: whether the channels of images are the last axis or the second
``to``               of ``Cast``: dtype of the result
===================  ==============================================================================

Weights of ``Conv`` are features × channels of a group × window, of ``ConvTranspose`` channels ×
features of a group × window, whatever the layout of images. Products of 8-bit integers are sums of
``int32``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import numpy as np

from amos.errors import NetworkError

#: dtypes that quantized tensors have.
BYTES = ("uint8", "int8")


class Kind(Enum):
    """How the elements of a result depend on those of operands."""

    ELEMENTWISE = auto()  # on those at the same place, of operands that are broadcast
    MOVE = auto()  # each on one element
    REDUCTION = auto()  # on all along some axes
    PRODUCT = auto()  # sums of products
    OTHER = auto()


class Typed(Protocol):
    """What has a shape and a dtype."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


@dataclass(frozen=True)
class Result:
    """Shape and dtype of a result."""

    shape: tuple[int, ...]
    dtype: str


Attributes = Mapping[str, Any]
#: Shape and dtype of a result, of operands and attributes.
Infer = Callable[[Sequence[Any], Attributes], Result]
#: The result of arrays and attributes.
Evaluate = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Operation:
    """An operator.

    Attributes:
        kind: how results depend on operands.
        infer: shape and dtype of the result.
        evaluate: of arrays and attributes, cast to the result's dtype afterwards; ``None`` where
            constants are not computed ahead.
    """

    kind: Kind
    infer: Infer
    evaluate: Evaluate | None = None


def infer(operation: str, operands: Sequence[Typed], attributes: Attributes) -> Result:
    """Return shape and dtype of a result.

    Raises:
        NetworkError: the operands do not go together.
    """
    return OPERATIONS[operation].infer(operands, attributes)


def evaluate(
    operation: str, arrays: Sequence[np.ndarray], attributes: Attributes, result: Result
) -> np.ndarray | None:
    """Compute an operator of constants; ``None`` where that is not done ahead."""
    function = OPERATIONS[operation].evaluate
    if function is None:
        return None
    with np.errstate(all="ignore"):
        array = np.asarray(function(*arrays, **attributes))
    if str(array.dtype) != result.dtype:
        array = array.astype(numpy_dtype(result.dtype))
    return array


def kind_of(operation: str) -> Kind:
    """Return the kind of an operator; inputs are none."""
    return OPERATIONS[operation].kind


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype by name; of ``bfloat16`` that of ``ml_dtypes``."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)  # type: ignore[no-any-return]
    return np.dtype(name)


def _broadcast(operands: Sequence[Typed]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*(each.shape for each in operands))
    except ValueError:
        shapes = " and ".join(str(each.shape) for each in operands)
        raise NetworkError(f"shapes {shapes} do not go together") from None


def _same(operands: Sequence[Typed], _: Attributes) -> Result:
    """As the first operand."""
    return Result(operands[0].shape, operands[0].dtype)


def _elementwise(operands: Sequence[Typed], _: Attributes) -> Result:
    kinds = {each.dtype for each in operands}
    if len(kinds) > 1:
        raise NetworkError(f"operands of {' and '.join(sorted(kinds))}")
    return Result(_broadcast(operands), operands[0].dtype)


def _truth(operands: Sequence[Typed], _: Attributes) -> Result:
    return Result(_broadcast(operands), "bool")


def _where(operands: Sequence[Typed], _: Attributes) -> Result:
    return Result(_broadcast(operands), operands[1].dtype)


def _cast(operands: Sequence[Typed], attributes: Attributes) -> Result:
    return Result(operands[0].shape, attributes["to"])


def _shaped(operands: Sequence[Typed], attributes: Attributes) -> Result:
    return Result(attributes["shape"], operands[0].dtype)


def _reshape(operands: Sequence[Typed], attributes: Attributes) -> Result:
    result = _shaped(operands, attributes)
    if math.prod(result.shape) != math.prod(operands[0].shape):
        raise NetworkError(f"{operands[0].shape} cannot be {result.shape}")
    return result


def _transpose(operands: Sequence[Typed], attributes: Attributes) -> Result:
    shape = operands[0].shape
    return Result(tuple(shape[axis] for axis in attributes["perm"]), operands[0].dtype)


def _concat(operands: Sequence[Typed], attributes: Attributes) -> Result:
    axis, first = attributes["axis"], operands[0]
    shape = list(first.shape)
    shape[axis] = sum(each.shape[axis] for each in operands)
    return Result(tuple(shape), first.dtype)


def _slice(operands: Sequence[Typed], attributes: Attributes) -> Result:
    return Result(attributes["sizes"], operands[0].dtype)


def _pad(operands: Sequence[Typed], attributes: Attributes) -> Result:
    columns = zip(operands[0].shape, attributes["before"], attributes["after"], strict=True)
    return Result(tuple(sum(column) for column in columns), operands[0].dtype)


def _tile(operands: Sequence[Typed], attributes: Attributes) -> Result:
    pairs = zip(operands[0].shape, attributes["repeats"], strict=True)
    return Result(tuple(size * times for size, times in pairs), operands[0].dtype)


def _gather(operands: Sequence[Typed], attributes: Attributes) -> Result:
    (data, indices), axis = operands, attributes["axis"]
    return Result((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]), data.dtype)


def _gather_elements(operands: Sequence[Typed], _: Attributes) -> Result:
    return Result(operands[1].shape, operands[0].dtype)


def _reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    sizes = (1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(s for axis, s in enumerate(sizes) if keepdims or axis not in axes)


def _reduction(operands: Sequence[Typed], attributes: Attributes) -> Result:
    shape = _reduced_shape(operands[0].shape, attributes["axes"], attributes["keepdims"])
    return Result(shape, operands[0].dtype)


def _position(operands: Sequence[Typed], attributes: Attributes) -> Result:
    axes = (attributes["axis"],)
    return Result(_reduced_shape(operands[0].shape, axes, attributes["keepdims"]), "int64")


def product_dtype(operands: Sequence[Typed]) -> str:
    """Return the dtype of sums of products: ``int32`` for integers of 8 bits."""
    kind = operands[0].dtype
    return "int32" if kind in BYTES else kind


def _matmul(operands: Sequence[Typed], _: Attributes) -> Result:
    x, y = (each.shape for each in operands)
    if len(x) < 2 or len(y) < 2 or x[-1] != y[-2]:
        raise NetworkError(f"matrices {x} and {y} do not go together")
    lead = np.broadcast_shapes(x[:-2], y[:-2])
    return Result((*lead, x[-2], y[-1]), product_dtype(operands))


def image_axes(shape: Sequence[int], channels_last: bool) -> range:
    """Return the axes of an image's extents: all but the batch and the channels."""
    return range(1, len(shape) - 1) if channels_last else range(2, len(shape))


def _image_result(
    image: Sequence[int], channels: int, extents: Sequence[int], channels_last: bool
) -> tuple[int, ...]:
    if channels_last:
        return (image[0], *extents, channels)
    return (image[0], channels, *extents)


def _window_extents(shape: Sequence[int], window: Sequence[int], told: Attributes) -> list[int]:
    """How often a window fits along each image axis."""
    axes = image_axes(shape, told["channels_last"])
    half = len(axes)
    extents = []
    for n, axis in enumerate(axes):
        span = (window[n] - 1) * told["dilations"][n] + 1
        size = shape[axis] + told["pads"][n] + told["pads"][half + n]
        extents.append((size - span) // told["strides"][n] + 1)
    return extents


def _conv(operands: Sequence[Typed], told: Attributes) -> Result:
    image, weight = operands[0].shape, operands[1].shape
    extents = _window_extents(image, weight[2:], told)
    channels = image[-1 if told["channels_last"] else 1]
    if channels != weight[1] * told["group"] or min(extents, default=1) < 1:
        raise NetworkError(f"image {image} and weights {weight} do not go together")
    shape = _image_result(image, weight[0], extents, told["channels_last"])
    return Result(shape, product_dtype(operands))


def _conv_transpose(operands: Sequence[Typed], told: Attributes) -> Result:
    image, weight = operands[0].shape, operands[1].shape
    axes = image_axes(image, told["channels_last"])
    half, extents = len(axes), []
    for n, axis in enumerate(axes):
        span = (weight[2 + n] - 1) * told["dilations"][n] + 1
        size = (image[axis] - 1) * told["strides"][n] + span + told["output_padding"][n]
        extents.append(size - told["pads"][n] - told["pads"][half + n])
    features = weight[1] * told["group"]
    shape = _image_result(image, features, extents, told["channels_last"])
    return Result(shape, product_dtype(operands))


def _pool(operands: Sequence[Typed], told: Attributes) -> Result:
    image = operands[0].shape
    extents = _window_extents(image, told["kernel_shape"], told)
    channels = image[-1 if told["channels_last"] else 1]
    shape = _image_result(image, channels, extents, told["channels_last"])
    return Result(shape, operands[0].dtype)


def _quantize(operands: Sequence[Typed], _: Attributes) -> Result:
    return Result(operands[0].shape, operands[2].dtype)


def _dequantize(operands: Sequence[Typed], _: Attributes) -> Result:
    return Result(operands[0].shape, operands[1].dtype)


def _truncated_quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of integers rounded towards 0, as ONNX defines it."""
    if x.dtype.kind not in "iu":
        return np.asarray(x / y)
    quotient = x // np.where(y == 0, 1, y)
    return quotient + ((quotient < 0) & (quotient * y != x))


def _remainder(x: np.ndarray, y: np.ndarray, *, fmod: int) -> np.ndarray:
    return np.asarray(np.fmod(x, y) if fmod else np.mod(x, y))


def _gelu(x: np.ndarray, *, approximate: str) -> np.ndarray:
    wide = x.astype(np.float64)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
        return np.asarray(wide * (1 + np.tanh(inner)) / 2)
    return np.asarray(wide * (1 + _erf(wide / math.sqrt(2))) / 2)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _wide(function: Callable[[Any], Any]) -> Evaluate:
    """A function of floats in double precision: rounded to float32 it is right to half an ulp."""
    return lambda x: function(x.astype(np.float64))


def _cast_array(x: np.ndarray, *, to: str) -> np.ndarray:
    return x.astype(numpy_dtype(to))


def _slice_array(
    x: np.ndarray, *, starts: Sequence[int], steps: Sequence[int], sizes: Sequence[int]
) -> np.ndarray:
    places = (
        begin + step * np.arange(size)
        for begin, step, size in zip(starts, steps, sizes, strict=True)
    )
    return x[np.ix_(*places)] if x.ndim else x


def _pad_array(
    x: np.ndarray, *, before: Sequence[int], after: Sequence[int], mode: str, value: float
) -> np.ndarray:
    widths = [*zip(before, after, strict=True)]
    if mode == "constant":
        return np.pad(x, widths, constant_values=value)
    return np.asarray(np.pad(x, widths, mode))  # type: ignore[call-overload]


_UNARY: dict[str, Evaluate] = {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "BitwiseNot": np.invert,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Erf": _wide(_erf),
    "Exp": _wide(np.exp),
    "Floor": np.floor,
    "Gelu": _gelu,
    "Identity": lambda x: x,
    "Log": _wide(np.log),
    "Neg": np.negative,
    "Not": np.logical_not,
    "Relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "Round": np.rint,
    "Sigmoid": _wide(lambda x: 1 / (1 + np.exp(-x))),
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Sqrt": np.sqrt,
    "Swish": _wide(lambda x: x / (1 + np.exp(-x))),
    "Tan": np.tan,
    "Tanh": _wide(np.tanh),
}
_BINARY: dict[str, Evaluate] = {
    "Add": np.add,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "Div": _truncated_quotient,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mod": _remainder,
    "Mul": np.multiply,
    "Pow": np.power,
    "Sub": np.subtract,
}
_TRUTHS: dict[str, Evaluate] = {
    "And": np.logical_and,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "IsNaN": np.isnan,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}


def _reducing(function: Callable[..., Any]) -> Evaluate:
    return lambda x, axes, keepdims: function(x, axis=tuple(axes), keepdims=keepdims)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceMax": np.max,
    "ReduceMean": np.mean,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
}
#: Every operator of a graph, by ONNX's name.
OPERATIONS: Mapping[str, Operation] = {
    **{name: Operation(Kind.ELEMENTWISE, _same, each) for name, each in _UNARY.items()},
    **{name: Operation(Kind.ELEMENTWISE, _elementwise, each) for name, each in _BINARY.items()},
    **{name: Operation(Kind.ELEMENTWISE, _truth, each) for name, each in _TRUTHS.items()},
    **{
        name: Operation(Kind.REDUCTION, _reduction, _reducing(each))
        for name, each in _REDUCTIONS.items()
    },
    "ArgMax": Operation(Kind.REDUCTION, _position),
    "ArgMin": Operation(Kind.REDUCTION, _position),
    "AveragePool": Operation(Kind.REDUCTION, _pool),
    "Cast": Operation(Kind.ELEMENTWISE, _cast, _cast_array),
    "Concat": Operation(Kind.MOVE, _concat, lambda *x, axis: np.concatenate(x, axis)),
    "Conv": Operation(Kind.PRODUCT, _conv),
    "ConvTranspose": Operation(Kind.PRODUCT, _conv_transpose),
    "DequantizeLinear": Operation(Kind.ELEMENTWISE, _dequantize),
    "Expand": Operation(Kind.MOVE, _shaped, lambda x, shape: np.broadcast_to(x, shape)),
    "Gather": Operation(Kind.MOVE, _gather, lambda x, index, axis: np.take(x, index, axis)),
    "GatherElements": Operation(
        Kind.MOVE, _gather_elements, lambda x, index, axis: np.take_along_axis(x, index, axis)
    ),
    "GroupNormalization": Operation(Kind.OTHER, _same),
    "LayerNormalization": Operation(Kind.OTHER, _same),
    "LogSoftmax": Operation(Kind.OTHER, _same),
    "MatMul": Operation(Kind.PRODUCT, _matmul),
    "MaxPool": Operation(Kind.REDUCTION, _pool),
    "Pad": Operation(Kind.MOVE, _pad, _pad_array),
    "QuantizeLinear": Operation(Kind.ELEMENTWISE, _quantize),
    "Reshape": Operation(Kind.MOVE, _reshape, lambda x, shape: x.reshape(shape)),
    "Slice": Operation(Kind.MOVE, _slice, _slice_array),
    "Softmax": Operation(Kind.OTHER, _same),
    "Tile": Operation(Kind.MOVE, _tile, lambda x, repeats: np.tile(x, repeats)),
    "Transpose": Operation(Kind.MOVE, _transpose, lambda x, perm: x.transpose(perm)),
    "Where": Operation(Kind.ELEMENTWISE, _where, np.where),
}
