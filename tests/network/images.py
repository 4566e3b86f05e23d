"""Small graphs of images, as passes find them: channels second, weights random."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from amos.network.graph import Constant, Graph, GraphBuilder, Node, Operand


def count_operations(graph: Graph) -> Counter[str]:
    """How often each operator occurs."""
    return Counter(node.operation for node in graph.computing())


class Writer(GraphBuilder):
    """Writes a graph."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def random(self, *shape: int) -> Constant:
        return Constant(self.rng.standard_normal(shape).astype(np.float32))

    def image(self, *shape: int) -> Node:
        return self.add_input("image", shape, "float32")

    def convolution(
        self, x: Operand, features: int, window: int = 1, group: int = 1, **more: Any
    ) -> Operand:
        rank = len(x.shape) - 2
        weight = self.random(features, x.shape[1] // group, *[window] * rank)
        ones, pads = (1,) * rank, (window // 2,) * 2 * rank
        attributes = {"strides": ones, "dilations": ones, "pads": pads, "group": group} | more
        return self.emit("Conv", x, weight, channels_last=False, **attributes)

    def transposed(self, x: Operand, weight: Operand, stride: int, group: int = 1) -> Operand:
        ones = (1,) * (len(x.shape) - 2)
        return self.emit(
            "ConvTranspose",
            x,
            weight,
            strides=(stride,) * len(ones),
            dilations=ones,
            pads=(0,) * 2 * len(ones),
            output_padding=(0,) * len(ones),
            group=group,
            channels_last=False,
        )

    def biased(self, x: Operand) -> Operand:
        return self.emit("Add", x, self.random(x.shape[1], *[1] * (len(x.shape) - 2)))

    def pooled(self, x: Operand, kind: str = "MaxPool") -> Operand:
        twos = (2,) * (len(x.shape) - 2)
        more = {"count_include_pad": False} if kind == "AveragePool" else {}
        attributes = {"dilations": (1,) * len(twos), "pads": (0,) * 2 * len(twos)} | more
        return self.emit(
            kind, x, kernel_shape=twos, strides=twos, channels_last=False, **attributes
        )

    def mean(self, x: Operand, *, keepdims: bool = True) -> Operand:
        return self.emit("ReduceMean", x, axes=tuple(range(2, len(x.shape))), keepdims=keepdims)

    def sliced(self, x: Operand, axis: int, begin: int, size: int) -> Operand:
        rank = len(x.shape)
        return self.emit(
            "Slice",
            x,
            starts=tuple(begin if n == axis else 0 for n in range(rank)),
            steps=(1,) * rank,
            sizes=(*x.shape[:axis], size, *x.shape[axis + 1 :]),
        )

    def upsampled(self, x: Operand) -> Operand:
        for axis in range(2, len(x.shape)):
            twice = Constant(np.arange(2 * x.shape[axis]) // 2)
            x = self.emit("Gather", x, twice, axis=axis)
        return x

    def classified(self, x: Operand) -> Graph:
        """Global pooling, flattened, and a matrix product."""
        x = self.emit("Reshape", self.mean(x), shape=x.shape[:2])
        return self.graph(self.emit("MatMul", x, self.random(x.shape[1], 3)))

    def graph(self, *outputs: Operand) -> Graph:
        return self.finish(outputs)
