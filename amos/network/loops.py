"""Loops of operators whose own ones in the engine are slow or inexact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Elements of the longest vectors.
LANES = 16
#: Makes functions of loops of a builder and a call of an operator, or calls of other operators.
Loops = Callable[[Any, Any], Any]


def _softmax(builder: Any, call: Any) -> Any:
    """With the exponential as a polynomial, which vectors compute; to some ulp the same."""
    from tvm import topi

    if str(call.ty.dtype) != "float32":
        return builder.call_te(topi.nn.softmax, call.args[0], call.attrs.axis)
    if int(call.attrs.axis) % len(call.ty.shape) == len(call.ty.shape) - 1:
        return builder.call_te(_softmax_of_rows, call.args[0])
    return builder.call_te(topi.nn.fast_softmax, call.args[0], call.attrs.axis)


def _softmax_of_rows(x: Any) -> Any:
    from tvm import te, topi

    largest = _of_rows(x, te.max)
    power = topi.fast_exp(te.compute(x.shape, lambda *at: x(*at) - largest(*at[:-1], 0)))
    total = _of_rows(power, te.sum)
    return te.compute(x.shape, lambda *at: power(*at) / total(*at[:-1], 0))


def _is_ragged(call: Any, axis: int) -> bool:
    """Whether this reduces long rows whose ends fill no vector."""
    shape = [int(extent) for extent in call.args[0].ty.shape]
    rows = axis % len(shape) == len(shape) - 1
    return rows and shape[-1] >= 2 * LANES and shape[-1] % LANES > 0


def _of_rows(x: Any, reduce: Any) -> Any:
    """Reduce rows: what fills whole vectors, the end of a row, and both together.

    That is a reduction as well, which nothing computes anew for each element of a row.
    """
    from tvm import te, tirx

    *outer, extent = (int(size) for size in x.shape)
    main = extent // LANES * LANES
    inner, behind = te.reduce_axis((0, main)), te.reduce_axis((0, extent - main))
    shape = (*outer, 1)
    if extent < 2 * LANES or extent == main:
        every = te.reduce_axis((0, extent))
        return te.compute(shape, lambda *at: reduce(x(*at[:-1], every), axis=every))
    whole = te.compute(shape, lambda *at: reduce(x(*at[:-1], inner), axis=inner))
    tail = te.compute(shape, lambda *at: reduce(x(*at[:-1], main + behind), axis=behind))
    both = te.reduce_axis((0, 2))
    return te.compute(
        shape,
        lambda *at: reduce(tirx.if_then_else(both == 0, whole(*at), tail(*at)), axis=both),
    )


def _reduced(builder: Any, call: Any) -> Any:
    """Sums, means and bounds of rows that fill no whole vectors, in two parts."""
    from tvm import relax, te

    name = call.op.name.removeprefix("relax.")
    axes = [int(axis) for axis in call.attrs.axis or ()]
    if str(call.ty.dtype) != "float32" or len(axes) != 1 or not _is_ragged(call, axes[0]):
        return _in_float32(builder, call)
    reduce = {"max": te.max, "min": te.min}.get(name, te.sum)

    def rows(x: Any) -> Any:
        return _of_rows(x, reduce)

    value = builder.emit_te(rows, call.args[0])
    if name == "mean":
        count = relax.const(float(int(call.args[0].ty.shape[-1])), "float32")
        value = builder.emit(relax.op.divide(value, count))
    return value if call.attrs.keepdims else relax.op.squeeze(value, [-1])


def _polynomial(name: str) -> Loops:
    """A function of floats as a polynomial too; of other dtypes it is the engine's."""

    def legalized(builder: Any, call: Any) -> Any:
        from tvm import topi

        return builder.call_te(getattr(topi, f"fast_{name}"), call.args[0])

    return legalized


