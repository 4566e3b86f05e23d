"""ONNX's operators over integers, as the pairs of quantize and dequantize they stand for.

``QLinearConv`` and its kind (ONNX's own, and those of ``com.microsoft`` that onnxruntime's
quantizer writes) say in one node what other models say as DequantizeLinear, a float operator
and QuantizeLinear. What reads the graph has to know the pairs only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amos.errors import NetworkError


@dataclass(frozen=True)
class _Quantized:
    """Names of integers, of their scale and of their zero point; that may be ``""``."""

    integers: str
    scale: str
    zero: str


@dataclass(frozen=True)
class _Form:
    """What a node stands for.

    Attributes:
        operator: the float operator.
        sources: what it reads.
        scale: name of the result's scale; ``""`` if the result is of floats.
        zero: name of its zero point.
        bias: name of an int32 bias in units of the sources' scales; ``""`` without one.
    """

    operator: str
    sources: tuple[_Quantized, ...]
    scale: str
    zero: str
    bias: str = ""


def _triples(inputs: Sequence[str]) -> tuple[_Quantized, ...]:
    return tuple(_Quantized(*inputs[n : n + 3]) for n in range(0, len(inputs), 3))


def _convolution(inputs: list[str]) -> _Form:
    return _Form("Conv", _triples(inputs[:6]), inputs[6], inputs[7], "".join(inputs[8:9]))


def _gemm(inputs: list[str]) -> _Form:
    inputs = [*inputs, "", "", ""][:9]
    return _Form("Gemm", _triples(inputs[:6]), inputs[7], inputs[8], inputs[6])


def _concatenation(inputs: list[str]) -> _Form:
    return _Form("Concat", _triples(inputs[2:]), inputs[0], inputs[1])


def _plain(operator: str, sources: int) -> Callable[[list[str]], _Form]:
    """The sources, each with scale and zero point, then those of the result."""

    def form(inputs: list[str]) -> _Form:
        scale, zero = [*inputs[3 * sources :], ""][:2]
        return _Form(operator, _triples(inputs[: 3 * sources]), scale, zero)

    return form


_FORMS: dict[str, Callable[[list[str]], _Form]] = {
    "QLinearConv": _convolution,
    "QLinearMatMul": _plain("MatMul", 2),
    "QGemm": _gemm,
    "QLinearAdd": _plain("Add", 2),
    "QLinearMul": _plain("Mul", 2),
    "QLinearConcat": _concatenation,
    "QLinearSigmoid": _plain("Sigmoid", 1),
    "QLinearLeakyRelu": _plain("LeakyRelu", 1),
    "QLinearAveragePool": _plain("AveragePool", 1),
    "QLinearGlobalAveragePool": _plain("GlobalAveragePool", 1),
}
#: Names of operators over integers that no other operator begins with.
_FAMILIES = ("QLinear", "QGemm", "QAttention")


def with_pairs(model: Any, name: str) -> Any:
    """The model without operators over integers; itself if it has none.

    Args:
        model: an ``onnx.ModelProto``.
        name: what to call it in messages.

    Raises:
        NetworkError: an operator has no such form here.
    """
    if not any(node.op_type.startswith(_FAMILIES) for node in model.graph.node):
        return model
    import onnx

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    writer = _Writer(onnx, changed.graph, name)
    nodes = [each for node in model.graph.node for each in writer.nodes_of(node)]
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    return changed


class _Writer:
    """Writes the nodes that stand for others."""

    def __init__(self, onnx: Any, graph: Any, name: str) -> None:
        self.onnx, self.graph, self.name = onnx, graph, name
        to_array = onnx.numpy_helper.to_array
        self.constants = {each.name: to_array(each) for each in graph.initializer}

    def nodes_of(self, node: Any) -> list[Any]:
        if not node.op_type.startswith(_FAMILIES):
            return [node]
        if node.op_type not in _FORMS or _flag(node, "channels_last"):
            raise NetworkError(
                f"model {self.name!r}: {node.op_type} ({node.name!r}) is not supported; "
                "static quantization with QuantFormat.QDQ is"
            )
        form = _FORMS[node.op_type](list(node.input))
        out, make = node.output[0], self.onnx.helper.make_node
        features = 1 if _flag(node, "transB") == 0 else 0
        nodes, reads = [], []
        for position, source in enumerate(form.sources):
            reads.append(f"{out}/source{position}")
            # Weights have a scale for each feature: of a convolution first, of a matrix last.
            axis = 0 if form.operator == "Conv" else features
            inputs = [name for name in (source.integers, source.scale, source.zero) if name]
            nodes.append(make("DequantizeLinear", inputs, [reads[-1]], axis=axis))
        if form.bias:
            reads.append(f"{out}/bias")
            inputs = [form.bias, self.bias_scale(form, node)]
            nodes.append(make("DequantizeLinear", inputs, [reads[-1]], axis=0))
        result = f"{out}/float" if form.scale else out
        kept = [each for each in node.attribute if each.name != "channels_last"]
        floats = make(form.operator, reads, [result], name=node.name)
        floats.attribute.extend(kept)
        nodes.append(floats)
        if form.scale:
            inputs = [name for name in (result, form.scale, form.zero) if name]
            nodes.append(make("QuantizeLinear", inputs, [out]))
        return nodes

    def bias_scale(self, form: _Form, node: Any) -> str:
        """Name of a new constant: the product of the scales of data and weights, and of alpha."""
        scales = [self.constants.get(source.scale) for source in form.sources]
        if any(scale is None for scale in scales):
            raise NetworkError(
                f"model {self.name!r}: scales of {node.op_type} ({node.name!r}) are no constants"
            )
        data, weight = (np.asarray(scale, np.float32) for scale in scales)
        alpha = next((each.f for each in node.attribute if each.name == "alpha"), 1.0)
        product = np.asarray(data * weight * np.float32(alpha), np.float32)
        if product.size == 1:
            product = product.reshape(())
        name = f"{node.output[0]}/scale"
        self.graph.initializer.append(self.onnx.numpy_helper.from_array(product, name))
        return name


def _flag(node: Any, name: str) -> int:
    return next((each.i for each in node.attribute if each.name == name), 0)
