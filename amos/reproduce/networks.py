"""The five networks of AMOS's Table 2 as ONNX models, written from their definitions.

Weights are inputs without values: only shapes matter here. Batch normalization is
folded into the convolution before it, as an inference engine does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amos.errors import ToolchainError


class _Graph:
    """An ONNX graph while nodes are added, with channels by tensor; ONNX infers the shapes."""

    def __init__(self, name: str) -> None:
        self._onnx = _onnx()
        self.name = name
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self.channels: dict[str, int] = {}

    def input(self, name: str, *shape: int) -> str:
        kind = self._onnx.TensorProto.FLOAT
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, shape))
        self.channels[name] = shape[1] if len(shape) == 4 else shape[-1]
        return name

    def parameter(self, *shape: int) -> str:
        return self.input(f"parameter{len(self._inputs)}", *shape)

    def add(self, kind: str, *inputs: str, channels: int = 0, **attributes: Any) -> str:
        """Add a node, whose output has the channels of its first input if they are not given."""
        name = f"{kind.lower()}{len(self._nodes)}"
        node = self._onnx.helper.make_node(kind, list(inputs), [name], name=name, **attributes)
        self._nodes.append(node)
        self.channels[name] = channels or (self.channels[inputs[0]] if inputs else 0)
        return name

    def reshape(self, x: str, *shape: int, channels: int = 0) -> str:
        """Reshape; 0 keeps a dimension, -1 is what remains."""
        onnx = self._onnx
        tensor = onnx.helper.make_tensor("shape", onnx.TensorProto.INT64, [len(shape)], shape)
        return self.add("Reshape", x, self.add("Constant", value=tensor), channels=channels)

    def conv(self, x: str, k: int, size: int = 1, stride: int = 1, groups: int = 1) -> str:
        """Add a convolution that keeps the image at stride 1."""
        weight = self.parameter(k, self.channels[x] // groups, size, size)
        return self.add(
            "Conv", x, weight, channels=k,
            kernel_shape=[size] * 2, strides=[stride] * 2, pads=[size // 2] * 4, group=groups,
        )  # fmt: skip

    def pool(self, x: str, kind: str, size: int, stride: int) -> str:
        return self.add(kind, x, kernel_shape=[size] * 2, strides=[stride] * 2, pads=[1] * 4)

    def linear(self, x: str, k: int) -> str:
        return self.add("MatMul", x, self.parameter(self.channels[x], k), channels=k)

    def classify(self, x: str) -> str:
        """Add a mean over the image and a linear layer of 1000 classes."""
        return self.linear(self.add("Flatten", self.add("GlobalAveragePool", x)), 1000)

    def model(self, *outputs: str) -> Any:
        """Build the model, checked by ONNX; raise onnx.checker.ValidationError if it is none."""
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        results = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, results)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        model = self._onnx.shape_inference.infer_shapes(model, strict_mode=True)
        self._onnx.checker.check_model(model)
        return model


def _onnx() -> Any:
    try:
        import onnx
        import onnx.checker
        import onnx.helper
        import onnx.shape_inference
    except ImportError:
        raise ToolchainError("networks are ONNX models: pip install 'amos-mapper[onnx]'") from None
    return onnx


def _shufflenet() -> Any:
    """Build ShuffleNet 1x with 3 groups (Zhang et al., 2018, Table 1)."""
    g = _Graph("ShuffleNet")
    x = g.add("Relu", g.conv(g.input("image", 1, 3, 224, 224), 24, 3, 2))
    x, side = g.pool(x, "MaxPool", 3, 2), 56
    for stage, (width, repeat) in enumerate(((240, 4), (480, 8), (960, 4))):
        for unit in range(repeat):
            first = unit == 0
            bottleneck, out = width // 4, width - g.channels[x] if first else width
            # The first pointwise convolution of all has too few channels for groups.
            y = g.add("Relu", g.conv(x, bottleneck, groups=1 if stage == 0 and first else 3))
            y = g.reshape(y, 0, 3, bottleneck // 3, -1)
            y = g.add("Transpose", y, perm=[0, 2, 1, 3])
            y = g.reshape(y, 0, bottleneck, side, side, channels=bottleneck)
            y = g.conv(y, bottleneck, 3, 2 if first else 1, groups=bottleneck)
            y = g.conv(y, out, groups=3)
            if first:
                short, side = g.pool(x, "AveragePool", 3, 2), side // 2
                x = g.add("Relu", g.add("Concat", short, y, channels=width, axis=1))
            else:
                x = g.add("Relu", g.add("Add", x, y))
    return g.model(g.classify(x))


def _resnet50() -> Any:
    """Build ResNet-50 (He et al., 2016, Table 1)."""
    g = _Graph("ResNet-50")
    x = g.add("Relu", g.conv(g.input("image", 1, 3, 224, 224), 64, 7, 2))
    x = g.pool(x, "MaxPool", 3, 2)
    for stage, repeat in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for unit in range(repeat):
            stride = 2 if stage and not unit else 1
            y = g.add("Relu", g.conv(x, width, 1, stride))
            y = g.add("Relu", g.conv(y, width, 3))
            y = g.conv(y, 4 * width)
            short = g.conv(x, 4 * width, 1, stride) if not unit else x
            x = g.add("Relu", g.add("Add", y, short))
    return g.model(g.classify(x))


def _mobilenet() -> Any:
    """Build MobileNet-V1 (Howard et al., 2017, Table 1)."""
    g = _Graph("MobileNet")
    x = g.add("Relu", g.conv(g.input("image", 1, 3, 224, 224), 32, 3, 2))
    widths = (64, 128, 128, 256, 256, 512, *[512] * 5, 1024, 1024)
    strides = (1, 2, 1, 2, 1, 2, *[1] * 5, 2, 1)
    for width, stride in zip(widths, strides, strict=True):
        x = g.add("Relu", g.conv(x, g.channels[x], 3, stride, groups=g.channels[x]))
        x = g.add("Relu", g.conv(x, width))
    return g.model(g.add("Softmax", g.classify(x)))


def _bert() -> Any:
    """Build BERT, base configuration, 128 tokens (Devlin et al., 2019, section 3)."""
    g = _Graph("Bert")
    width, heads = 768, 12
    x = g.input("embedding", 1, 128, width)

    def affine(x: str, k: int) -> str:
        return g.add("Add", g.linear(x, k), g.parameter(k))

    def normal(x: str) -> str:
        return g.add("LayerNormalization", x, g.parameter(width), g.parameter(width), axis=-1)

    for _ in range(12):
        query, key, value = (
            g.add("Transpose", g.reshape(affine(x, width), 0, 0, heads, -1), perm=[0, 2, 1, 3])
            for _ in range(3)
        )
        score = g.add("MatMul", query, g.add("Transpose", key, perm=[0, 1, 3, 2]))
        weight = g.add("Softmax", g.add("Mul", score, g.parameter(1)), axis=-1)
        y = g.add("Transpose", g.add("MatMul", weight, value), perm=[0, 2, 1, 3])
        y = g.reshape(y, 0, 0, width, channels=width)
        x = normal(g.add("Add", affine(y, width), x))
        y = affine(x, 4 * width)
        y = g.add("Mul", y, g.add("Erf", y))
        x = normal(g.add("Add", affine(y, width), x))
    return g.model(x)


def _mi_lstm() -> Any:
    """Build one step of a multiplicative-integration LSTM, batch 1.

    Wu et al., 2016, equation 4. Each gate has a product with the input and one with the state; a
    linear layer reads the new state.
    """
    g = _Graph("MI-LSTM")
    width = 1024
    x, h, c = (g.input(name, 1, width) for name in ("x", "h", "c"))
    gates = []
    for _ in range(4):
        wx, uh = g.linear(x, width), g.linear(h, width)
        both = g.add("Mul", g.add("Mul", wx, uh), g.parameter(width))
        gates.append(g.add("Add", both, g.add("Add", wx, uh)))
    i, f, o = (g.add("Sigmoid", gate) for gate in gates[:3])
    cell = g.add("Add", g.add("Mul", f, c), g.add("Mul", i, g.add("Tanh", gates[3])))
    state = g.add("Mul", o, g.add("Tanh", cell))
    return g.model(g.linear(state, width), cell)


NETWORKS: dict[str, Callable[[], Any]] = {
    "ShuffleNet": _shufflenet,
    "ResNet-50": _resnet50,
    "MobileNet": _mobilenet,
    "Bert": _bert,
    "MI-LSTM": _mi_lstm,
}


def network(name: str) -> Any:
    """Build the ONNX model of a network of the table, shapes inferred, or raise ToolchainError."""
    return NETWORKS[name]()
