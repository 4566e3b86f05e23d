"""Operators over integers, as the pairs of dequantize and quantize that they stand for.

``QLinearConv`` and its kind (ONNX's own, and those of ``com.microsoft`` that onnxruntime's
quantizer writes) say in one node what other models say as DequantizeLinear, an operator of floats
and QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from amos.network.graph import Constant, Operand
from amos.network.reading import elementwise, moves, products, windows
from amos.network.reading.node import NodeSource, Read
from amos.network.reading.quantization import read_dequantize, read_quantize

_FLOATS: Mapping[str, Read] = {
    **elementwise.READERS,
    **moves.READERS,
    **products.READERS,
    **windows.READERS,
}


def _dequantize(node: NodeSource, triple: Sequence[Operand | None], axis: int) -> Operand:
    """Dequantize integers by their scale and zero point."""
    return read_dequantize(replace(node, inputs=tuple(triple), attributes={"axis": axis}))


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
    return read_quantize(replace(node, inputs=(result, scale, zero), attributes={}))


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
}
