"""Reductions, softmaxes and norms, written out where the graph has no operator for them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from amos.network.graph import Constant, Operand
from amos.network.operations import numpy_dtype
from amos.network.reading.node import NodeSource, Read, is_float


def reduce_axes(
    node: NodeSource, operation: str, value: Operand, axes: Sequence[int], keepdims: bool = True
) -> Operand:
    """Append a reduction over some axes; means of integers are sums that are divided."""
    attributes = {"axes": tuple(axes), "keepdims": keepdims}
    if not axes:
        return value
    if operation == "ReduceMean" and not is_float(value):
        total = node.emit("ReduceSum", value, **attributes)
        count = prod(value.shape[axis] for axis in axes)
        return node.emit("Div", total, node.scalar(count, total))
    return node.emit(operation, value, **attributes)


def _read_reduction(node: NodeSource) -> Operand:
    value = node.input(0)
    if value.dtype == "bool":
        raise node.refuse("truth values are not supported")
    axes = node.axes(len(value.shape), 1)
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        axes = ()
    elif not axes:
        axes = tuple(range(len(value.shape)))
    keepdims = bool(node.attributes.get("keepdims", 1))
    name = node.operation
    if name in ("ReduceL1", "ReduceL2", "ReduceSumSquare"):
        value = node.emit("Abs", value) if name == "ReduceL1" else node.emit("Mul", value, value)
    if name == "ReduceLogSumExp":
        return _log_sum(node, value, axes, keepdims)
    plain = {"ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"}
    operation = "ReduceSum" if name in plain else name
    total = reduce_axes(node, operation, value, axes, keepdims)
    function = {"ReduceL2": "Sqrt", "ReduceLogSum": "Log"}.get(name)
    return node.emit(function, total) if function else total


def _log_sum(node: NodeSource, value: Operand, axes: Sequence[int], keepdims: bool) -> Operand:
    """Compute the logarithm of a sum of powers, less the largest exponent against overflow."""
    largest = reduce_axes(node, "ReduceMax", value, axes)
    powers = node.emit("Exp", node.emit("Sub", value, largest))
    total = node.emit("Log", reduce_axes(node, "ReduceSum", powers, axes))
    result = node.emit("Add", total, largest)
    if keepdims:
        return result
    return node.reshape(result, [s for axis, s in enumerate(value.shape) if axis not in axes])


def _read_position(node: NodeSource) -> Operand:
    value = node.input(0)
    return node.emit(
        node.operation,
        value,
        axis=node.axis_of(int(node.attributes.get("axis", 0)), len(value.shape)),
        keepdims=bool(node.attributes.get("keepdims", 1)),
        select_last_index=bool(node.attributes.get("select_last_index", 0)),
    )


def _read_softmax(node: NodeSource) -> Operand:
    value = node.input(0)
    rank = len(value.shape)
    if node.opset >= 13:
        axis = node.axis_of(int(node.attributes.get("axis", -1)), rank)
        return node.emit(node.operation, value, axis=axis)
    axis = node.axis_of(int(node.attributes.get("axis", 1)), rank)
    if axis == rank - 1:
        return node.emit(node.operation, value, axis=axis)
    # Over all axes from one on.
    flat = node.reshape(value, (prod(value.shape[:axis]), prod(value.shape[axis:])))
    return node.reshape(node.emit(node.operation, flat, axis=1), value.shape)


def standardize(
    node: NodeSource, value: Operand, axes: Sequence[int], epsilon: float, centre: bool = True
) -> Operand:
    """Append values less their mean, over their deviation; without ``centre`` over their norm."""
    if centre:
        value = node.emit("Sub", value, reduce_axes(node, "ReduceMean", value, axes))
    variance = reduce_axes(node, "ReduceMean", node.emit("Mul", value, value), axes)
    if epsilon:
        variance = node.emit("Add", variance, node.scalar(epsilon, variance))
    return node.emit("Div", value, node.emit("Sqrt", variance))


def _normalize_layer(
    node: NodeSource,
    value: Operand,
    scale: Operand | None,
    bias: Operand | None,
    *,
    axis: int,
    epsilon: float,
) -> Operand:
    """Normalize a layer: an operator of its own over the last axis, written out otherwise."""
    last = len(value.shape) - 1
    size = (value.shape[-1],)
    factor = Constant(np.ones(size, numpy_dtype(value.dtype))) if scale is None else scale
    shift = Constant(np.zeros(size, numpy_dtype(value.dtype))) if bias is None else bias
    if (
        axis == last
        and factor.shape == size
        and shift.shape == size
        and factor.dtype == value.dtype
    ):
        return node.emit("LayerNormalization", value, factor, shift, epsilon=epsilon)
    wide = node.cast(value, "float32")
    result = node.cast(standardize(node, wide, range(axis, last + 1), epsilon), value.dtype)
    return _scale_and_shift(node, result, scale, bias)


def _scale_and_shift(
    node: NodeSource, value: Operand, scale: Operand | None, bias: Operand | None
) -> Operand:
    for operation, operand in (("Mul", scale), ("Add", bias)):
        if operand is not None:
            value = node.emit(operation, value, node.cast(operand, value.dtype))
    return value


def _read_layer_norm(node: NodeSource) -> Operand:
    value = node.input(0)
    axis = node.axis_of(int(node.attributes.get("axis", -1)), len(value.shape))
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    scale, bias = node.input(1), node.optional(2)
    return _normalize_layer(node, value, scale, bias, axis=axis, epsilon=epsilon)


def _read_norm_of_squares(node: NodeSource) -> Operand:
    """Read RMS norms, which subtract no mean."""
    value = node.input(0)
    axis = node.axis_of(int(node.attributes.get("axis", -1)), len(value.shape))
    result = _normalize_squares(node, value, axis)
    return _scale_and_shift(node, result, node.input(1), None)


def _normalize_squares(node: NodeSource, value: Operand, axis: int) -> Operand:
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    wide = node.cast(value, "float32")
    result = standardize(node, wide, range(axis, len(value.shape)), epsilon, centre=False)
    return node.cast(result, value.dtype)


def _read_skip_norm(node: NodeSource) -> tuple[Operand | None, ...]:
    """Read a norm of a sum, which may be a result as well."""
    total = node.emit("Add", node.input(0), node.input(1))
    simplified = node.operation == "SkipSimplifiedLayerNormalization"
    bias = node.optional(3 if simplified else 4)
    if bias is not None:
        total = node.emit("Add", total, bias)
    axis = len(total.shape) - 1
    if simplified:
        result = _normalize_squares(node, total, axis)
        result = _scale_and_shift(node, result, node.input(2), None)
    else:
        epsilon = float(node.attributes.get("epsilon", 1e-12))
        scale, shift = node.input(2), node.optional(3)
        result = _normalize_layer(node, total, scale, shift, axis=axis, epsilon=epsilon)
    return result, None, None, total


def _read_group_norm(node: NodeSource) -> Operand:
    value, scale, bias = (node.input(n) for n in range(3))
    channels = value.shape[1]
    single = node.operation == "InstanceNormalization"
    groups = channels if single else int(node.attributes["num_groups"])
    if scale.shape != (channels,):  # one value for each group, as it was at first
        if not (isinstance(scale, Constant) and isinstance(bias, Constant)):
            raise node.refuse(f"scales of shape {scale.shape} are not supported")
        scale, bias = (
            Constant(np.repeat(each.array, channels // groups)) for each in (scale, bias)
        )
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    attributes = {"num_groups": groups, "epsilon": epsilon, "axis": 1}
    return node.emit("GroupNormalization", value, scale, bias, **attributes)


def _read_unit_norm(node: NodeSource) -> Operand:
    value = node.input(0)
    axis = node.axis_of(int(node.attributes.get("axis", -1)), len(value.shape))
    return emit_unit_norm(node, value, axis, int(node.attributes.get("p", 2)))


def emit_unit_norm(node: NodeSource, value: Operand, axis: int, order: int) -> Operand:
    """Append values over their norm along an axis, of order 1 or 2; zeros stay zeros."""
    if order == 1:
        norm = reduce_axes(node, "ReduceSum", node.emit("Abs", value), [axis])
    else:
        squares = node.emit("Mul", value, value)
        norm = node.emit("Sqrt", reduce_axes(node, "ReduceSum", squares, [axis]))
    is_zero = node.emit("Equal", norm, node.scalar(0, norm))
    return node.emit("Div", value, node.emit("Where", is_zero, node.scalar(1, norm), norm))


def _read_standard(node: NodeSource) -> Operand:
    value = node.input(0)
    rank = len(value.shape)
    axes = [node.axis_of(axis, rank) for axis in node.integers("axes") or (0, 2, 3)]
    centred = node.emit("Sub", value, reduce_axes(node, "ReduceMean", value, axes))
    variance = reduce_axes(node, "ReduceMean", node.emit("Mul", centred, centred), axes)
    deviation = node.emit("Add", node.emit("Sqrt", variance), node.scalar(1e-9, variance))
    return node.emit("Div", centred, deviation)


def _read_local_response(node: NodeSource) -> Operand:
    """Divide by a sum of squares of neighbouring channels."""
    value, attributes = node.input(0), node.attributes
    size, rank, channels = int(attributes["size"]), len(value.shape), value.shape[1]
    before = (size - 1) // 2
    squares = node.emit("Mul", value, value)
    padded = node.emit(
        "Pad",
        squares,
        before=tuple(before if axis == 1 else 0 for axis in range(rank)),
        after=tuple(size - 1 - before if axis == 1 else 0 for axis in range(rank)),
        mode="constant",
        value=0.0,
    )
    total: Operand | None = None
    for step in range(size):
        starts = tuple(step if axis == 1 else 0 for axis in range(rank))
        sizes = (value.shape[0], channels, *value.shape[2:])
        shifted = node.emit("Slice", padded, starts=starts, steps=(1,) * rank, sizes=sizes)
        total = shifted if total is None else node.emit("Add", total, shifted)
    assert total is not None
    alpha, beta = float(attributes.get("alpha", 1e-4)), float(attributes.get("beta", 0.75))
    mean = node.emit("Mul", total, node.scalar(alpha / size, total))
    biased = node.emit("Add", mean, node.scalar(float(attributes.get("bias", 1.0)), mean))
    return node.emit("Div", value, node.emit("Pow", biased, node.scalar(beta, biased)))


_REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
READERS: dict[str, Read] = {
    **dict.fromkeys(_REDUCTIONS, _read_reduction),
    "ArgMax": _read_position,
    "ArgMin": _read_position,
    "GroupNormalization": _read_group_norm,
    "InstanceNormalization": _read_group_norm,
    "LRN": _read_local_response,
    "LayerNormalization": _read_layer_norm,
    "LogSoftmax": _read_softmax,
    "LpNormalization": _read_unit_norm,
    "MeanVarianceNormalization": _read_standard,
    "RMSNormalization": _read_norm_of_squares,
    "SimplifiedLayerNormalization": _read_norm_of_squares,
    "SkipLayerNormalization": _read_skip_norm,
    "SkipSimplifiedLayerNormalization": _read_skip_norm,
    "Softmax": _read_softmax,
}