def _sigmoid(builder: Any, call: Any) -> Any:
    """By the exponential."""
    from tvm import te, topi

    if str(call.ty.dtype) != "float32":
        return builder.call_te(topi.sigmoid, call.args[0])

    def inverse(power: Any) -> Any:
        return te.compute(power.shape, lambda *at: 1 / (1 + power(*at)))

    power = builder.emit_te(topi.fast_exp, builder.emit_te(topi.negative, call.args[0]))
    return builder.call_te(inverse, power)


def _in_float32(builder: Any, call: Any) -> Any:
    """A sum of halves in float32: in their own dtype it would stand still when it is large."""
    from tvm import ir, relax

    kind, op = str(call.ty.dtype), relax.op
    if kind not in ("float16", "bfloat16"):
        return call.op.get_attr("FLegalize")(builder, call)
    total = ir.Call(call.op, [op.astype(call.args[0], "float32")], call.attrs)
    return op.astype(builder.normalize(total), kind)


def _group_norm(builder: Any, call: Any) -> Any:
    from tvm import relax

    groups, channels = int(call.attrs.num_groups), int(call.attrs.channel_axis)
    shape = [int(extent) for extent in call.ty.shape]
    channels %= len(shape)
    divided = [*shape[:channels], groups, shape[channels] // groups, *shape[channels + 1 :]]
    axes = [int(axis) % len(shape) for axis in call.attrs.axes]
    axes = [channels + 1, *(axis + (axis > channels) for axis in axes)]
    value = builder.emit(relax.op.reshape(call.args[0], divided))
    value = _standard(builder, value, axes, float(call.attrs.epsilon))
    return _scaled(builder, relax.op.reshape(value, shape), channels, call)


def _instance_norm(builder: Any, call: Any) -> Any:
    axes = [int(axis) for axis in call.attrs.axes]
    value = _standard(builder, call.args[0], axes, float(call.attrs.epsilon))
    return _scaled(builder, value, int(call.attrs.channel_axis), call)


def _standard(builder: Any, value: Any, axes: list[int], epsilon: float) -> Any:
    """Values less their mean, over their deviation, in float32.

    The engine subtracts the square of the mean from the mean of squares, of which nothing is
    left where the mean is large.
    """
    from tvm import relax

    op, emit = relax.op, builder.emit
    value = emit(op.astype(value, "float32"))
    value = emit(op.subtract(value, emit(op.mean(value, axes, keepdims=True))))
    variance = emit(op.mean(emit(op.multiply(value, value)), axes, keepdims=True))
    variance = emit(op.add(variance, relax.const(epsilon, "float32")))
    return emit(op.multiply(value, emit(op.rsqrt(variance))))


def _scaled(builder: Any, value: Any, channels: int, call: Any) -> Any:
    """Standard values times the scale of each channel, plus its shift, as the call's dtype."""
    from tvm import relax

    op, emit = relax.op, builder.emit
    shape = [1] * len(call.ty.shape)
    shape[channels] = int(call.ty.shape[channels])
    scale, shift = (
        emit(op.reshape(emit(op.astype(each, "float32")), shape)) for each in call.args[1:]
    )
    value = emit(op.add(emit(op.multiply(emit(value), scale)), shift))
    return op.astype(value, str(call.ty.dtype))


_POOLS = (f"relax.nn.{kind}avg_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3))
_SUMS = ("relax.std", "relax.variance", *_POOLS)
_REDUCTIONS = ("relax.mean", "relax.sum", "relax.max", "relax.min")
#: By the engine's names of operators.
LOOPS: Mapping[str, Loops] = {
    "relax.nn.softmax": _softmax,
    "relax.exp": _polynomial("exp"),
    "relax.tanh": _polynomial("tanh"),
    "relax.sigmoid": _sigmoid,
    "relax.nn.group_norm": _group_norm,
    "relax.nn.instance_norm": _instance_norm,
    **dict.fromkeys(_SUMS, _in_float32),
    **dict.fromkeys(_REDUCTIONS, _reduced),
}
