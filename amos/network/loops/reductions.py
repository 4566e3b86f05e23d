"""Loops of operators that reduce axes, or windows, to one element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from amos._toolchain import te, tirx, topi
from amos.codegen.tir.arrays import decode
from amos.network.graph import Node
from amos.network.loops.elementwise import cast_tensor, in_float32, map_tensor
from amos.network.shapes import image_axes

#: Elements of the longest vectors.
LANES = 16


def reduce_axes(x: Any, axes: Sequence[int], combine: Any) -> Any:
    """Reduce a tensor along axes, rising ones, which stay with one element.

    Args:
        combine: a reduction of TE, for example ``te.sum``.
    """
    shape = [int(extent) for extent in x.shape]
    rows = axes[-1] == len(shape) - 1
    if rows and len(axes) > 1 and shape[-1] >= LANES:
        # Vectors run along rows, and then along nothing.
        return reduce_axes(_rows(x, combine), axes[:-1], combine)
    if rows and len(axes) == 1:
        return _rows(x, combine)
    steps = {axis: te.reduce_axis((0, shape[axis])) for axis in axes}

    def total(*at: Any) -> Any:
        place = (steps.get(axis, i) for axis, i in enumerate(at))
        return combine(x(*place), axis=[*steps.values()])

    result_shape = [1 if axis in axes else extent for axis, extent in enumerate(shape)]
    return te.compute(result_shape, total, name="reduce")


def _rows(x: Any, reduce: Any) -> Any:
    """Reduce rows: whole vectors, the tail of a row, and both results.

    The last step is a reduction too, so that TVM does not inline it into each reader's loop.
    """
    *outer, extent = (int(size) for size in x.shape)
    main = extent // LANES * LANES
    shape = (*outer, 1)
    if extent < 2 * LANES or extent == main or str(x.dtype) != "float32":
        row = te.reduce_axis((0, extent))
        return te.compute(shape, lambda *at: reduce(x(*at[:-1], row), axis=row), name="reduce")
    inner, end = te.reduce_axis((0, main)), te.reduce_axis((0, extent - main))
    whole = te.compute(shape, lambda *at: reduce(x(*at[:-1], inner), axis=inner))
    tail = te.compute(shape, lambda *at: reduce(x(*at[:-1], main + end), axis=end))
    both = te.reduce_axis((0, 2))
    return te.compute(
        shape,
        lambda *at: reduce(tirx.if_then_else(both == 0, whole(*at), tail(*at)), axis=both),
        name="reduce",
    )


def mean(x: Any, axes: Sequence[int]) -> Any:
    """Return the mean of a tensor along axes, which stay with one element."""
    count = prod(int(x.shape[axis]) for axis in axes)
    kind = str(x.dtype)
    divide = tirx.div if "float" in kind else tirx.truncdiv
    total = reduce_axes(x, axes, te.sum)
    return map_tensor(lambda value: divide(value, tirx.const(count, kind)), total, name="mean")


def without_axes(x: Any, axes: Sequence[int], shape: Sequence[int]) -> Any:
    """Return a tensor without axes of one element, as the shape that it has then."""
    if len(x.shape) == len(shape):
        return x
    remaining = [axis for axis in range(len(x.shape)) if axis not in axes]

    def read(*at: Any) -> Any:
        place = [*[0] * len(x.shape)]
        for axis, i in zip(remaining, at, strict=True):
            place[axis] = i
        return x(*place)

    return te.compute(shape, read, name="squeeze")


def _emit_reduction(node: Node, operands: Sequence[Any]) -> Any:
    """Emit a reduction; of sums of halves in ``float32``."""
    (x,), axes = operands, node.attributes["axes"]
    if not axes:
        return map_tensor(lambda value: value, x, name="identity")
    if node.operation == "ReduceMean":
        value = mean(in_float32(x), axes)
    elif node.operation in _ORDERS:
        value = reduce_axes(x, axes, getattr(te, _ORDERS[node.operation]))
    else:
        value = reduce_axes(in_float32(x), axes, _totals()[node.operation])
    return without_axes(cast_tensor(value, node.dtype), axes, node.shape)


#: Reductions that round nothing, by TE's names.
_ORDERS = {"ReduceMax": "max", "ReduceMin": "min"}


def _totals() -> Mapping[str, Any]:
    product = te.comm_reducer(lambda x, y: x * y, lambda kind: tirx.const(1, kind), name="product")
    return {"ReduceSum": te.sum, "ReduceProd": product}


def _emit_position(node: Node, operands: Sequence[Any]) -> Any:
    find = topi.argmax if node.operation == "ArgMax" else topi.argmin
    attributes = node.attributes
    x = _with_plain_bits(in_float32(operands[0]), operands[0])
    place = find(x, attributes["axis"], attributes["keepdims"], attributes["select_last_index"])
    return cast_tensor(place, node.dtype)


def _with_plain_bits(wide: Any, x: Any) -> Any:
    """Widen a tensor of ``bfloat16`` by its bits; return any other as it is.

    Of a reduction to two values TVM would convert the bits as an integer.
    """
    if str(x.dtype) != "bfloat16":
        return wide
    return te.compute(
        x.shape,
        lambda *at: decode(tirx.reinterpret("uint16", x(*at)), "bfloat16", "float32"),
        name="widened",
    )


def pad_image(x: Any, node: Node, value: Any, axes: Sequence[int]) -> Any:
    """Return an image with the padding of a node's windows around it."""
    pads, half = node.attributes["pads"], len(axes)
    if not any(pads):
        return x
    before, after = [0] * len(x.shape), [0] * len(x.shape)
    for n, axis in enumerate(axes):
        before[axis], after[axis] = pads[n], pads[half + n]
    return topi.nn.pad(x, before, after, value)


