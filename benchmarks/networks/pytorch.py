"""An ONNX model as a ``torch.fx`` graph, so that PyTorch computes what the others do.

QuantizeLinear and DequantizeLinear become the operators that PT2E's quantizer writes, which
Inductor takes for integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
import torch.ao.quantization.fx._decomposed  # it registers torch.ops.quantized_decomposed
from onnx import numpy_helper
from torch.nn import functional

__all__ = ["module_of"]

_QUANTIZED = torch.ops.quantized_decomposed
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": torch.add,
    "Div": torch.div,
    "Erf": torch.erf,
    "Mul": torch.mul,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
}
_SLIDING = {
    "Conv": (functional.conv2d, functional.conv3d),
    "MaxPool": (functional.max_pool2d, functional.max_pool3d),
    "AveragePool": (functional.avg_pool2d, functional.avg_pool3d),
}


def _mean_of_images(x: torch.Tensor) -> torch.Tensor:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


def module_of(model: onnx.ModelProto) -> torch.fx.GraphModule:
    """The module of a model, with its first output.

    Raises:
        NotImplementedError: it has an operator that no definition here uses.
    """
    return _Importer(model).module()


class _Importer:
    """One pass over the nodes of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.graph, self.root = torch.fx.Graph(), torch.nn.Module()
        self.values: dict[str, torch.fx.Node] = {}
        self.arrays = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        #: Scale, zero point and axis of what is dequantized, by the name of its floats.
        self.levels: dict[str, tuple[str, np.ndarray, np.ndarray, int]] = {}

    def module(self) -> torch.fx.GraphModule:
        for value in self.model.graph.input:
            self.values[value.name] = self.graph.placeholder(value.name)
        for node in self.model.graph.node:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            self.convert(node.op_type, list(node.input), node.output[0], attributes)
        self.graph.output(self.value(self.model.graph.output[0].name))
        return torch.fx.GraphModule(self.root, self.graph).eval()

    def convert(self, kind: str, inputs: list[str], out: str, attributes: dict[str, Any]) -> None:
        if kind == "DequantizeLinear":
            self.dequantize(inputs, out, attributes.get("axis", 1))
        elif kind in _FUNCTIONS:
            self.values[out] = self.call(_FUNCTIONS[kind], *map(self.value, inputs))
        elif kind in _SLIDING:
            self.values[out] = self.sliding(kind, inputs, attributes)
        elif method := getattr(self, f"_{kind.lower()}", None):
            self.values[out] = method(inputs, attributes)
        else:
            raise NotImplementedError(f"operator {kind} has no form in PyTorch here")

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> torch.fx.Node:
        return self.graph.call_function(function, arguments, named)

    def constant(self, array: np.ndarray) -> torch.fx.Node:
        name = f"constant{len(list(self.root.buffers()))}"
        # Inductor packs quantized weights as if they were contiguous, whatever their strides.
        self.root.register_buffer(name, torch.from_numpy(np.array(array, order="C")))
        return self.graph.get_attr(name)

    def value(self, name: str) -> torch.fx.Node:
        """What stands for a name; PT2E dequantizes once for each reader."""
        if name in self.levels and name not in self.arrays:
            source, scale, zero, _ = self.levels[name]
            return self._quantization(_QUANTIZED.dequantize_per_tensor, source, scale, zero)
        if name not in self.values:
            self.values[name] = self.constant(self.arrays[name])
        return self.values[name]

    def weight(self, name: str, transposed: bool = False) -> torch.fx.Node:
        """A second operand: dequantized for each channel if it is quantized."""
        move = np.transpose if transposed else np.asarray
        if name not in self.levels:
            return self.constant(move(self.arrays[name]))
        source, scale, zero, axis = self.levels[name]
        values = move(self.arrays[source])
        axis = values.ndim - 1 - axis if transposed else axis
        count = values.shape[axis if scale.size > 1 else 0]
        each = [self.constant(np.broadcast_to(v, count)) for v in (scale, zero.astype(np.int64))]
        axis = axis if scale.size > 1 else 0
        bounds = np.iinfo(values.dtype)
        return self.call(
            _QUANTIZED.dequantize_per_channel, self.constant(values), *each, axis,
            int(bounds.min), int(bounds.max), getattr(torch, str(values.dtype)),
        )  # fmt: skip

    def dequantize(self, inputs: list[str], out: str, axis: int) -> None:
        source, scale, zero = inputs[0], self.arrays[inputs[1]], self.arrays[inputs[2]]
        self.levels[out] = source, scale.reshape(-1), zero.reshape(-1), axis
        if source in self.arrays:
            values = self.arrays[source].astype(np.int32)
            shape = [-1 if d == axis and scale.size > 1 else 1 for d in range(values.ndim)]
            centred = values - zero.astype(np.int32).reshape(shape)
            self.arrays[out] = centred.astype(np.float32) * scale.reshape(shape)

    def _quantizelinear(self, inputs: list[str], _: dict[str, Any]) -> torch.fx.Node:
        scale, zero = (self.arrays[name].reshape(-1) for name in inputs[1:])
        return self._quantization(_QUANTIZED.quantize_per_tensor, inputs[0], scale, zero)

    def _quantization(
        self, function: Any, source: str, scale: np.ndarray, zero: np.ndarray
    ) -> torch.fx.Node:
        (step,), (middle,), bounds = scale, zero, np.iinfo(zero.dtype)
        limits = int(middle), int(bounds.min), int(bounds.max), getattr(torch, str(zero.dtype))
        return self.call(function, self.value(source), float(step), *limits)

    def sliding(self, kind: str, inputs: list[str], attributes: dict[str, Any]) -> torch.fx.Node:
        """What slides over an image, padded by as much on both sides."""
        sizes, pads = attributes["kernel_shape"], attributes["pads"]
        chosen = attributes.get("auto_pad", b"NOTSET") != b"NOTSET"
        before = pads[: len(sizes)]
        if chosen or pads != before * 2 or attributes.get("ceil_mode"):
            raise NotImplementedError(f"{kind} with padding {pads}")
        function = _SLIDING[kind][len(sizes) - 2]
        options: dict[str, Any] = {"stride": attributes["strides"], "padding": before}
        x = self.value(inputs[0])
        if kind == "Conv":
            bias = map(self.value, inputs[2:])
            options["groups"] = attributes.get("group", 1)
            return self.call(function, x, self.weight(inputs[1]), *bias, **options)
        if kind == "AveragePool":
            options["count_include_pad"] = bool(attributes.get("count_include_pad"))
        return self.call(function, x, sizes, **options)

    def _convtranspose(self, inputs: list[str], attributes: dict[str, Any]) -> torch.fx.Node:
        x, weight, bias = self.value(inputs[0]), self.weight(inputs[1]), map(self.value, inputs[2:])
        options = {"stride": attributes["strides"], "padding": attributes["pads"][:2]}
        return self.call(functional.conv_transpose2d, x, weight, *bias, **options)

    def _batchnormalization(self, inputs: list[str], attributes: dict[str, Any]) -> torch.fx.Node:
        x, scale, shift, mean, variance = map(self.value, inputs)
        epsilon = attributes["epsilon"]
        return self.call(functional.batch_norm, x, mean, variance, scale, shift, eps=epsilon)

    def _layernormalization(self, inputs: list[str], attributes: dict[str, Any]) -> torch.fx.Node:
        x, scale, shift = map(self.value, inputs)
        width, epsilon = self.arrays[inputs[1]].shape, attributes.get("epsilon", 1e-5)
        return self.call(functional.layer_norm, x, width, scale, shift, epsilon)

    def _matmul(self, inputs: list[str], _: dict[str, Any]) -> torch.fx.Node:
        x, y = inputs
        if y in self.arrays:
            return self.call(functional.linear, self.value(x), self.weight(y, transposed=True))
        return self.call(torch.matmul, self.value(x), self.value(y))

    def _gemm(self, inputs: list[str], attributes: dict[str, Any]) -> torch.fx.Node:
        weight = self.weight(inputs[1], transposed=not attributes.get("transB"))
        return self.call(functional.linear, self.value(inputs[0]), weight, self.value(inputs[2]))

    def _clip(self, inputs: list[str], _: dict[str, Any]) -> torch.fx.Node:
        low, high = (self.arrays[name].item() for name in inputs[1:])
        return self.call(functional.hardtanh, self.value(inputs[0]), low, high)

    def _concat(self, inputs: list[str], attributes: dict[str, Any]) -> torch.fx.Node:
        return self.call(torch.cat, [self.value(name) for name in inputs], attributes["axis"])

    def _flatten(self, inputs: list[str], _: dict[str, Any]) -> torch.fx.Node:
        return self.call(torch.flatten, self.value(inputs[0]), 1)

    def _gather(self, inputs: list[str], _: dict[str, Any]) -> torch.fx.Node:
        table, words = map(self.value, inputs)
        return self.call(functional.embedding, words, table)

    def _globalaveragepool(self, inputs: list[str], _: dict[str, Any]) -> torch.fx.Node:
        return self.call(_mean_of_images, self.value(inputs[0]))

    def _reshape(self, inputs: list[str], _: dict[str, Any]) -> torch.fx.Node:
        shape = [int(extent) for extent in self.arrays[inputs[1]]]
        return self.call(torch.reshape, self.value(inputs[0]), shape)

    def _slice(self, inputs: list[str], _: dict[str, Any]) -> torch.fx.Node:
        first, end, axis = (int(self.arrays[name][0]) for name in inputs[1:])
        return self.call(torch.narrow, self.value(inputs[0]), axis, first, end - first)

    def _softmax(self, inputs: list[str], attributes: dict[str, Any]) -> torch.fx.Node:
        return self.call(torch.softmax, self.value(inputs[0]), attributes["axis"])

    def _transpose(self, inputs: list[str], attributes: dict[str, Any]) -> torch.fx.Node:
        return self.call(torch.permute, self.value(inputs[0]), attributes["perm"])
