"""The five networks of AMOS's Table 2 as ONNX models, written from their definitions.

Weights are inputs without values: only shapes matter here. Batch normalization is
folded into the convolution before it, as an inference engine does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amos.errors import ToolchainError

__all__ = ["NETWORKS", "network"]


class _Graph:
    """An ONNX graph while nodes are added; tensors are known by name and shape."""

    def __init__(self, name: str) -> None:
        self._onnx = _onnx()
        self.name = name
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self.shapes: dict[str, tuple[int, ...]] = {}

    def input(self, name: str, *shape: int) -> str:
        """Declare an input."""
        kind = self._onnx.TensorProto.FLOAT
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, shape))
        self.shapes[name] = shape
        return name

    def add(self, kind: str, shape: tuple[int, ...], *inputs: str, **attributes: Any) -> str:
        """Add a node of one output; returns the output's name."""
        name = f"{kind.lower()}{len(self._nodes)}"
        self._nodes.append(
            self._onnx.helper.make_node(kind, list(inputs), [name], name=name, **attributes)
        )
        self.shapes[name] = shape
        return name

    def conv(self, x: str, k: int, size: int = 1, stride: int = 1, groups: int = 1) -> str:
        """A convolution that keeps the image at stride 1."""
        n, c, h, w = self.shapes[x]
        weight = self.input(f"weight{len(self._nodes)}", k, c // groups, size, size)
        pad = size // 2
        out = (n, k, (h + 2 * pad - size) // stride + 1, (w + 2 * pad - size) // stride + 1)
        return self.add(
            "Conv", out, x, weight,
            kernel_shape=[size, size], strides=[stride] * 2, pads=[pad] * 4, group=groups,
        )  # fmt: skip

    def pool(self, x: str, kind: str, size: int, stride: int) -> str:
        """Maximum or average over windows."""
        n, c, h, w = self.shapes[x]
        out = (n, c, (h + 2 - size) // stride + 1, (w + 2 - size) // stride + 1)
        return self.add(kind, out, x, kernel_shape=[size] * 2, strides=[stride] * 2, pads=[1] * 4)

    def same(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node whose output has the shape of its first input."""
        return self.add(kind, self.shapes[inputs[0]], *inputs, **attributes)

    def linear(self, x: str, k: int) -> str:
        """A matrix product with weights."""
        *rest, c = self.shapes[x]
        weight = self.input(f"weight{len(self._nodes)}", c, k)
        return self.add("MatMul", (*rest, k), x, weight)

    def classify(self, x: str, classes: int = 1000) -> str:
        """Mean over the image, then a linear layer."""
        n, c, _, _ = self.shapes[x]
        mean = self.add("GlobalAveragePool", (n, c, 1, 1), x)
        flat = self.add("Flatten", (n, c), mean)
        return self.linear(flat, classes)

    def model(self, *outputs: str) -> Any:
        """The finished model, checked by ONNX.

        Raises:
            onnx.checker.ValidationError: it is none.
        """
        kind = self._onnx.TensorProto.FLOAT
        made = [
            self._onnx.helper.make_tensor_value_info(name, kind, self.shapes[name])
            for name in outputs
        ]
        graph = self._onnx.helper.make_graph(self._nodes, self.name, self._inputs, made)
        versions = [self._onnx.helper.make_opsetid("", 17)]
        model = self._onnx.helper.make_model(graph, opset_imports=versions)
        model.ir_version = 8
        self._onnx.checker.check_model(model)
        return self._onnx.shape_inference.infer_shapes(model, strict_mode=True)


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
    """ShuffleNet 1x with 3 groups (Zhang et al., 2018, Table 1)."""
    g = _Graph("ShuffleNet")
    x = g.same("Relu", g.conv(g.input("image", 1, 3, 224, 224), 24, 3, 2))
    x = g.pool(x, "MaxPool", 3, 2)
    for stage, (width, repeat) in enumerate(((240, 4), (480, 8), (960, 4))):
        for unit in range(repeat):
            first = unit == 0
            inside, out = width // 4, width - g.shapes[x][1] if first else width
            # The first pointwise convolution of all has too few channels for groups.
            groups = 1 if stage == 0 and first else 3
            y = g.same("Relu", g.conv(x, inside, groups=groups))
            n, c, h, w = g.shapes[y]
            shape = _constant(g, [n, 3, c // 3, h, w])
            y = g.add("Reshape", (n, 3, c // 3, h, w), y, shape)
            y = g.add("Transpose", (n, c // 3, 3, h, w), y, perm=[0, 2, 1, 3, 4])
            y = g.add("Reshape", (n, c, h, w), y, _constant(g, [n, c, h, w]))
            y = g.conv(y, inside, 3, 2 if first else 1, groups=inside)
            y = g.conv(y, out, groups=3)
            if first:
                short = g.pool(x, "AveragePool", 3, 2)
                n, _, h, w = g.shapes[y]
                x = g.same("Relu", g.add("Concat", (n, width, h, w), short, y, axis=1))
            else:
                x = g.same("Relu", g.same("Add", x, y))
    return g.model(g.classify(x))


def _constant(g: _Graph, values: list[int]) -> str:
    onnx = _onnx()
    tensor = onnx.helper.make_tensor("shape", onnx.TensorProto.INT64, [len(values)], values)
    return g.add("Constant", (len(values),), value=tensor)


def _resnet50() -> Any:
    """ResNet-50 (He et al., 2016, Table 1)."""
    g = _Graph("ResNet-50")
    x = g.same("Relu", g.conv(g.input("image", 1, 3, 224, 224), 64, 7, 2))
    x = g.pool(x, "MaxPool", 3, 2)
    for stage, repeat in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for unit in range(repeat):
            stride = 2 if stage and not unit else 1
            y = g.same("Relu", g.conv(x, width, 1, stride))
            y = g.same("Relu", g.conv(y, width, 3))
            y = g.conv(y, 4 * width)
            short = g.conv(x, 4 * width, 1, stride) if not unit else x
            x = g.same("Relu", g.same("Add", y, short))
    return g.model(g.classify(x))


def _mobilenet() -> Any:
    """MobileNet-V1 (Howard et al., 2017, Table 1)."""
    g = _Graph("MobileNet")
    x = g.same("Relu", g.conv(g.input("image", 1, 3, 224, 224), 32, 3, 2))
    widths = (64, 128, 128, 256, 256, 512, *[512] * 5, 1024, 1024)
    strides = (1, 2, 1, 2, 1, 2, *[1] * 5, 2, 1)
    for width, stride in zip(widths, strides, strict=True):
        x = g.same("Relu", g.conv(x, g.shapes[x][1], 3, stride, groups=g.shapes[x][1]))
        x = g.same("Relu", g.conv(x, width))
    return g.model(g.same("Softmax", g.classify(x)))


def _bert() -> Any:
    """BERT, base configuration, 128 tokens (Devlin et al., 2019, section 3)."""
    g = _Graph("Bert")
    tokens, width, heads = 128, 768, 12
    x = g.input("embedding", 1, tokens, width)
    for _ in range(12):
        query, key, value = (_heads(g, _biased(g, x, width), heads) for _ in range(3))
        turned = g.add("Transpose", (1, heads, width // heads, tokens), key, perm=[0, 1, 3, 2])
        score = g.add("MatMul", (1, heads, tokens, tokens), query, turned)
        score = g.same("Mul", score, g.input(f"scale{len(g.shapes)}", 1))
        weight = g.same("Softmax", score, axis=-1)
        y = g.add("MatMul", (1, heads, tokens, width // heads), weight, value)
        y = g.add("Transpose", (1, tokens, heads, width // heads), y, perm=[0, 2, 1, 3])
        y = g.add("Reshape", (1, tokens, width), y, _constant(g, [1, tokens, width]))
        x = _normal(g, g.same("Add", _biased(g, y, width), x))
        y = _biased(g, x, 4 * width)
        y = g.same("Mul", y, g.same("Erf", y))
        x = _normal(g, g.same("Add", _biased(g, y, width), x))
    return g.model(x)


def _biased(g: _Graph, x: str, k: int) -> str:
    return g.same("Add", g.linear(x, k), g.input(f"bias{len(g.shapes)}", k))


def _heads(g: _Graph, x: str, heads: int) -> str:
    n, tokens, width = g.shapes[x]
    shape = (n, tokens, heads, width // heads)
    x = g.add("Reshape", shape, x, _constant(g, list(shape)))
    return g.add("Transpose", (n, heads, tokens, width // heads), x, perm=[0, 2, 1, 3])


def _normal(g: _Graph, x: str) -> str:
    width = g.shapes[x][-1]
    scale, bias = (g.input(f"norm{i}{len(g.shapes)}", width) for i in range(2))
    return g.same("LayerNormalization", x, scale, bias, axis=-1)


def _mi_lstm() -> Any:
    """One step of a multiplicative-integration LSTM (Wu et al., 2016, equation 4), batch 1.

    Each gate has a product with the input and one with the state; a linear layer
    reads the new state.
    """
    g = _Graph("MI-LSTM")
    width = 1024
    x, h, c = (g.input(name, 1, width) for name in ("x", "h", "c"))
    gates = []
    for _ in range(4):
        wx, uh = g.linear(x, width), g.linear(h, width)
        both = g.same("Mul", g.same("Mul", wx, uh), g.input(f"alpha{len(g.shapes)}", width))
        gates.append(g.same("Add", both, g.same("Add", wx, uh)))
    i, f, o = (g.same("Sigmoid", gate) for gate in gates[:3])
    cell = g.same("Add", g.same("Mul", f, c), g.same("Mul", i, g.same("Tanh", gates[3])))
    state = g.same("Mul", o, g.same("Tanh", cell))
    return g.model(g.linear(state, width), cell)


NETWORKS: dict[str, Callable[[], Any]] = {
    "ShuffleNet": _shufflenet,
    "ResNet-50": _resnet50,
    "MobileNet": _mobilenet,
    "Bert": _bert,
    "MI-LSTM": _mi_lstm,
}


def network(name: str) -> Any:
    """The ONNX model of a network of the table, shapes inferred.

    Raises:
        ToolchainError: onnx is not installed.
    """
    return NETWORKS[name]()
