"""Small ONNX models, built node by node, and what they compute, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from amos.errors import NetworkError
from amos.network import CompiledNetwork
from amos.network.attention import ChainSite, match_attention
from amos.network.compilation import _Builder
from amos.network.external.linking import link_trial
from amos.network.frontend import close_shapes, title_of
from amos.network.graph import Graph
from amos.network.network import Network, network_of
from amos.network.reading.model import DTYPES, read_model
from amos.network.reading.validity import inline_functions, naming
from amos.network.sessions import Reference, onnxruntime_reference
from amos.network.task_records import rank_records

__all__ = [
    "Builder",
    "WholeNetwork",
    "compile_whole",
    "load_whole",
    "normal_inputs",
    "read_whole",
    "reference_result",
    "residual_network",
    "sites_of",
]


class Builder:
    """Writes a graph: each method adds a node and returns the name of its result."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[Any] = []

    def input(self, name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, values: Any, kind: str = "float32") -> str:
        name = f"constant{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def random(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1))

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def convolution(self, x: str, weight: Sequence[int], stride: int = 1, **more: Any) -> str:
        taps = len(weight) - 2
        pads = more.pop("pads", [extent // 2 for extent in weight[2:]] * 2)
        return self.node(
            "Conv", x, self.random(*weight), strides=[stride] * taps, pads=pads, **more
        )

    def norm(self, x: str, channels: int) -> str:
        scale, shift, mean = (self.rng.standard_normal(channels) * 0.3 + s for s in (1, 0, 0))
        variance = 1 + self.rng.random(channels)
        parameters = [self.constant(value) for value in (scale, shift, mean, variance)]
        return self.node("BatchNormalization", x, *parameters)

    def model(self, *outputs: str) -> Any:
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "small", self.inputs, values, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        model = shape_inference.infer_shapes(model)
        checker.check_model(model)
        return model


def residual_network() -> Any:
    """Convolutions with batch norms, one of them beside a sum; pooling, a matrix product."""
    b = Builder()
    x = b.node("Relu", b.norm(b.convolution(b.input("image", (1, 3, 16, 16)), (8, 3, 5, 5), 2), 8))
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = b.node("Relu", b.norm(b.convolution(x, (16, 8, 3, 3), 2), 16))
    y = b.norm(b.convolution(y, (16, 16, 3, 3)), 16)
    x = b.node("Relu", b.node("Add", y, b.norm(b.convolution(x, (16, 8, 1, 1), 2), 16)))
    y = b.node("Relu", b.norm(b.convolution(x, (16, 16, 3, 3)), 16))
    y = b.norm(b.convolution(y, (16, 16, 3, 3)), 16)
    x = b.node("Relu", b.node("Add", y, x))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    return b.model(b.node("Gemm", x, b.random(10, 16), b.random(10), transB=1))


@dataclass(frozen=True, eq=False)
class WholeNetwork(Network):
    """A model that AMOS takes as a whole, and onnxruntime beside it."""

    reference: Reference | None = None


def read_whole(model: Any, shapes: Mapping[str, Sequence[int]]) -> Graph:
    """Read a model without external nodes, or raise the error that says why one is external."""
    reading = read_model(model, shapes)
    graph = reading.model.graph
    for name, dtype in reading.inputs.items():
        if dtype not in DTYPES:
            raise NetworkError(f"input {name!r}: dtype {dtype} is not supported")
    for position, why in reading.reasons.items():
        operation = graph.node[position].op_type
        raise NetworkError(why if why.startswith(operation) else f"{operation}: {why}")
    return reading.slice([*reading.inputs], [port.name for port in graph.output])


def load_whole(model: Any, *, shapes: Any = None, name: str | None = None) -> WholeNetwork:
    """A model that AMOS takes as a whole, or the error that says why it does not."""
    title = name or title_of(model)
    source, closed = close_shapes(model, shapes)
    with naming(title):
        network = network_of(read_whole(inline_functions(source, title), closed), title)
    return WholeNetwork(network.name, network.graph, network.grouping, onnxruntime_reference(model))


def compile_whole(
    network: Network, *, records: Any = None, verify: bool = True, measure: bool = False, **_: Any
) -> CompiledNetwork:
    """Compile a network that AMOS runs as a whole, whatever fails and whoever is faster."""
    region = _Builder(rank_records(records), verify, measure).region(network, "main")
    compiled = replace(link_trial(region), reference=getattr(network, "reference", None))
    return replace(compiled, checks=(*compiled.checks, *compiled.check())) if verify else compiled


def normal_inputs(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Draw inputs of a normal distribution by name."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype("f") for name, shape in shapes.items()}


def sites_of(network: Network) -> list[ChainSite]:
    """List the places of attention in a network."""
    return [*match_attention(network.graph, network.grouping)]


def reference_result(model: Any, **inputs: np.ndarray) -> np.ndarray:
    """Compute the first result of a model with the reference of ONNX."""
    result: np.ndarray = ReferenceEvaluator(model).run(None, inputs)[0]
    return result