def at_tap(at: Sequence[Any], taps: Sequence[Any], node: Node, axes: Sequence[int]) -> list[Any]:
    """Return the place in a padded image that a tap reads for an element of the result."""
    place = [*at]
    for n, axis in enumerate(axes):
        stride, dilation = node.attributes["strides"][n], node.attributes["dilations"][n]
        place[axis] = at[axis] * stride + taps[n] * dilation
    return place


def _pool(x: Any, node: Node, value: Any, combine: Any) -> Any:
    axes = image_axes(node.shape, node.attributes["channels_last"])
    image = pad_image(x, node, value, axes)
    taps = [te.reduce_axis((0, size)) for size in node.attributes["kernel_shape"]]
    return te.compute(
        node.shape,
        lambda *at: combine(image(*at_tap(at, taps, node, axes)), axis=taps),
        name="pool",
    )


def _emit_max_pool(node: Node, operands: Sequence[Any]) -> Any:
    kind = node.dtype
    least = float("-inf") if "float" in kind else int(np.iinfo(kind).min)
    return _pool(operands[0], node, tirx.const(least, kind), te.max)


def _emit_average_pool(node: Node, operands: Sequence[Any]) -> Any:
    x = in_float32(operands[0])
    kind = str(x.dtype)
    total = _pool(x, node, tirx.const(0, kind), te.sum)
    value = te.compute(
        node.shape, lambda *at: total(*at) / _taps_inside(node, at).astype(kind), name="average"
    )
    return cast_tensor(value, node.dtype)


def _taps_inside(node: Node, at: Sequence[Any]) -> Any:
    """Count the elements that a window averages; padding only if it counts."""
    attributes = node.attributes
    window = attributes["kernel_shape"]
    if attributes["count_include_pad"] or not any(attributes["pads"]):
        return tirx.const(prod(window), "int32")
    counts = []
    for n, axis in enumerate(image_axes(node.shape, attributes["channels_last"])):
        size, dilation = node.operands[0].shape[axis], attributes["dilations"][n]
        first = at[axis] * attributes["strides"][n] - attributes["pads"][n]
        end = tirx.min((size - 1 - first) // dilation + 1, window[n])
        begin = tirx.max((dilation - 1 - first) // dilation, 0)
        counts.append(end - begin)
    return reduce(lambda a, b: a * b, counts)


#: Emitters by operator.
REDUCTION_LOOPS: Mapping[str, Callable[[Node, Sequence[Any]], Any]] = {
    "ArgMax": _emit_position,
    "ArgMin": _emit_position,
    "AveragePool": _emit_average_pool,
    "MaxPool": _emit_max_pool,
    **{f"Reduce{name}": _emit_reduction for name in ("Max", "Mean", "Min", "Prod", "Sum")},
}
