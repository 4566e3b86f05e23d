"""Small quantized models as a quantizer writes them, node by node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

__all__ = ["CASES", "IN", "OUT", "SHAPE", "Model", "convolution", "moves", "no_result", "steps"]


class Model:
    """A quantized model while nodes are added, and its values in floats."""

    def __init__(self, seed: int, kind: str = "uint8") -> None:
        self.rng, self.kind = np.random.default_rng(seed), kind
        self.low = int(np.iinfo(kind).max) - 255
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.scales: dict[str, tuple[np.float32, int]] = {}

    def constant(self, array: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def pair(self, x: str, scale: float, zero: int) -> str:
        """Quantize and dequantize."""
        names = self.constant(np.float32(scale)), self.constant(np.array(zero, self.kind))
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, *names), *names)

    def weight(self, *shape: int, axis: int = 0, kind: str = "int8") -> tuple[str, np.ndarray]:
        """Dequantized weights with a scale for each step of the axis, and the scales."""
        zero = 128 if kind == "uint8" else 0
        values = self.rng.integers(-127, 128, shape) + zero
        scale = self.rng.uniform(0.001, 0.004, shape[axis]).astype(np.float32)
        names = (
            self.constant(values.astype(kind)),
            self.constant(scale),
            self.constant(np.full(shape[axis], zero, kind)),
        )
        return self.add("DequantizeLinear", *names, axis=axis), scale

    def bias(self, scales: np.ndarray) -> str:
        values = self.rng.integers(-3000, 3000, scales.size).astype(np.int32)
        return self.add("DequantizeLinear", self.constant(values), self.constant(scales), axis=0)

    def model(self, *results: str) -> Any:
        helper, floats = onnx.helper, onnx.TensorProto.FLOAT
        inputs = [helper.make_tensor_value_info("x", floats, SHAPE)]
        outputs = [helper.make_tensor_value_info(name, floats, None) for name in results]
        graph = helper.make_graph(self.nodes, "small", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 19), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = 9
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


#: Scale of the input's quantization, and of the results'.
IN, OUT = 0.0313, 0.0427


def convolution(g: Model, zero: int = 7, **options: Any) -> str:
    x = g.pair("x", IN, zero)
    weight, scales = g.weight(5, 4, 3, 3, kind=options.get("weights", "int8"))
    bias = g.bias(np.float32(IN) * scales)
    return g.pair(g.add("Conv", x, weight, bias, pads=[1, 1, 1, 1], strides=[2, 2]), OUT, 9)


def _unsigned_weights(g: Model) -> str:
    return convolution(g, weights="uint8")


def _unpadded_zero(g: Model) -> str:
    return convolution(g, zero=0)


def _transposed(g: Model) -> str:
    weight, scales = g.weight(4, 3, 4, 4, axis=1)
    bias = g.bias(np.float32(IN) * scales)
    y = g.add("ConvTranspose", g.pair("x", IN, 0), weight, bias, strides=[2, 2], pads=[1] * 4)
    return g.pair(y, OUT, 9)


def _depthwise(g: Model) -> str:
    weight, scales = g.weight(4, 1, 3, 3)
    bias = g.bias(np.float32(IN) * scales)
    y = g.add("Conv", g.pair("x", IN, 5), weight, bias, pads=[1, 1, 1, 1], group=4)
    return g.pair(g.add("Relu", y), OUT, 3)


def _float_bias(g: Model) -> str:
    weight, _ = g.weight(5, 4, 1, 1)
    bias = g.constant(g.rng.standard_normal(5).astype(np.float32))
    return g.pair(g.add("Conv", g.pair("x", IN, 7), weight, bias), OUT, 3)


def no_result(g: Model) -> str:
    weight, scales = g.weight(5, 4, 1, 1)
    return g.add("Conv", g.pair("x", IN, 7), weight, g.bias(np.float32(IN) * scales))


def _residual(g: Model) -> str:
    x = g.pair("x", IN, 11)
    weight, scales = g.weight(4, 4, 3, 3)
    y = g.add("Conv", x, weight, g.bias(np.float32(IN) * scales), pads=[1, 1, 1, 1])
    return g.pair(g.add("Add", g.pair(y, 0.0531, 100), x), OUT, 0)


def _summed_floats(g: Model) -> str:
    x = g.pair("x", IN, 11)
    weight, scales = g.weight(4, 4, 3, 3)
    y = g.add("Conv", x, weight, g.bias(np.float32(IN) * scales), pads=[1, 1, 1, 1])
    return g.add("Tanh", g.add("Add", x, g.pair(y, OUT, 100)))


def moves(g: Model) -> str:
    x = g.add("MaxPool", g.pair("x", IN, 7), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    x = g.pair(x, IN, 7)
    x = g.pair(g.add("Concat", x, g.pair(g.add("Relu", "x"), IN, 7), axis=1), IN, 7)
    return g.pair(g.add("Flatten", x), IN, 7)


def _gemm(g: Model) -> str:
    x = g.pair(g.add("Flatten", "x"), IN, 7)
    weight, scales = g.weight(6, 4 * 36)
    return g.pair(g.add("Gemm", x, weight, g.bias(np.float32(IN) * scales), transB=1), OUT, 9)


def _gelu(g: Model) -> str:
    x = g.pair(g.add("Flatten", "x"), IN, 7)
    weight, _ = g.weight(4 * 36, 6, axis=1)
    y = g.add("MatMul", x, weight)
    return g.pair(g.add("Mul", y, g.add("Sigmoid", y)), OUT, 9)


def steps(g: Model) -> str:
    """GELU as a quantizer writes it, with a pair behind each operator."""
    x = g.pair("x", IN, 100 + g.low)
    y = g.pair(g.add("Erf", g.add("Div", x, g.constant(np.float32(1.4142)))), 0.0078, 127 + g.low)
    y = g.pair(g.add("Add", y, g.constant(np.float32(1))), 0.0079, g.low)
    return g.pair(
        g.add("Mul", g.pair(g.add("Mul", x, y), OUT, 9), g.constant(np.float32(0.5))), OUT, 9
    )


def _other_levels(g: Model) -> str:
    """What is read with another scale and another zero point than it was written with."""
    scale, zero = g.constant(np.float32(IN)), g.constant(np.array(5, g.kind))
    y = g.add("QuantizeLinear", "x", scale, zero)
    scale, zero = g.constant(np.float32(OUT)), g.constant(np.array(90, g.kind))
    return g.add("DequantizeLinear", y, scale, zero)


def _narrow(g: Model) -> str:
    """Floats of 16 bits, with a scale that divides them exactly."""
    scale, zero = g.constant(np.float16(1 / 32)), g.constant(np.array(5, g.kind))
    x = g.add("Cast", "x", to=onnx.TensorProto.FLOAT16)
    x = g.add("DequantizeLinear", g.add("QuantizeLinear", x, scale, zero), scale, zero)
    scale = g.constant(np.float16(1 / 64))
    y = g.add("DequantizeLinear", g.constant(np.arange(6, dtype=np.int8)), scale)
    return g.add("Cast", g.add("Add", x, y), to=onnx.TensorProto.FLOAT)


CASES: list[Callable[[Model], str]] = [
    *(convolution, _unsigned_weights, _unpadded_zero, _transposed, _depthwise, _float_bias),
    *(no_result, _residual, _summed_floats, _gemm, _gelu, moves, steps, _other_levels, _narrow),
]
SHAPE = (2, 4, 6, 6)
