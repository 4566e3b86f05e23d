"""ONNX graphs with branches, several results, many dtypes, and bodies of Ifs and Loops."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.support.drawing.graph_moves import GraphMoves
from tests.support.drawing.graph_values import SIZES, Value

__all__ = ["DrawnGraph"]

_UNARY = (
    "Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "HardSwish", "HardSigmoid", "Softplus", "Erf",
    "Neg", "Abs", "Identity", "Softsign", "Gelu", "Mish", "Selu", "Sin", "Reciprocal", "Celu",
)  # fmt: skip
_BINARY = ("Add", "Sub", "Mul", "Max", "Min", "PRelu", "Mean", "Sum")
_REDUCED = ("Mean", "Sum", "Max", "Min", "L2", "L1", "LogSumExp", "SumSquare", "Prod")


class DrawnGraph(GraphMoves):
    """A graph that grows by one operator, or a few that belong together."""

    def grow(self) -> None:
        """Append an operator, or a few that belong together."""
        steps: list[Callable[[], object]] = [
            *[self._unary] * 3, *[self._binary] * 4, *[self._product] * 3, *[self._convolution] * 3,
            self._gemm, self._pooled, self._reduced, self._softmax, self._norm, self._reshape,
            self._transpose, self._concat, self._split, self._slice, self._padded, self._squeezed,
            self._gather, self._compared, self._cast, *[self._quantized] * 2, self._branch,
            self._loop, self._expand, self._integer, self._argmax, self._resized, self._attention,
        ]  # fmt: skip
        steps[int(self.rng.integers(len(steps)))]()

    def _unary(self) -> None:
        if x := self.pick():
            kind = str(self.rng.choice(_UNARY))
            if kind == "Reciprocal":
                x = self.node("Exp", [self.node("Tanh", [x.name], x.shape, x.kind).name],
                              x.shape, x.kind)  # fmt: skip
            self.node(kind, [x.name], x.shape, x.kind)

    def _binary(self) -> None:
        if not (x := self._float()):
            return
        kind = str(self.rng.choice(_BINARY))
        mates = [y for y in self.values if y.kind == x.kind and _joined(x.shape, y.shape)]
        if kind == "PRelu":
            shape = tuple(n if self.rng.random() < 0.5 else 1 for n in x.shape)
            self.node(kind, [x.name, self.weight(shape, x.kind)], x.shape, x.kind)
            return
        if mates and self.rng.random() < 0.6:
            y = mates[int(self.rng.integers(len(mates)))]
            names, shape = [x.name, y.name], np.broadcast_shapes(x.shape, y.shape)
        else:
            own = [n if self.rng.random() < 0.6 else 1 for n in x.shape]
            own = own[int(self.rng.integers(len(own) + 1)) :]
            names, shape = [x.name, self.weight(own, x.kind)], x.shape
        if self.rng.random() < 0.3:
            names.reverse()
        if prod(shape) <= 40_000:
            self.node(kind, names, shape, x.kind)

    def _product(self) -> None:
        if not (x := self._float(1, 2, 3, 4)):
            return
        columns = int(self.rng.choice(SIZES))
        mates = [
            y for y in self.values
            if y.kind == x.kind and len(x.shape) >= 2 and y.shape[:-1] == x.shape[:-1] and y.shape
        ]  # fmt: skip
        if mates and self.rng.random() < 0.4:  # of two tensors
            y = mates[int(self.rng.integers(len(mates)))]
            order = [*range(len(y.shape))]
            order[-2:] = order[-1:] + order[-2:-1]
            turned = self.node("Transpose", [x.name], [x.shape[n] for n in order], x.kind,
                               perm=order)  # fmt: skip
            self.node("MatMul", [turned.name, y.name], (*turned.shape[:-1], y.shape[-1]), x.kind)
            return
        if self.rng.random() < 0.2:  # a vector
            name = self.weight((x.shape[-1],), x.kind)
            self.node("MatMul", [x.name, name], x.shape[:-1], x.kind)
            return
        batch = x.shape[:-2] if self.rng.random() < 0.2 else ()
        name = self.weight((*batch, x.shape[-1], columns), x.kind)
        y = self.node("MatMul", [x.name, name], (*x.shape[:-1], columns), x.kind)
        if self.rng.random() < 0.5:
            self.node("Add", [y.name, self.weight((columns,), x.kind)], y.shape, x.kind)

    def _gemm(self) -> None:
        if not (x := self._float(2)):
            return
        flip, turn = (int(self.rng.integers(2)) for _ in range(2))
        rows, summed = x.shape[::-1] if flip else x.shape
        columns = int(self.rng.choice(SIZES))
        inputs = [x.name, self.weight((columns, summed) if turn else (summed, columns), x.kind)]
        shapes = [(), (columns,), (1, columns), (rows, 1), (rows, columns)]
        if self.rng.random() < 0.7:
            inputs.append(self.weight(shapes[int(self.rng.integers(5))], x.kind))
        alpha, beta = (float(self.rng.choice([1.0, 0.5, -1.0])) for _ in range(2))
        self.node("Gemm", inputs, (rows, columns), x.kind, transA=flip, transB=turn, alpha=alpha,
                  beta=beta)  # fmt: skip

    def _convolution(self) -> None:
        if not (x := self.pick(3, 4)) or 0 in x.shape:
            return
        n, c, *sizes = x.shape
        groups = int(self.rng.choice([1, 1, 1, c]))
        k = int(self.rng.choice([1, 3, 8, 16, 20])) if groups == 1 else c
        taps = [int(self.rng.choice([1, 2, 3])) for _ in sizes]
        strides = [int(self.rng.integers(1, 3)) for _ in sizes]
        dilations = [int(self.rng.choice([1, 1, 2])) for _ in sizes]
        pads = [int(self.rng.integers(0, 3)) for _ in range(2 * len(sizes))]
        rank, turned = len(sizes), self.rng.random() < 0.2 and len(sizes) == 2
        more = dict(strides=strides, dilations=dilations, pads=pads, group=groups)
        spans = [(t - 1) * d + 1 for t, d in zip(taps, dilations, strict=True)]
        ends = [pads[i] + pads[i + rank] for i in range(rank)]
        if turned:
            out = [(s - 1) * m + e - p for s, m, e, p in zip(sizes, strides, spans, ends,
                                                             strict=True)]  # fmt: skip
            name = self.weight((c, k // groups, *taps))
        else:
            out = [(s + p - e) // m + 1 for s, m, e, p in zip(sizes, strides, spans, ends,
                                                              strict=True)]  # fmt: skip
            name = self.weight((k, c // groups, *taps))
        if min(out) < 1 or n * k * prod(out) > 40_000:
            return
        inputs = [x.name, name, *([self.weight((k,))] if self.rng.random() < 0.6 else [])]
        self.node("ConvTranspose" if turned else "Conv", inputs, (n, k, *out), x.kind, **more)

    def _pooled(self) -> None:
        if not (x := self.pick(3, 4)) or 0 in x.shape:
            return
        if self.rng.random() < 0.3:
            self.node("GlobalAveragePool", [x.name], (*x.shape[:2], *[1] * (len(x.shape) - 2)),
                      x.kind)  # fmt: skip
            return
        rank, (n, c, *sizes) = len(x.shape) - 2, x.shape
        taps, pads = [int(self.rng.integers(1, 4)) for _ in sizes], [0] * (2 * rank)
        if min(taps) > 1:
            pads = [int(self.rng.integers(0, 2)) for _ in pads]
        strides = [int(self.rng.integers(1, 3)) for _ in sizes]
        out = [
            (sizes[i] + pads[i] + pads[i + rank] - taps[i]) // strides[i] + 1 for i in range(rank)
        ]
        if min(out) < 1:
            return
        kind = str(self.rng.choice(["MaxPool", "AveragePool"]))
        more: dict[str, Any] = dict(kernel_shape=taps, strides=strides, pads=pads)
        if kind == "AveragePool":
            more["count_include_pad"] = int(self.rng.integers(2))
        self.node(kind, [x.name], (n, c, *out), x.kind, **more)

    def _axes(self, x: Value) -> tuple[list[int], list[int]]:
        axes = [n for n in range(len(x.shape)) if self.rng.random() < 0.5] or [len(x.shape) - 1]
        return axes, [n - len(x.shape) if self.rng.random() < 0.3 else n for n in axes]

    def _reduced(self) -> None:
        if not (x := self.pick(1, 2, 3, 4)) or 0 in x.shape:
            return
        kind, keep = f"Reduce{self.rng.choice(_REDUCED)}", int(self.rng.integers(2))
        axes, written = self._axes(x)
        shape = [1 if n in axes else s for n, s in enumerate(x.shape) if keep or n not in axes]
        inputs = [x.name, self.constant(written, "int64")]
        self.node(kind, inputs, shape, x.kind, keepdims=keep)

    def _softmax(self) -> None:
        if (x := self._float(1, 2, 3, 4)) and 0 not in x.shape:
            axis = int(self.rng.integers(-len(x.shape), len(x.shape)))
            kind = str(self.rng.choice(["Softmax", "Softmax", "LogSoftmax"]))
            self.node(kind, [x.name], x.shape, x.kind, axis=axis)

    def _norm(self) -> None:
        if not (x := self.pick(2, 3, 4)) or 0 in x.shape:
            return
        kind = self.rng.choice(["LayerNormalization", "BatchNormalization", "Instance"])
        if kind == "LayerNormalization":
            axis = int(self.rng.integers(1, len(x.shape)))
            inputs = [x.name, *(self.weight(x.shape[axis:]) for _ in range(2))]
            self.node(str(kind), inputs, x.shape, x.kind, axis=axis)
        elif kind == "BatchNormalization":
            inputs = [x.name, *(self.weight((x.shape[1],)) for _ in range(3))]
            inputs.append(self.constant(1 + self._inner.random(x.shape[1])))
            self.node(str(kind), inputs, x.shape, x.kind)
        elif len(x.shape) > 2 and prod(x.shape[2:]) > 1:
            inputs = [x.name, *(self.weight((x.shape[1],)) for _ in range(2))]
            self.node("InstanceNormalization", inputs, x.shape, x.kind)

    def _compared(self) -> None:
        if not (x := self.pick()):
            return
        self.jumps = True
        kind = str(self.rng.choice(["Greater", "Less", "GreaterOrEqual"]))
        own = [n if self.rng.random() < 0.6 else 1 for n in x.shape]
        mask = self.node(kind, [x.name, self.weight(own)], x.shape, "bool")
        if self.rng.random() < 0.3:
            mask = self.node("Not", [mask.name], mask.shape, "bool")
        if self.rng.random() < 0.7:
            self.node("Where", [mask.name, x.name, self.weight(own)], x.shape, x.kind)

    def _cast(self) -> None:
        kinds = ("float32", "float64", "float16", "int64", "int32", "bool", "uint8")
        if not (x := self.pick(kinds=kinds)):
            return
        kind = str(self.rng.choice(["float32", "float32", "float64", "float16", "int64", "int32"]))
        self.jumps |= not kind.startswith("float")
        self.rounds |= kind == "float16"
        number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        self.node("Cast", [x.name], x.shape, kind, to=number)

    def _integer(self) -> None:
        if x := self.pick(kinds=("int64", "int32")):
            kind = str(self.rng.choice(["Add", "Mul", "Sub", "Max", "Min", "Div"]))
            second = self.constant(int(self.rng.integers(1, 5)), x.kind)
            self.node(kind, [x.name, second], x.shape, x.kind)

    def _argmax(self) -> None:
        if (x := self.pick(1, 2, 3, 4)) and 0 not in x.shape:
            axis, keep = int(self.rng.integers(len(x.shape))), int(self.rng.integers(2))
            self.jumps = True
            shape = [1 if n == axis else s for n, s in enumerate(x.shape) if keep or n != axis]
            self.node("ArgMax", [x.name], shape, "int64", axis=axis, keepdims=keep)

    def _attention(self) -> None:
        if not (x := self.pick(3, 4)) or 0 in x.shape or prod(x.shape[:-1]) * x.shape[-2] > 40_000:
            return
        *batch, rows, width = x.shape
        order = [*range(len(x.shape))]
        order[-2:] = order[-1:] + order[-2:-1]
        key = self.node("Mul", [x.name, self.weight((width,))], x.shape, x.kind)
        turned = self.node("Transpose", [key.name], (*batch, width, rows), x.kind, perm=order)
        scores = self.node("MatMul", [x.name, turned.name], (*batch, rows, rows), x.kind)
        if self.rng.random() < 0.5:
            mask = self.weight((rows, rows))
            scores = self.node("Add", [scores.name, mask], scores.shape, x.kind)
        shares = self.node("Softmax", [scores.name], scores.shape, x.kind, axis=-1)
        self.node("MatMul", [shares.name, x.name], x.shape, x.kind)

    def _quantized(self) -> None:
        if not (x := self.pick()) or 0 in x.shape:
            return
        kind = str(self.rng.choice(["int8", "uint8"]))
        self.jumps = self.rounds = True
        if x.shape and self.rng.random() < 0.3:
            axis = int(self.rng.integers(len(x.shape)))
            shape: tuple[int, ...] = (x.shape[axis],)
            more = {"axis": axis - len(x.shape) if self.rng.random() < 0.3 else axis}
        else:
            shape, more = (), {}
        scales = self.constant(self._inner.uniform(0.01, 0.05, shape))
        low, high = (-20, 20) if kind == "int8" else (100, 150)
        zeros = self._inner.integers(low, high, shape) if self.rng.random() < 0.6 else 0
        inputs = [scales, self.constant(np.broadcast_to(zeros, shape), kind)]
        levels = self.node("QuantizeLinear", [x.name, *inputs], x.shape, kind, **more)
        y = self.node("DequantizeLinear", [levels.name, *inputs], x.shape, "float32", **more)
        if len(y.shape) >= 2 and self.rng.random() < 0.5:
            columns = int(self.rng.choice(SIZES))
            weights = self.constant(self._inner.integers(-127, 128, (y.shape[-1], columns)), "int8")
            own = (columns,) if self.rng.random() < 0.5 else ()
            pair = [self.constant(self._inner.uniform(0.001, 0.01, own))]
            zero = self._inner.integers(-3, 4, own) if self.rng.random() < 0.2 else 0
            pair.append(self.constant(np.broadcast_to(zero, own), "int8"))
            more = {"axis": 1} if own else {}
            w = self.node("DequantizeLinear", [weights, *pair], (y.shape[-1], columns), "float32",
                          **more)  # fmt: skip
            self.node("MatMul", [y.name, w.name], (*y.shape[:-1], columns), "float32")

    def _condition(self) -> str:
        """A scalar that is true or false."""
        x = self.pick()
        if x is None or 0 in x.shape:
            return self.constant(bool(self.rng.integers(2)), "bool")
        name, flat = self._name(), self._name()
        self.jumps = True
        self.nodes.append(helper.make_node("ReduceSum", [x.name], [flat], keepdims=0))
        zero = self.constant(0)
        self.nodes.append(helper.make_node("Greater", [flat, zero], [name]))
        return name

    def _branch(self) -> None:
        """An If whose bodies read values and weights of the graph around them."""
        if not (x := self.pick(2, 3, 4)) or 0 in x.shape:
            return
        condition = self._condition()
        w = self.weight((x.shape[-1], x.shape[-1]))
        bodies = []
        for kind, second in (("MatMul", w), ("Mul", self.weight((x.shape[-1],)))):
            inner, result = self._name(), self._name()
            nodes = [
                helper.make_node(kind, [x.name, second], [inner]),
                helper.make_node("Relu", [inner], [result]),
            ]
            port = helper.make_tensor_value_info(result, TensorProto.FLOAT, x.shape)
            bodies.append(helper.make_graph(nodes, result, [], [port]))
        self.node("If", [condition], x.shape, x.kind, then_branch=bodies[0], else_branch=bodies[1])

    def _loop(self) -> None:
        """A Loop that carries a tensor, and reads another one of the graph around it."""
        if not (x := self.pick(2, 3)) or 0 in x.shape:
            return
        w = self.weight((x.shape[-1], x.shape[-1]))
        count, still, carried, inner, result, again = (self._name() for _ in range(6))
        nodes = [
            helper.make_node("MatMul", [carried, w], [inner]),
            helper.make_node("Add", [inner, x.name], [result]),
            helper.make_node("Identity", [still], [again]),
        ]
        ports: list[Any] = [
            helper.make_tensor_value_info(count, TensorProto.INT64, []),
            helper.make_tensor_value_info(still, TensorProto.BOOL, []),
            helper.make_tensor_value_info(carried, TensorProto.FLOAT, x.shape),
        ]
        results = [
            helper.make_tensor_value_info(again, TensorProto.BOOL, []),
            helper.make_tensor_value_info(result, TensorProto.FLOAT, x.shape),
        ]
        body = helper.make_graph(nodes, result, ports, results)
        trips = self.constant(int(self.rng.integers(0, 4)), "int64")
        self.node("Loop", [trips, "", x.name], x.shape, x.kind, body=body)


def _joined(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of both, broadcast; ``None`` if they do not fit."""
    try:
        return np.broadcast_shapes(first, second)
    except ValueError:
        return None
