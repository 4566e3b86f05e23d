"""Loops of sums of products that no kernel computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amos._toolchain import te, tirx
from amos.network.graph import Node
from amos.network.loops.elementwise import cast_tensor
from amos.network.loops.reductions import at_tap, pad_image
from amos.network.shapes import HALVES, image_axes


def _accumulator(node: Node) -> str:
    return "float32" if node.dtype in HALVES else node.dtype


def _emit_matmul(node: Node, operands: Sequence[Any]) -> Any:
    x, y = operands
    kind, step = _accumulator(node), te.reduce_axis((0, int(x.shape[-1])))

    def batch(tensor: Any, at: Sequence[Any]) -> list[Any]:
        own = at[len(at) - len(tensor.shape) : -2]
        extents = map(int, tensor.shape)
        return [0 if size == 1 else i for size, i in zip(extents, own, strict=False)]

    def total(*at: Any) -> Any:
        factor = x(*batch(x, at), at[-2], step).astype(kind)
        return te.sum(factor * y(*batch(y, at), step, at[-1]).astype(kind), axis=step)

    return cast_tensor(te.compute(node.shape, total, name="matmul"), node.dtype)


@dataclass(frozen=True)
class _Window:
    """The reductions of a convolution.

    Attributes:
        channels: axis of the channels.
        channel: reduction over the channels of a group.
    """

    axes: range
    channels: int
    channel: Any
    taps: list[Any]


def _window_of(node: Node, group_channels: int, extents: Sequence[int]) -> _Window:
    is_last = node.attributes["channels_last"]
    return _Window(
        axes=image_axes(node.shape, is_last),
        channels=len(node.shape) - 1 if is_last else 1,
        channel=te.reduce_axis((0, group_channels)),
        taps=[te.reduce_axis((0, size)) for size in extents],
    )


def _emit_conv(node: Node, operands: Sequence[Any]) -> Any:
    x, weight = operands
    groups, kind = node.attributes["group"], _accumulator(node)
    features, depth, *extents = (int(extent) for extent in weight.shape)
    window, per_group = _window_of(node, depth, extents), features // groups
    channel, taps = window.channel, window.taps
    image = pad_image(x, node, tirx.const(0, x.dtype), window.axes)

    def total(*at: Any) -> Any:
        place, feature = at_tap(at, taps, node, window.axes), at[window.channels]
        begin = feature // per_group * depth if groups > 1 else 0
        place[window.channels] = begin + channel
        value = image(*place).astype(kind) * weight(feature, channel, *taps).astype(kind)
        return te.sum(value, axis=[channel, *taps])

    return cast_tensor(te.compute(node.shape, total, name="conv"), node.dtype)


def _emit_conv_transpose(node: Node, operands: Sequence[Any]) -> Any:
    """Emit a convolution of the image with zeros between its elements, taps in reverse order."""
    x, weight = operands
    attributes, kind = node.attributes, _accumulator(node)
    groups = attributes["group"]
    inner, per_group, *extents = (int(extent) for extent in weight.shape)
    depth = inner // groups
    window = _window_of(node, depth, extents)
    channel, taps = window.channel, window.taps

    def total(*at: Any) -> Any:
        place, conditions, feature = [*at], list[Any](), at[window.channels]
        for n, axis in enumerate(window.axes):
            stride = attributes["strides"][n]
            spread = at[axis] + attributes["pads"][n] - taps[n] * attributes["dilations"][n]
            place[axis] = spread // stride
            conditions += [spread >= 0, spread < (int(x.shape[axis]) - 1) * stride + 1]
            conditions += [spread % stride == 0] if stride > 1 else []
        begin = feature // per_group * depth if groups > 1 else 0
        place[window.channels] = begin + channel
        factor = weight(begin + channel, feature % per_group, *taps)
        value = tirx.if_then_else(tirx.all(*conditions), x(*place), tirx.const(0, x.dtype))
        return te.sum(value.astype(kind) * factor.astype(kind), axis=[*taps, channel])

    return cast_tensor(te.compute(node.shape, total, name="conv_transpose"), node.dtype)


#: Emitters by operator.
PRODUCT_LOOPS: Mapping[str, Callable[[Node, Sequence[Any]], Any]] = {
    "Conv": _emit_conv,
    "ConvTranspose": _emit_conv_transpose,
    "MatMul": _emit_matmul,
}
