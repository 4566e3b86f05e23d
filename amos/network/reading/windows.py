"""Convolutions and poolings: padding written out, biases as sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from amos.network.graph import Constant, Operand
from amos.network.reading.elementwise import apply_activation
from amos.network.reading.node import NodeSource, Read
from amos.network.shapes import product_dtype

#: Image axes of the windows that have loops.
_IMAGE_AXES = (1, 2, 3)


@dataclass
class Window:
    """A window over the image axes of a tensor."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: list[int]
    after: list[int]

    @property
    def spans(self) -> list[int]:
        """Elements from the first to the last that a window reads along each axis."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    def attributes(self) -> dict[str, Any]:
        """Return attributes of a node of the graph, whose channels are second."""
        return {
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": (*self.before, *self.after),
            "channels_last": False,
        }

    def pad_same(self, upper: bool) -> None:
        """Pad so that there are as many results as strides, rounded up."""
        for n, span in enumerate(self.spans):
            count = -(-self.sizes[n] // self.strides[n])
            total = max((count - 1) * self.strides[n] + span - self.sizes[n], 0)
            self.before[n], self.after[n] = divide_padding(total, upper)

    def round_up(self) -> bool:
        """Extend the padding behind to the last window that begins in the image or ahead of it.

        Return whether that extends any.
        """
        extended = False
        for n, span in enumerate(self.spans):
            padded = self.sizes[n] + self.before[n] + self.after[n]
            count = -(-(padded - span) // self.strides[n]) + 1
            if (count - 1) * self.strides[n] >= self.sizes[n] + self.before[n]:
                count -= 1
            missing = (count - 1) * self.strides[n] + span - padded
            if missing > 0:
                self.after[n] += missing
                extended = True
        return extended


def divide_padding(total: int, upper: bool) -> tuple[int, int]:
    """Return padding before and behind; of what is odd, one more on one of the sides."""
    less = total // 2
    return (less, total - less) if upper else (total - less, less)


def read_window(node: NodeSource, image: Operand, kernel: Sequence[int]) -> Window:
    """Read the window of a node; refuse negative padding, and images of no or too many axes."""
    sizes, count = image.shape[2:], len(kernel)
    if count not in _IMAGE_AXES or len(sizes) != count:
        raise node.refuse(f"an image of shape {image.shape} is not supported")
    ones = (1,) * count
    pads = node.integers("pads") or (0,) * (2 * count)
    if min(pads) < 0:
        raise node.refuse(f"padding {pads} is not supported")
    window = Window(
        sizes,
        tuple(kernel),
        node.integers("strides") or ones,
        node.integers("dilations") or ones,
        list(pads[:count]),
        list(pads[count:]),
    )
    mode = str(node.attributes.get("auto_pad", "NOTSET"))
    if mode.startswith("SAME"):
        window.pad_same(mode == "SAME_UPPER")
    elif mode == "VALID":
        window.before, window.after = [0] * count, [0] * count
    return window


def add_bias(node: NodeSource, value: Operand, bias: Operand | None) -> Operand:
    """Append the sum with one value for each channel, if there is any."""
    if bias is None:
        return value
    shaped = node.reshape(bias, (prod(bias.shape), *[1] * (len(value.shape) - 2)))
    return node.emit("Add", value, shaped)


def _read_convolution(node: NodeSource) -> Operand:
    image, weight = node.input(0), node.input(1)
    if product_dtype([image]) == "int32":
        raise node.refuse("bytes are not supported")
    kernel = node.integers("kernel_shape") or weight.shape[2:]
    window = read_window(node, image, kernel)
    group = int(node.attributes.get("group", 1))
    value = node.emit("Conv", image, weight, group=group, **window.attributes())
    return add_bias(node, value, node.optional(2))


def _read_fused_convolution(node: NodeSource) -> Operand:
    """Read a convolution of onnxruntime's optimizer with its sum and activation."""
    value = _read_convolution(node)
    if (summand := node.optional(3)) is not None:
        value = node.emit("Add", value, summand)
    if name := str(node.attributes.get("activation", "")):
        numbers = [float(n) for n in node.attributes.get("activation_params", ())]
        value = apply_activation(node, value, name, numbers)
    return value


