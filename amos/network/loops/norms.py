"""Loops of softmax and norms, which scale elements by the values of others.

Of norms the mean is subtracted before squares are summed: of the mean of squares less the square of
the mean nothing is left where the mean is large. All are computed in ``float32`` at least.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from amos._toolchain import te, tirx
from amos.network.graph import Node
from amos.network.loops.elementwise import (
    cast_tensor,
    element,
    exponential,
    in_float32,
    map_tensor,
)
from amos.network.loops.reductions import mean, reduce_axes


def _emit_softmax(node: Node, operands: Sequence[Any]) -> Any:
    power, total, _ = _powers(node, operands)
    value = te.compute(node.shape, lambda *at: power(*at) / element(total, at), name="softmax")
    return cast_tensor(value, node.dtype)


def _emit_log_softmax(node: Node, operands: Sequence[Any]) -> Any:
    _, total, less = _powers(node, operands)
    logarithm = map_tensor(tirx.log, total, name="logarithm")
    value = te.compute(
        node.shape, lambda *at: less(*at) - element(logarithm, at), name="log_softmax"
    )
    return cast_tensor(value, node.dtype)


def _powers(node: Node, operands: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return exponentials of distances from the largest element, their sums, and the distances."""
    axes, x = [node.attributes["axis"]], in_float32(operands[0])
    largest = reduce_axes(x, axes, te.max)
    less = te.compute(node.shape, lambda *at: x(*at) - element(largest, at), name="less")
    power = exponential(less)
    return power, reduce_axes(power, axes, te.sum), less


def _emit_layer_norm(node: Node, operands: Sequence[Any]) -> Any:
    x, scale, shift = map(in_float32, operands)
    axes = [len(node.shape) - 1]
    center = mean(x, axes)
    inverse = _inverse_deviation(mean(_squares(x, lambda at: element(center, at)), axes), node)
    value = te.compute(
        node.shape,
        lambda *at: (
            (x(*at) - element(center, at)) * element(inverse, at) * element(scale, at)
            + element(shift, at)
        ),
        name="layer_norm",
    )
    return cast_tensor(value, node.dtype)


def _emit_group_norm(node: Node, operands: Sequence[Any]) -> Any:
    """Emit a norm of groups of channels, summed by channels first: vectors read whole ones."""
    x, scale, shift = map(in_float32, operands)
    axis, groups = node.attributes["axis"], node.attributes["num_groups"]
    size = node.shape[axis] // groups

    def of_group(tensor: Any) -> Callable[[Sequence[Any]], Any]:
        return lambda at: tensor(at[0], at[axis] // size)

    center = of_group(_mean_of_groups(x, axis, groups))
    variance = _mean_of_groups(_squares(x, center), axis, groups)
    inverse = of_group(_inverse_deviation(variance, node))
    value = te.compute(
        node.shape,
        lambda *at: (x(*at) - center(at)) * inverse(at) * scale(at[axis]) + shift(at[axis]),
        name="group_norm",
    )
    return cast_tensor(value, node.dtype)


def _mean_of_groups(x: Any, axis: int, groups: int) -> Any:
    """Compute the means of images and groups of channels."""
    shape = [int(extent) for extent in x.shape]
    size = shape[axis] // groups
    axes = [n for n in range(1, len(shape)) if n != axis]
    sums = reduce_axes(x, axes, te.sum) if axes else x
    count = float(prod(shape[n] for n in axes) * size)
    place: list[Any] = [0] * len(shape)
    inner = te.reduce_axis((0, size))

    def total(image: Any, group: Any) -> Any:
        place[0], place[axis] = image, group * size + inner
        return te.sum(sums(*place), axis=inner)

    total_of = te.compute((shape[0], groups), total, name="total")
    return map_tensor(lambda value: value / count, total_of, name="mean")


def _squares(x: Any, center: Callable[[Sequence[Any]], Any]) -> Any:
    """Square the distances from the mean at each place."""

    def square(*at: Any) -> Any:
        distance = x(*at) - center(at)
        return distance * distance

    return te.compute(x.shape, square, name="square")


def _inverse_deviation(variance: Any, node: Node) -> Any:
    kind, epsilon = str(variance.dtype), node.attributes["epsilon"]
    return map_tensor(
        lambda value: 1 / tirx.sqrt(value + tirx.const(epsilon, kind)), variance, name="inverse"
    )


#: Emitters by operator.
NORM_LOOPS: Mapping[str, Callable[[Node, Sequence[Any]], Any]] = {
    "GroupNormalization": _emit_group_norm,
    "LayerNormalization": _emit_layer_norm,
    "LogSoftmax": _emit_log_softmax,
    "Softmax": _emit_softmax,
}
