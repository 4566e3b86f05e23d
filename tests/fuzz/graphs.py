"""Random ONNX graphs of float and quantized parts, against onnxruntime node by node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from onnx import TensorProto, helper

import amos
import amos.network.external.race
from amos.network import Network
from amos.network.races import Race
from tests.fuzz.case import Refused, Wrong
from tests.network.models import Builder, compile_whole
from tests.support.drawing.graphs import DrawnGraph

__all__ = ["branches", "graph"]

#: Channels, among them those whose last vector ends in a single lane.
_CHANNELS = (1, 3, 8, 9, 16, 17, 25, 33, 41)
#: Share of elements that may be a few quanta off: a sum of floats near a tie is rounded apart.
_TIES = 0.02
#: Share where comparisons, levels or whole numbers of floats decide; they decide on all behind.
_JUMPS = 0.3


class _Drawn:
    """A graph that grows by one operator at a time.

    Attributes:
        b: writes it.
        value: name of the last result.
        shape: its extents, channels second.
        quantum: of the coarsest quantization so far; 0 before any.
        averaged: whether an average over windows was drawn.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.b = Builder(int(rng.integers(1 << 30)))
        size = int(rng.integers(4, 10))
        self.shape = (1, int(rng.choice(_CHANNELS)), size, size)
        self.value = self.b.input("x", self.shape)
        self.quantum = 0.0
        self.averaged = False

    def grow(self) -> None:
        """Append an operator, or a few that belong together."""
        steps: list[Callable[[], str]] = [
            *[self._convolution] * 3, self._product, *[self._compared] * 2, self._pooled,
            self._residual, *[self._quantized] * 2,
        ]  # fmt: skip
        self.value = steps[int(self.rng.integers(len(steps)))]()

    def _levels(self, value: str, scale: float, kind: str = "int8") -> str:
        """A value quantized and dequantized again."""
        scales = self.b.constant(scale)
        zero = self.b.constant(0 if kind == "int8" else 128, kind)
        self.quantum = max(self.quantum, scale)
        levels = self.b.node("QuantizeLinear", value, scales, zero)
        return self.b.node("DequantizeLinear", levels, scales, zero)

    def _weights(self, *shape: int) -> str:
        if not self.quantum or self.rng.random() < 0.5:
            return self.b.random(*shape)
        levels = self.b.constant(self.rng.integers(-127, 128, shape), "int8")
        scales = self.b.constant(self.rng.uniform(0.001, 0.01, shape[0]))
        zeros = self.b.constant(np.zeros(shape[0]), "int8")
        return self.b.node("DequantizeLinear", levels, scales, zeros, axis=0)

    def _convolution(self) -> str:
        channels, taps = int(self.rng.choice(_CHANNELS)), int(self.rng.choice([1, 3]))
        groups = self.shape[1] if self.rng.random() < 0.2 else 1
        channels = groups if groups > 1 else channels
        stride = int(self.rng.integers(1, 3)) if self.shape[2] > 2 else 1
        weights = self._weights(channels, self.shape[1] // groups, taps, taps)
        bias = [self.b.random(channels)] if self.rng.random() < 0.5 else []
        more = dict(pads=[taps // 2] * 4, strides=[stride] * 2, group=groups)
        size = (self.shape[2] + 2 * (taps // 2) - taps) // stride + 1
        self.shape = (1, channels, size, size)
        return self.b.node("Conv", self.value, weights, *bias, **more)

    def _product(self) -> str:
        columns = int(self.rng.choice(_CHANNELS))
        matrix = self.b.random(self.shape[3], columns)
        self.shape = (*self.shape[:3], columns)
        result = self.b.node("MatMul", self.value, matrix)
        if columns == self.shape[2]:
            return result
        size = self.shape[2]  # images are square
        matrix = self.b.random(columns, size)
        self.shape = (*self.shape[:2], size, size)
        return self.b.node("MatMul", result, matrix)

    def _compared(self) -> str:
        kind = str(self.rng.choice(["Relu", "Clip", "Max", "Min", "HardSigmoid", "Sigmoid"]))
        bound = float(self.rng.choice([-1.0, 0.0, 0.5]))
        more = {"Clip": [self.b.constant(bound), self.b.constant(bound + 2)]}
        more |= dict.fromkeys(("Max", "Min"), [self.b.constant(bound)])
        return self.b.node(kind, self.value, *more.get(kind, []))

    def _pooled(self) -> str:
        kind = str(self.rng.choice(["MaxPool", "AveragePool"]))
        self.averaged |= kind == "AveragePool"
        return self.b.node(kind, self.value, kernel_shape=[3, 3], pads=[1, 1, 1, 1])

    def _residual(self) -> str:
        kind, before = str(self.rng.choice(["Add", "Mul", "Sub"])), self.value
        shape = self.shape
        second = self._convolution()
        if self.shape == shape:
            return self.b.node(kind, second, before)
        return self.b.node(kind, second, self.b.random(self.shape[1], 1, 1))

    def _quantized(self) -> str:
        """Levels, behind an average of 1/16 or of a number that has no ties.

        Averages of decimal fractions lie halfway between two levels so often that the order of
        their sums, which ONNX leaves open, would decide; sums of sixteenths are exact.
        """
        kind = str(self.rng.choice(["int8", "uint8"]))
        scale = float(self.rng.choice([0.02, 0.05, 0.0625]))
        if self.averaged and scale != 0.0625:
            scale = float(self.rng.uniform(0.02, 0.06))
        return self._levels(self.value, scale, kind)

    def model(self) -> Any:
        return self.b.model(self.value)


def graph(rng: np.random.Generator, about: Callable[[str], None]) -> str:
    """A graph, loaded and compiled as a user does; floats may be NaN or infinite."""
    from amos.network.sessions import plain_session

    drawn = _Drawn(rng)
    for _ in range(int(rng.integers(2, 7))):
        drawn.grow()
    try:
        model = drawn.model()
    except Exception as error:  # onnx refuses shapes with errors of many types
        raise Refused(str(error)) from None
    about(helper.printable_graph(model.graph))
    x = rng.standard_normal([d.dim_value for d in _dims(model)]).astype(np.float32) * 2
    # onnxruntime's maximum over a window leaves NaN out.
    windows = any(node.op_type == "MaxPool" for node in model.graph.node)
    special = not (drawn.quantum or windows) and rng.random() < 0.4
    if special:
        x.flat[rng.integers(x.size, size=2)] = rng.choice([np.nan, np.inf, -np.inf], 2)
    (expected,) = plain_session(model).run(None, {"x": x})
    network = amos.load_network(model)
    if isinstance(network, Network):  # whatever onnxruntime would run faster
        compiled = compile_whole(network, progress=False, verify=not special)
    else:
        compiled = amos.compile(network, progress=False, verify=not special)
    if compiled.failures:
        raise Wrong(compiled.failures[0])
    if special:
        # It knows what Winograd's tiles spoil beside an element that is not finite.
        compiled.check(x)
        return "right"
    _compare(np.asarray(compiled(x)), expected, drawn.quantum)
    return "right"


def _dims(model: Any) -> Any:
    (port,) = model.graph.input
    assert port.type.tensor_type.elem_type == TensorProto.FLOAT
    return port.type.tensor_type.shape.dim


def _compare(result: np.ndarray, expected: np.ndarray, quantum: float) -> None:
    if result.shape != expected.shape or result.dtype != expected.dtype:
        raise Wrong(f"{result.dtype}{result.shape}, not {expected.dtype}{expected.shape}")
    off = np.abs(result - expected) > 1e-4 * (1 + np.abs(expected))
    share = float(off.mean())
    if share > (_TIES if quantum else 0):
        largest = float(np.abs(result - expected).max())
        raise Wrong(f"{share:.1%} of the elements differ, by up to {largest:g}")


def branches(rng: np.random.Generator, about: Callable[[str], None]) -> str:
    """A graph of any operators, whose regions AMOS computes however long they take."""
    from amos.network.sessions import plain_session

    drawn = DrawnGraph(rng)
    for _ in range(int(rng.integers(3, 14))):
        drawn.grow()
    if not drawn.nodes:
        raise Refused("no node")
    model = drawn.model(int(rng.choice([20, 21, 22, 23])))
    about(helper.printable_graph(model.graph))
    arrays = drawn.arrays()
    try:
        expected = plain_session(model).run(None, arrays)
    except Exception as error:  # onnxruntime lacks some dtypes, with errors of many types
        raise Refused(str(error)) from None
    with mock.patch.object(amos.network.external.race, "race", lambda *_: Race((0.5,), (1.0,))):
        compiled = amos.compile(amos.load_network(model), progress=False)
    if compiled.failures and not drawn.jumps:
        raise Wrong(compiled.failures[0])
    results = compiled(**arrays)
    results = results if isinstance(results, tuple) else (results,)
    for result, reference in zip(results, expected, strict=True):
        _compare_any(np.asarray(result), np.asarray(reference), drawn)
    return "right"


def _compare_any(result: np.ndarray, expected: np.ndarray, drawn: DrawnGraph) -> None:
    """Compare results of any dtype."""
    if result.shape != expected.shape or result.dtype != expected.dtype:
        raise Wrong(f"{result.dtype}{result.shape}, not {expected.dtype}{expected.shape}")
    if not result.size:
        return
    if expected.dtype.kind != "f":
        off = result != expected
    else:
        allowed = 5e-3 if drawn.rounds or expected.dtype == np.float16 else 2e-4
        with np.errstate(all="ignore"):
            finite = np.where(np.isfinite(expected), np.abs(expected), 0)
            least = allowed * min(1.0, float(finite.max())) + 1e-6
            off = ~np.isclose(result, expected, rtol=allowed, atol=least, equal_nan=True)
    if off.mean() > (_JUMPS if drawn.jumps else 0):
        raise Wrong(f"{off.mean():.1%} of the elements differ: {result[off][:3]}, not "
                    f"{expected[off][:3]}")  # fmt: skip