def _read_transposed(node: NodeSource) -> Operand:
    image, weight = node.input(0), node.input(1)
    count = len(weight.shape) - 2
    window = read_window(node, image, weight.shape[2:])
    more = list(node.integers("output_padding") or (0,) * count)
    stated = node.integers("output_shape")
    mode = str(node.attributes.get("auto_pad", "NOTSET"))
    full = [
        stride * (size - 1) + m + span
        for stride, size, m, span in zip(
            window.strides, window.sizes, more, window.spans, strict=True
        )
    ]
    if mode.startswith("SAME") and not stated:
        stated = tuple(s * n for s, n in zip(window.strides, window.sizes, strict=True))
    if stated:
        for n, size in enumerate(stated[-count:]):
            total = full[n] - size
            # Here more of what is odd goes ahead, unless it says SAME_UPPER.
            before, after = divide_padding(max(total, 0), mode == "SAME_UPPER")
            window.before[n], window.after[n] = before, after
            more[n] += max(-total, 0)
    group = int(node.attributes.get("group", 1))
    attributes = window.attributes() | {"output_padding": tuple(more)}
    value = node.emit("ConvTranspose", image, weight, group=group, **attributes)
    return add_bias(node, value, node.optional(2))


def _read_max_pool(node: NodeSource) -> Operand:
    image = node.input(0)
    window = read_window(node, image, node.integers("kernel_shape") or ())
    if node.attributes.get("ceil_mode", 0):
        window.round_up()
    attributes = window.attributes() | {"kernel_shape": window.kernel}
    return node.emit("MaxPool", image, **attributes)


def _read_average_pool(node: NodeSource) -> Operand:
    image = node.input(0)
    window = read_window(node, image, node.integers("kernel_shape") or ())
    counted = bool(node.attributes.get("count_include_pad", 0))
    stated = [*window.before], [*window.after]
    rounds = bool(node.attributes.get("ceil_mode", 0)) and window.round_up()
    if rounds and counted and any((*stated[0], *stated[1])):
        # Of what windows read, stated padding counts, and what is behind it does not.
        before, after = ((0, 0, *side) for side in stated)
        pads = {"before": before, "after": after}
        image = node.emit("Pad", image, **pads, mode="constant", value=0.0)
        window.after = [a - s for a, s in zip(window.after, stated[1], strict=True)]
        window.before, counted = [0] * len(window.before), False
    counted = counted and not rounds
    attributes = window.attributes() | {"kernel_shape": window.kernel}
    return node.emit("AveragePool", image, **attributes, count_include_pad=counted)


def _read_norm_pool(node: NodeSource) -> Operand:
    """Read the 2-norm of windows: the mean of squares times their number."""
    if int(node.attributes.get("p", 2)) != 2 or node.attributes.get("ceil_mode", 0):
        raise node.refuse("norms other than 2 are not supported")
    image = node.input(0)
    window = read_window(node, image, node.integers("kernel_shape") or ())
    attributes = window.attributes() | {"kernel_shape": window.kernel, "count_include_pad": True}
    mean = node.emit("AveragePool", node.emit("Mul", image, image), **attributes)
    total = node.emit("Mul", mean, node.scalar(prod(window.kernel), mean))
    return node.emit("Sqrt", total)


def _read_global_pool(node: NodeSource) -> Operand:
    image = node.input(0)
    operation = "ReduceMax" if node.operation == "GlobalMaxPool" else "ReduceMean"
    axes = tuple(range(2, len(image.shape)))
    return node.emit(operation, image, axes=axes, keepdims=True) if axes else image


def _read_batch_norm(node: NodeSource) -> Operand:
    """Read a batch norm as a product and a sum for each channel."""
    if node.attributes.get("training_mode", 0) or any(node.outputs[1:]):
        raise node.refuse("training mode is not supported")
    value, *parameters = (node.input(n) for n in range(5))
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    shape = (-1, *[1] * (len(value.shape) - 2))
    constants = [each.array for each in parameters if isinstance(each, Constant)]
    if len(constants) == len(parameters):
        arrays = (array.astype(np.float64) for array in constants)
        gamma, beta, mean, variance = arrays
        factor = gamma / np.sqrt(variance + epsilon)
        scale: Operand = node.scalar(factor.reshape(shape), value)
        shift: Operand = node.scalar((beta - mean * factor).reshape(shape), value)
    else:
        extents = (value.shape[1], *shape[1:])
        operands = [node.reshape(node.cast(p, value.dtype), extents) for p in parameters]
        spread = node.emit("Sqrt", node.emit("Add", operands[3], node.scalar(epsilon, value)))
        scale = node.emit("Div", operands[0], spread)
        shift = node.emit("Sub", operands[1], node.emit("Mul", operands[2], scale))
    return node.emit("Add", node.emit("Mul", value, scale), shift)


READERS: dict[str, Read] = {
    "AveragePool": _read_average_pool,
    "BatchNormalization": _read_batch_norm,
    "Conv": _read_convolution,
    "ConvTranspose": _read_transposed,
    "FusedConv": _read_fused_convolution,
    "GlobalAveragePool": _read_global_pool,
    "GlobalMaxPool": _read_global_pool,
    "LpPool": _read_norm_pool,
    "MaxPool": _read_max_pool,
}
