"""Graphs computed by NumPy, node by node: what passes, loops and readers are held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from amos.network.graph import Constant, Graph, Node, Operand
from amos.network.operations import evaluate, numpy_dtype
from amos.network.shapes import BYTES, Result


def evaluate_graph(graph: Graph, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Results of a graph for arrays in the order of its inputs."""
    values = {node.number: array for node, array in zip(graph.inputs, inputs, strict=True)}

    def value(operand: Operand) -> np.ndarray:
        return operand.array if isinstance(operand, Constant) else values[operand.number]

    for node in graph.computing():
        array = evaluate_node(node, [value(operand) for operand in node.operands])
        assert array.shape == node.shape, (node.operation, array.shape, node.shape)
        assert str(array.dtype) == node.dtype, (node.operation, array.dtype, node.dtype)
        values[node.number] = array
    return [values[node.number] for node in graph.outputs]


def evaluate_node(node: Node, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The result of one node."""
    if node.operation in _FUNCTIONS:
        with np.errstate(all="ignore"):
            result = np.asarray(_FUNCTIONS[node.operation](*arrays, **node.attributes))
        return result.astype(numpy_dtype(node.dtype))
    array = evaluate(node.operation, arrays, node.attributes, Result(node.shape, node.dtype))
    assert array is not None, node.operation
    return array


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.int64 if x.dtype.kind in "iub" else np.float64)


def _first(x: np.ndarray, channels_last: bool) -> np.ndarray:
    return np.moveaxis(x, -1, 1) if channels_last else x


def _back(x: np.ndarray, channels_last: bool) -> np.ndarray:
    return np.moveaxis(x, 1, -1) if channels_last else x


def _windows(
    x: np.ndarray, kernel: Sequence[int], attributes: dict[str, Any], fill: float
) -> np.ndarray:
    """Axes: batch, channels, extents of the result, the window."""
    count = len(kernel)
    pads = attributes["pads"]
    widths = [(0, 0), (0, 0), *zip(pads[:count], pads[count:], strict=True)]
    x = np.pad(x, widths, constant_values=fill)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, attributes["dilations"], strict=True)]
    windows = sliding_window_view(x, spans, tuple(range(2, 2 + count)))
    steps = [slice(None), slice(None)]
    steps += [slice(None, None, s) for s in attributes["strides"]]
    steps += [slice(None, None, d) for d in attributes["dilations"]]
    return windows[tuple(steps)]


def _conv(
    x: np.ndarray, w: np.ndarray, *, group: int, channels_last: bool, **attributes: Any
) -> Any:
    x, w = _wide(_first(x, channels_last)), _wide(w)
    windows = _windows(x, w.shape[2:], attributes, 0)
    per = x.shape[1] // group
    features = w.shape[0] // group
    parts = []
    count = w.ndim - 2
    for g in range(group):
        own = windows[:, g * per : (g + 1) * per]
        axes = ([1, *range(2 + count, 2 + 2 * count)], [1, *range(2, 2 + count)])
        product = np.tensordot(own, w[g * features : (g + 1) * features], axes)
        parts.append(np.moveaxis(product, -1, 1))
    return _back(np.concatenate(parts, 1), channels_last)


def _conv_transpose(
    x: np.ndarray, w: np.ndarray, *, group: int, channels_last: bool, **attributes: Any
) -> Any:
    x, w = _wide(_first(x, channels_last)), _wide(w)
    count = w.ndim - 2
    per, features = x.shape[1] // group, w.shape[1]
    sizes = [
        (n - 1) * s + (k - 1) * d + 1 + more
        for n, s, k, d, more in zip(
            x.shape[2:],
            attributes["strides"],
            w.shape[2:],
            attributes["dilations"],
            attributes["output_padding"],
            strict=True,
        )
    ]
    out = np.zeros((x.shape[0], features * group, *sizes), x.dtype)
    for g in range(group):
        for tap in np.ndindex(*w.shape[2:]):
            at = tuple(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(
                    tap, attributes["dilations"], x.shape[2:], attributes["strides"], strict=True
                )
            )
            weights = w[(slice(g * per, (g + 1) * per), slice(None), *tap)]
            product = np.tensordot(x[:, g * per : (g + 1) * per], weights, ([1], [0]))
            own = slice(g * features, (g + 1) * features)
            out[(slice(None), own, *at)] += np.moveaxis(product, -1, 1)
    pads = attributes["pads"]
    cut = tuple(slice(b, n - a) for b, a, n in zip(pads[:count], pads[count:], sizes, strict=True))
    return _back(out[(slice(None), slice(None), *cut)], channels_last)


def _max_pool(x: np.ndarray, *, kernel_shape: Any, channels_last: bool, **attributes: Any) -> Any:
    low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    windows = _windows(_first(x, channels_last), kernel_shape, attributes, low)
    axes = tuple(range(x.ndim, windows.ndim))
    return _back(windows.max(axes), channels_last)


def _average_pool(
    x: np.ndarray,
    *,
    kernel_shape: Any,
    channels_last: bool,
    count_include_pad: bool,
    **attributes: Any,
) -> Any:
    x = _first(x, channels_last).astype(np.float64)
    windows = _windows(x, kernel_shape, attributes, 0)
    ones = _windows(np.ones_like(x), kernel_shape, attributes, float(count_include_pad))
    axes = tuple(range(x.ndim, windows.ndim))
    return _back(windows.sum(axes) / ones.sum(axes), channels_last)


def _softmax(x: np.ndarray, *, axis: int) -> Any:
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def _log_softmax(x: np.ndarray, *, axis: int) -> Any:
    wide = x.astype(np.float64)
    less = wide - wide.max(axis, keepdims=True)
    return less - np.log(np.exp(less).sum(axis, keepdims=True))


def _standard(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    less = x - x.mean(axes, keepdims=True)
    return np.asarray(less / np.sqrt((less**2).mean(axes, keepdims=True) + epsilon))


def _layer_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, *, epsilon: float) -> Any:
    return _standard(x.astype(np.float64), (-1,), epsilon) * scale + bias


def _group_norm(
    x: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray,
    *,
    num_groups: int,
    epsilon: float,
    axis: int,
) -> Any:
    moved = np.moveaxis(x.astype(np.float64), axis, 1)
    shape = moved.shape
    groups = moved.reshape(shape[0], num_groups, shape[1] // num_groups, *shape[2:])
    value = _standard(groups, tuple(range(2, groups.ndim)), epsilon).reshape(shape)
    ones = (-1, *[1] * (x.ndim - 2))
    return np.moveaxis(value * scale.reshape(ones) + bias.reshape(ones), 1, axis)


def _position(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(x: np.ndarray, *, axis: int, keepdims: bool, select_last_index: bool) -> Any:
        if not select_last_index:
            return function(x, axis=axis, keepdims=keepdims)
        return x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis, keepdims=keepdims)

    return compute


def _levels(x: np.ndarray, values: np.ndarray, axis: int) -> np.ndarray:
    return (
        values.reshape([-1 if n == axis else 1 for n in range(x.ndim)]) if values.ndim else values
    )


def _quantize(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, *, axis: int) -> Any:
    info = np.iinfo(zero.dtype)
    rounded = np.rint(x.astype(np.float32) / _levels(x, scale, axis).astype(np.float32))
    return np.clip(rounded + _levels(x, zero, axis).astype(np.float64), info.min, info.max)


def _dequantize(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, *, axis: int) -> Any:
    less = x.astype(np.int64) - _levels(x, zero, axis).astype(np.int64)
    return less.astype(np.float32) * _levels(x, scale, axis)


def _matmul(x: np.ndarray, y: np.ndarray) -> Any:
    if str(x.dtype) in BYTES or x.dtype.kind in "iu":
        return x.astype(np.int64) @ y.astype(np.int64)
    return x.astype(np.float64) @ y.astype(np.float64)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ArgMax": _position(np.argmax),
    "ArgMin": _position(np.argmin),
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DequantizeLinear": _dequantize,
    "GroupNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _log_softmax,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "QuantizeLinear": _quantize,
    "Softmax": _softmax,
}
