"""The operators of a graph: kind, shape of the result, and evaluation by NumPy.

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
``sums``             of products of ``bfloat16``: ``float32`` where sums are not rounded to it
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
from typing import Any

import numpy as np

from amos.network import shapes
from amos.network.packages import helper, onnx
from amos.network.shapes import Attributes, Result, Typed


class Kind(Enum):
    """How the elements of a result depend on those of operands."""

    ELEMENTWISE = auto()  # on those at the same place, of operands that are broadcast
    MOVE = auto()  # each on one element
    REDUCTION = auto()  # on all along some axes
    PRODUCT = auto()  # sums of products
    OTHER = auto()


#: Shape and dtype of a result, of operands and attributes.
Infer = Callable[[Sequence[Any], Attributes], Result]
#: The result of arrays and attributes.
Evaluate = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Operation:
    """An operator.

    Attributes:
        evaluate: of arrays and attributes, cast to the result's dtype afterwards; ``None`` where
            constants are not computed ahead.
    """

    kind: Kind
    infer: Infer
    evaluate: Evaluate | None = None


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


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype by name; of ``bfloat16`` that of ONNX."""
    if name == "bfloat16":
        dtype: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
        return dtype
    return np.dtype(name)


def declare_value(name: str, value: Typed) -> Any:
    """Return ONNX's declaration of a value of static shape."""
    kind = helper.np_dtype_to_tensor_dtype(numpy_dtype(value.dtype))
    return helper.make_tensor_value_info(name, kind, value.shape)


def _truncated_quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Divide; quotients of integers are rounded towards 0, as ONNX defines it."""
    if x.dtype.kind not in "iu":
        return np.asarray(x / y)
    quotient: np.ndarray = x // np.where(y == 0, 1, y)
    return np.asarray(quotient + ((quotient < 0) & (quotient * y != x)))


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
    """Compute a function of floats in double precision, so that float32 is right to half an ulp."""
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
    padded: np.ndarray = np.pad(x, widths, mode)  # type: ignore[call-overload]
    return padded


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
    **{name: Operation(Kind.ELEMENTWISE, shapes.infer_same, each) for name, each in _UNARY.items()},
    **{
        name: Operation(Kind.ELEMENTWISE, shapes.infer_elementwise, each)
        for name, each in _BINARY.items()
    },
    **{
        name: Operation(Kind.ELEMENTWISE, shapes.infer_truth, each)
        for name, each in _TRUTHS.items()
    },
    **{
        name: Operation(Kind.REDUCTION, shapes.infer_reduction, _reducing(each))
        for name, each in _REDUCTIONS.items()
    },
    "ArgMax": Operation(Kind.REDUCTION, shapes.infer_position),
    "ArgMin": Operation(Kind.REDUCTION, shapes.infer_position),
    "AveragePool": Operation(Kind.REDUCTION, shapes.infer_pool),
    "Cast": Operation(Kind.ELEMENTWISE, shapes.infer_cast, _cast_array),
    "Concat": Operation(Kind.MOVE, shapes.infer_concat, lambda *x, axis: np.concatenate(x, axis)),
    "Conv": Operation(Kind.PRODUCT, shapes.infer_conv),
    "ConvTranspose": Operation(Kind.PRODUCT, shapes.infer_conv_transpose),
    "DequantizeLinear": Operation(Kind.ELEMENTWISE, shapes.infer_dequantize),
    "Expand": Operation(Kind.MOVE, shapes.infer_shaped, lambda x, shape: np.broadcast_to(x, shape)),
    "Gather": Operation(Kind.MOVE, shapes.infer_gather, np.take),
    "GatherElements": Operation(Kind.MOVE, shapes.infer_gather_elements, np.take_along_axis),
    "GroupNormalization": Operation(Kind.OTHER, shapes.infer_same),
    "LayerNormalization": Operation(Kind.OTHER, shapes.infer_same),
    "LogSoftmax": Operation(Kind.OTHER, shapes.infer_same),
    "MatMul": Operation(Kind.PRODUCT, shapes.infer_matmul),
    "MaxPool": Operation(Kind.REDUCTION, shapes.infer_pool),
    "Pad": Operation(Kind.MOVE, shapes.infer_pad, _pad_array),
    "QuantizeLinear": Operation(Kind.ELEMENTWISE, shapes.infer_quantize),
    "Reshape": Operation(Kind.MOVE, shapes.infer_reshape, lambda x, shape: x.reshape(shape)),
    "Slice": Operation(Kind.MOVE, shapes.infer_slice, _slice_array),
    "Softmax": Operation(Kind.OTHER, shapes.infer_same),
    "Tile": Operation(Kind.MOVE, shapes.infer_tile, lambda x, repeats: np.tile(x, repeats)),
    "Transpose": Operation(Kind.MOVE, shapes.infer_transpose, lambda x, perm: x.transpose(perm)),
    "Where": Operation(Kind.ELEMENTWISE, shapes.infer_where, np.where),
}
