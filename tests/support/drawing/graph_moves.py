"""Operators of drawn ONNX graphs that move elements."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import helper

from tests.support.drawing.graph_values import GraphWriter, Value

__all__ = ["GraphMoves"]


class GraphMoves(GraphWriter):
    """Each method appends an operator, if it fits a tensor that is there."""

    def _float(self, *ranks: int) -> Value | None:
        wide = ("float32", "float32", "float64", "float16")
        return self.pick(*ranks, kinds=wide if self.rng.random() < 0.2 else ("float32",))

    def _reshape(self) -> None:
        if not (x := self.pick(kinds=("float32", "float32", "int64", "bool"))) or 0 in x.shape:
            return
        remaining, shape = prod(x.shape), list[int]()
        while remaining > 1 and len(shape) < 3:
            step = int(self.rng.choice([n for n in range(1, remaining + 1) if remaining % n == 0]))
            shape.append(step)
            remaining //= step
        shape = [*shape, remaining] if remaining > 1 or not shape else shape
        stated = [*shape]
        if self.rng.random() < 0.5:
            stated[int(self.rng.integers(len(stated)))] = -1
        self.node("Reshape", [x.name, self.constant(stated, "int64")], shape, x.kind)

    def _transpose(self) -> None:
        if x := self._float(2, 3, 4):
            order = [int(n) for n in self.rng.permutation(len(x.shape))]
            self.node("Transpose", [x.name], [x.shape[n] for n in order], x.kind, perm=order)

    def _concat(self) -> None:
        if not (x := self._float(1, 2, 3, 4)):
            return
        axis = int(self.rng.integers(len(x.shape)))
        mates = [
            y for y in self.values
            if y.kind == x.kind and len(y.shape) == len(x.shape)
            and all(a == b for n, (a, b) in enumerate(zip(x.shape, y.shape, strict=True))
                    if n != axis)
        ]  # fmt: skip
        own = [mates[int(self.rng.integers(len(mates)))] for _ in range(int(self.rng.integers(1,
               4)))]  # fmt: skip
        shape = [*x.shape]
        shape[axis] += sum(y.shape[axis] for y in own)
        if prod(shape) <= 40_000:
            names = [x.name, *(y.name for y in own)]
            self.node("Concat", names, shape, x.kind, axis=axis - len(shape))

    def _split(self) -> None:
        x = self._float(1, 2, 3, 4)
        if not x or max(x.shape) < 2:
            return
        axis = int(np.argmax(x.shape))
        first = int(self.rng.integers(1, x.shape[axis]))
        sizes = [first, x.shape[axis] - first]
        parts = []
        for size in sizes:
            shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            parts.append(Value(self._name(), shape, x.kind))
        inputs = [x.name, self.constant(sizes, "int64")]
        self.nodes.append(helper.make_node("Split", inputs, [y.name for y in parts], axis=axis))
        self.values.extend(parts if self.rng.random() < 0.8 else parts[:1])

    def _slice(self) -> None:
        if not (x := self._float(1, 2, 3, 4)) or 0 in x.shape:
            return
        axis = int(self.rng.integers(len(x.shape)))
        size, step = x.shape[axis], int(self.rng.choice([1, 1, 2, -1, -2, 3]))
        a, b = (int(self.rng.integers(-size - 1, size + 2)) for _ in range(2))
        count = len(range(*slice(a, b, step).indices(size)))
        if b == -size - 1 and step > 0 or (count == 0 and self.rng.random() < 0.95):
            return
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        more = [self.constant([n], "int64") for n in (a, b, axis, step)]
        self.node("Slice", [x.name, *more], shape, x.kind)

    def _padded(self) -> None:
        if not (x := self.pick(2, 3, 4)) or 0 in x.shape or prod(x.shape) > 8000:
            return
        mode = str(self.rng.choice(["constant", "reflect", "edge"]))
        most = min(3, min(x.shape)) if mode == "reflect" else 3
        pads = [int(self.rng.integers(0, most)) for _ in range(2 * len(x.shape))]
        ends = zip(x.shape, pads, pads[len(x.shape) :], strict=False)
        shape = [n + a + b for n, a, b in ends]
        inputs = [x.name, self.constant(pads, "int64")]
        if mode == "constant" and self.rng.random() < 0.5:
            inputs.append(self.constant(1.5))
        self.node("Pad", inputs, shape, x.kind, mode=mode)

    def _squeezed(self) -> None:
        if not (x := self._float()):
            return
        ones = [n for n, size in enumerate(x.shape) if size == 1]
        if ones and self.rng.random() < 0.5:
            shape = [s for n, s in enumerate(x.shape) if n != ones[0]]
            self.node("Squeeze", [x.name, self.constant([ones[0]], "int64")], shape, x.kind)
        elif len(x.shape) < 4:
            at = int(self.rng.integers(len(x.shape) + 1))
            shape = [*x.shape[:at], 1, *x.shape[at:]]
            self.node("Unsqueeze", [x.name, self.constant([at], "int64")], shape, x.kind)

    def _gather(self) -> None:
        if not (x := self._float(1, 2, 3)) or 0 in x.shape:
            return
        axis = int(self.rng.integers(len(x.shape)))
        shape = [[], [1], [3], [2, 2]][int(self.rng.integers(4))]
        size = x.shape[axis]
        where = self._inner.integers(-size, size, shape)
        inputs = [x.name, self.constant(where, "int64")]
        result = (*x.shape[:axis], *shape, *x.shape[axis + 1 :])
        if prod(result) <= 40_000:
            self.node("Gather", inputs, result, x.kind, axis=axis)

    def _expand(self) -> None:
        if not (x := self._float()):
            return
        shape = [int(self.rng.choice([2, 3])) if n == 1 else n for n in x.shape]
        if len(shape) < 4 and self.rng.random() < 0.5:
            shape = [2, *shape]
        if prod(shape) <= 40_000:
            self.node("Expand", [x.name, self.constant(shape, "int64")], shape, x.kind)

    def _resized(self) -> None:
        if not (x := self.pick(4)) or 0 in x.shape or prod(x.shape) > 8000:
            return
        mode = str(self.rng.choice(["nearest", "linear"]))
        scales = [1.0, 1.0, float(self.rng.choice([1, 2, 3])), float(self.rng.choice([1, 2]))]
        shape = [int(n * s) for n, s in zip(x.shape, scales, strict=True)]
        transform = str(self.rng.choice(["asymmetric", "half_pixel", "align_corners"]))
        self.node("Resize", [x.name, "", self.constant(scales)], shape, x.kind, mode=mode,
                  coordinate_transformation_mode=transform, nearest_mode="floor")  # fmt: skip
