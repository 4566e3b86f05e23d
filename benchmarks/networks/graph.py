"""An ONNX model while nodes are added, with random weights and sane statistics.

A definition is a function of a :class:`Graph`. It runs twice: first with batch
normalizations that compute mean and variance of what they are given, on random images,
then with these as constants. So activations stay of order 1 in a network of any depth.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Definition", "Graph", "build", "feeds"]

OPSET = 17
#: Images whose statistics batch normalizations get.
SAMPLES = 8
_EPSILON = 1e-5

Statistics = dict[str, tuple[np.ndarray, np.ndarray]]
Definition = Callable[["Graph"], str]


class Graph:
    """Nodes, weights and inputs of a model.

    Attributes:
        batch: extent of the first dimension of every input.
        statistics: mean and variance by normalization; ``None`` while they are to be found.
        channels: of each tensor by name: of an image, or the width of rows.
    """

    def __init__(self, batch: int, statistics: Statistics | None) -> None:
        self.batch, self.statistics = batch, statistics
        self.generator = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[Any] = []
        self.normalized: list[str] = []
        self.channels: dict[str, int] = {}

    def image(self, *shape: int) -> str:
        """A float input of each sample's shape."""
        return self._input("image", TensorProto.FLOAT, shape, shape[0])

    def rows(self, name: str, *shape: int) -> str:
        """A float input whose last dimension is the width."""
        return self._input(name, TensorProto.FLOAT, shape, shape[-1])

    def tokens(self, count: int) -> str:
        """An input of numbers of words."""
        return self._input("tokens", TensorProto.INT64, (count,), 0)

    def _input(self, name: str, kind: int, shape: tuple[int, ...], channels: int) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, (self.batch, *shape)))
        self.channels[name] = channels
        return name

    def constant(self, array: np.ndarray) -> str:
        """An initializer."""
        name = f"constant{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        self.channels[name] = array.shape[-1] if array.ndim else 0
        return name

    def random(self, *shape: int, deviation: float) -> str:
        """Normally distributed weights."""
        values = self.generator.standard_normal(shape, dtype=np.float32)
        return self.constant(values * np.float32(deviation))

    def uniform(self, *shape: int, low: float, high: float) -> str:
        """Equally distributed weights."""
        return self.constant(self.generator.uniform(low, high, shape).astype(np.float32))

    def add(self, kind: str, *inputs: str, channels: int = 0, **attributes: Any) -> str:
        """A node, whose output has the channels of its first input if they are not given."""
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        self.channels[name] = channels or self.channels[inputs[0]]
        return name

    def conv(
        self,
        x: str,
        k: int,
        window: int | tuple[int, ...] = 1,
        stride: int = 1,
        groups: int = 1,
        padding: int | tuple[int, ...] | None = None,
        bias: bool = False,
        dimensions: int = 2,
    ) -> str:
        """A convolution that keeps the image at stride 1, if no padding is given."""
        sizes = (window,) * dimensions if isinstance(window, int) else window
        before = tuple(n // 2 for n in sizes) if padding is None else padding
        pads = [before] * dimensions if isinstance(before, int) else list(before)
        c = self.channels[x] // groups
        deviation = sqrt(2 / (c * prod(sizes)))
        inputs = [x, self.random(k, c, *sizes, deviation=deviation)]
        if bias:
            inputs.append(self.random(k, deviation=0.1))
        return self.add(
            "Conv", *inputs, channels=k, kernel_shape=sizes, strides=[stride] * dimensions,
            pads=pads * 2, group=groups,
        )  # fmt: skip

    def deconv(self, x: str, k: int, window: int, stride: int, padding: int) -> str:
        """A transposed convolution."""
        c = self.channels[x]
        deviation = sqrt(2 * stride**2 / (c * window**2))
        weight = self.random(c, k, window, window, deviation=deviation)
        return self.add(
            "ConvTranspose", x, weight, channels=k, kernel_shape=[window] * 2,
            strides=[stride] * 2, pads=[padding] * 4,
        )  # fmt: skip

    def normalize(self, x: str, dimensions: int = 2) -> str:
        """A batch normalization."""
        c, key = self.channels[x], f"normalization{len(self.normalized)}"
        scale = self.uniform(c, low=0.5, high=1.5)
        shift = self.random(c, deviation=0.2)
        if self.statistics is not None:
            self.normalized.append(key)
            found = [self.constant(values) for values in self.statistics[key]]
            return self.add("BatchNormalization", x, scale, shift, *found, epsilon=_EPSILON)
        axes = [0, *range(2, 2 + dimensions)]
        mean = self.add("ReduceMean", x, axes=axes, keepdims=1)
        centred = self.add("Sub", x, mean)
        variance = self.add("ReduceMean", self.add("Mul", centred, centred), axes=axes, keepdims=1)
        self.normalized += [mean, variance]
        shape = self.constant(np.array([1, c, *[1] * dimensions]))
        small = self.constant(np.float32(_EPSILON))
        unit = self.add("Div", centred, self.add("Sqrt", self.add("Add", variance, small)))
        scaled = self.add("Mul", unit, self.add("Reshape", scale, shape))
        return self.add("Add", scaled, self.add("Reshape", shift, shape))

    def pool(self, x: str, kind: str, window: int, stride: int, padding: int = 0) -> str:
        """``MaxPool`` or ``AveragePool`` over square windows."""
        return self.add(
            kind, x, kernel_shape=[window] * 2, strides=[stride] * 2, pads=[padding] * 4
        )

    def linear(self, x: str, k: int, deviation: float | None = None) -> str:
        """A product with weights along the last dimension, and a bias."""
        c = self.channels[x]
        weight = self.random(c, k, deviation=deviation or sqrt(1 / c))
        product = self.add("MatMul", x, weight, channels=k)
        return self.add("Add", product, self.random(k, deviation=0.02), channels=k)

    def classify(self, x: str, classes: int = 1000) -> str:
        """The mean of each image, then a linear layer."""
        return self.gemm(self.add("Flatten", self.add("GlobalAveragePool", x)), classes)

    def gemm(self, x: str, k: int) -> str:
        """A fully connected layer, its weights as PyTorch stores them."""
        c = self.channels[x]
        weight, bias = self.random(k, c, deviation=sqrt(2 / c)), self.random(k, deviation=0.1)
        return self.add("Gemm", x, weight, bias, channels=k, transB=1)

    def reshape(self, x: str, *shape: int, channels: int = 0) -> str:
        """Another shape; 0 keeps a dimension, -1 is what remains."""
        return self.add("Reshape", x, self.constant(np.array(shape)), channels=channels)

    def model(self, name: str, *outputs: str) -> onnx.ModelProto:
        """The finished model, checked, with all shapes."""
        results = [helper.make_tensor_value_info(out, TensorProto.FLOAT, None) for out in outputs]
        graph = helper.make_graph(self.nodes, name, self.inputs, results, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = 8
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def build(name: str, define: Definition, batch: int) -> onnx.ModelProto:
    """The model of a definition, its normalizations with statistics of random samples."""
    twin = Graph(SAMPLES, None)
    twin_output = define(twin)
    statistics: Statistics = {}
    if twin.normalized:
        import onnxruntime

        model = twin.model(name, twin_output, *twin.normalized)
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        values = session.run(twin.normalized, feeds(model, seed=1))
        for number in range(0, len(values), 2):
            mean, variance = (value.reshape(-1) for value in values[number : number + 2])
            statistics[f"normalization{number // 2}"] = mean, variance
    graph = Graph(batch, statistics)
    return graph.model(name, define(graph))


def feeds(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Random inputs of a model: normally distributed floats, equally distributed words."""
    # Not the generator of the weights: an input equal to a row of them is no random input.
    generator, made = np.random.default_rng((1, seed)), {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = tuple(size.dim_value for size in kind.shape.dim)
        if kind.elem_type == TensorProto.INT64:
            made[value.name] = generator.integers(0, 1000, shape)
        else:
            made[value.name] = generator.standard_normal(shape, dtype=np.float32)
    return made
