"""Activations of ONNX as operations that kernels compute behind products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Makes a Relax expression from a builder, the inputs of a node and its attributes.
Convert = Callable[[Any, list[Any], Mapping[str, Any]], Any]


def _clip(builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
    """Bounds were attributes once and are inputs now; each may be missing."""
    from tvm import relax

    value, *bounds = inputs
    kind = value.ty.dtype
    for name, bound in zip(("min", "max"), [*bounds, None, None], strict=False):
        if bound is None and name in attributes:
            bound = relax.const(attributes[name], kind)
        if bound is not None:
            apply = relax.op.maximum if name == "min" else relax.op.minimum
            value = builder.emit(apply(value, bound))
    return value


def _above(_: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
    """Values above a threshold and 0, which the importer makes NaN of minus infinity."""
    from tvm import relax

    value = inputs[0]
    limits = (attributes.get("alpha", 1.0), 0)
    alpha, zero = (relax.const(each, value.ty.dtype) for each in limits)
    return relax.op.where(relax.op.greater(value, alpha), value, zero)


def _leaky(builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
    """By a maximum, or by the parts above and below 0: kernels compute these behind products."""
    from tvm import relax

    value = inputs[0]
    slope = attributes.get("alpha", 0.01)
    alpha = relax.const(slope, value.ty.dtype)
    if 0 < slope <= 1:
        return relax.op.maximum(value, builder.emit(relax.op.multiply(value, alpha)))
    return _bent(builder, value, lambda below: relax.op.multiply(below, alpha))


def _sloped(builder: Any, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    """A slope for each channel, or for each element, below 0."""
    from tvm import relax

    value, slope = inputs
    return _bent(builder, value, lambda below: relax.op.multiply(below, slope))


def _exponential(alpha: float, scale: float = 1.0) -> Convert:
    """ELU and SELU, with their factors where a node states none."""

    def convert(builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
        from tvm import relax

        op, value = relax.op, inputs[0]
        factors = attributes.get("alpha", alpha), attributes.get("gamma", scale), 1.0
        factor, gamma, one = (relax.const(each, value.ty.dtype) for each in factors)

        def below(value: Any) -> Any:
            less = builder.emit(op.subtract(builder.emit(op.exp(value)), one))
            return op.multiply(less, factor)

        bent = builder.emit(_bent(builder, value, below))
        return bent if factors[1] == 1 else op.multiply(bent, gamma)

    return convert


def _bent(builder: Any, value: Any, function: Callable[[Any], Any]) -> Any:
    """A value above 0, and a function of it below, which is 0 at 0."""
    from tvm import relax

    zero = relax.const(0, value.ty.dtype)
    above = builder.emit(relax.op.maximum(value, zero))
    below = builder.emit(relax.op.minimum(value, zero))
    return relax.op.add(above, builder.emit(function(below)))


def _sign(builder: Any, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    """Of NaN itself."""
    from tvm import relax

    value = inputs[0]
    sign = builder.normalize(relax.op.sign(value))
    if "float" not in str(value.ty.dtype):
        return sign
    return relax.op.where(relax.op.isnan(value), value, sign)


ACTIVATIONS: dict[str, Convert] = {
    "Clip": _clip,
    "Elu": _exponential(1.0),
    "LeakyRelu": _leaky,
    "PRelu": _sloped,
    "Selu": _exponential(1.67326319217681884765625, 1.05070102214813232421875),
    "Sign": _sign,
    "ThresholdedRelu": _above,
}
