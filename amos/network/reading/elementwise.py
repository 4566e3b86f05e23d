"""Elementwise operators, those that a graph lacks composed of its own."""

from __future__ import annotations

import math
from functools import reduce

from amos.network.graph import Operand
from amos.network.operations import OPERATIONS, Kind
from amos.network.packages import onnx
from amos.network.reading.node import NodeSource, Read, is_float

#: Factors of SELU.
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _read_plain(node: NodeSource) -> Operand:
    x, *operands = map(node.input, range(onnx.defs.get_schema(node.operation).max_input))
    if node.opset < 7 and "axis" in node.attributes:  # then an axis said how operands align
        (y,) = operands
        trailing_axes = len(x.shape) - int(node.attributes["axis"]) - len(y.shape)
        operands = [node.reshape(y, (*y.shape, *[1] * trailing_axes))]
    return node.emit(node.operation, x, *operands)


def _read_variadic(node: NodeSource) -> Operand:
    """Read a maximum, minimum or sum of any number of tensors."""
    operation = {"Sum": "Add"}.get(node.operation, node.operation)
    inputs = [node.input(n) for n in range(len(node.inputs))]
    return reduce(lambda x, y: node.emit(operation, x, y), inputs)


def _read_mean(node: NodeSource) -> Operand:
    inputs = [node.input(n) for n in range(len(node.inputs))]
    total = reduce(lambda x, y: node.emit("Add", x, y), inputs)
    return node.emit("Mul", total, node.scalar(1 / len(inputs), total))


def _read_power(node: NodeSource) -> Operand:
    base, exponent = node.input(0), node.input(1)
    if not is_float(base):
        raise node.refuse(f"powers of {base.dtype} are not supported; cast it to floats")
    exponent = node.cast(exponent, base.dtype)
    constant = node.optional(1)
    number = getattr(constant, "array", None)
    if number is not None and number.size == 1 and len(exponent.shape) <= len(base.shape):
        value = float(number.reshape(()))
        if value == 2:
            return node.emit("Mul", base, base)
        if value == 1:
            return base
        if value == 0.5:
            return node.emit("Sqrt", base)
    return node.emit("Pow", base, exponent)


def _read_modulo(node: NodeSource) -> Operand:
    fmod = int(node.attributes.get("fmod", 0))
    return node.emit("Mod", node.input(0), node.input(1), fmod=fmod)


def _read_cast(node: NodeSource) -> Operand:
    if node.operation == "CastLike":
        return node.cast(node.input(0), node.input(1).dtype)
    return node.cast(node.input(0), node.attributes["to"])


def _read_clip(node: NodeSource) -> Operand:
    """Read a clip; its bounds were attributes once and are inputs now, and may be missing."""
    value = node.input(0)
    for position, name, operation in ((1, "min", "Max"), (2, "max", "Min")):
        bound = node.optional(position)
        if bound is None and name in node.attributes:
            bound = node.scalar(node.attributes[name], value)
        if bound is not None:
            value = node.emit(operation, value, node.reshape(bound, ()))
    return value


def _bend(node: NodeSource, value: Operand, below: Operand) -> Operand:
    """Add a function of the part below 0, which is 0 at 0, to the part above."""
    return node.emit("Add", node.emit("Relu", value), below)


def _below_zero(node: NodeSource, value: Operand) -> Operand:
    return node.emit("Min", value, node.scalar(0, value))


def _read_leaky(node: NodeSource) -> Operand:
    """Read a leaky unit as a maximum, or as parts above and below 0, for epilogues of products."""
    value, slope = node.input(0), node.attributes.get("alpha", 0.01)
    alpha = node.scalar(slope, value)
    if 0 < slope <= 1:
        return node.emit("Max", value, node.emit("Mul", value, alpha))
    return _bend(node, value, node.emit("Mul", _below_zero(node, value), alpha))


def _read_prelu(node: NodeSource) -> Operand:
    value, slope = node.input(0), node.input(1)
    if node.opset < 7 and len(value.shape) > 2 and len(slope.shape) == 1:
        slope = node.reshape(slope, (*slope.shape, *[1] * (len(value.shape) - 2)))
    return _bend(node, value, node.emit("Mul", _below_zero(node, value), slope))


def _exponential(node: NodeSource, value: Operand, alpha: float) -> Operand:
    power = node.emit("Exp", _below_zero(node, value))
    less = node.emit("Sub", power, node.scalar(1, value))
    return less if alpha == 1 else node.emit("Mul", less, node.scalar(alpha, value))


def _read_elu(node: NodeSource) -> Operand:
    value = node.input(0)
    return _bend(node, value, _exponential(node, value, node.attributes.get("alpha", 1.0)))


def _read_selu(node: NodeSource) -> Operand:
    value = node.input(0)
    alpha = node.attributes.get("alpha", _SELU_ALPHA)
    bent = _bend(node, value, _exponential(node, value, alpha))
    gamma = node.attributes.get("gamma", _SELU_GAMMA)
    return node.emit("Mul", bent, node.scalar(gamma, value))


def _read_celu(node: NodeSource) -> Operand:
    value, alpha = node.input(0), node.attributes.get("alpha", 1.0)
    scaled = node.emit("Div", value, node.scalar(alpha, value))
    return _bend(node, value, _exponential(node, scaled, alpha))


def _hard_sigmoid(node: NodeSource, alpha: float, beta: float) -> Operand:
    value = node.input(0)
    line = node.emit("Mul", value, node.scalar(alpha, value))
    line = node.emit("Add", line, node.scalar(beta, value))
    line = node.emit("Max", line, node.scalar(0, value))
    return node.emit("Min", line, node.scalar(1, value))


def _read_hard_sigmoid(node: NodeSource) -> Operand:
    return _hard_sigmoid(node, node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5))


def _read_hard_swish(node: NodeSource) -> Operand:
    return node.emit("Mul", node.input(0), _hard_sigmoid(node, 1 / 6, 0.5))


def _softplus(node: NodeSource, value: Operand) -> Operand:
    """Compute the logarithm of a number between 1 and 2, which does not overflow."""
    power = node.emit("Exp", node.emit("Neg", node.emit("Abs", value)))
    small = node.emit("Log", node.emit("Add", power, node.scalar(1, value)))
    return node.emit("Add", node.emit("Relu", value), small)


def _read_mish(node: NodeSource) -> Operand:
    value = node.input(0)
    return node.emit("Mul", value, node.emit("Tanh", _softplus(node, value)))


def _read_softsign(node: NodeSource) -> Operand:
    value = node.input(0)
    below = node.emit("Add", node.emit("Abs", value), node.scalar(1, value))
    return node.emit("Div", value, below)


def _read_threshold(node: NodeSource) -> Operand:
    value = node.input(0)
    above = node.emit("Greater", value, node.scalar(node.attributes.get("alpha", 1.0), value))
    return node.emit("Where", above, value, node.scalar(0, value))


def _read_shrink(node: NodeSource) -> Operand:
    value = node.input(0)
    bias, limit = (
        node.scalar(node.attributes.get(name, default), value)
        for name, default in (("bias", 0.0), ("lambd", 0.5))
    )
    above = node.emit("Greater", value, limit)
    below = node.emit("Less", value, node.emit("Neg", limit))
    inner = node.emit("Where", below, node.emit("Add", value, bias), node.scalar(0, value))
    return node.emit("Where", above, node.emit("Sub", value, bias), inner)


def _read_reciprocal(node: NodeSource) -> Operand:
    value = node.input(0)
    return node.emit("Div", node.scalar(1, value), value)


def _read_infinite(node: NodeSource) -> Operand:
    """Compare with infinity, of the signs that attributes state."""
    value, attributes = node.input(0), node.attributes
    signs = [
        sign
        for name, sign in (("detect_positive", math.inf), ("detect_negative", -math.inf))
        if attributes.get(name, 1)
    ]
    nothing = node.scalar(math.nan, value)  # which nothing equals
    equal = [node.emit("Equal", value, node.scalar(sign, value)) for sign in signs]
    equal = equal or [node.emit("Equal", value, nothing)]
    return reduce(lambda x, y: node.emit("Or", x, y), equal)


def _read_gelu(node: NodeSource) -> Operand:
    approximate = str(node.attributes.get("approximate", "none"))
    return node.emit("Gelu", node.input(0), approximate=approximate)


def _read_biased_gelu(node: NodeSource) -> Operand:
    """Read GELU with an optional bias; ``FastGelu`` by a hyperbolic tangent."""
    value, bias = node.input(0), node.optional(1)
    if bias is not None:
        value = node.emit("Add", value, bias)
    approximate = "tanh" if node.operation == "FastGelu" else "none"
    return node.emit("Gelu", value, approximate=approximate)


def _read_swish(node: NodeSource) -> Operand:
    value = node.input(0)
    default = 1.702 if node.operation == "QuickGelu" else 1.0
    alpha = node.attributes.get("alpha", default)
    if alpha == 1:
        return node.emit("Swish", value)
    scaled = node.emit("Mul", value, node.scalar(alpha, value))
    return node.emit("Mul", value, node.emit("Sigmoid", scaled))


def _read_dropout(node: NodeSource) -> tuple[Operand, ...]:
    """Read dropout as no operation, and a mask of ones, as of a model that is not trained."""
    training = node.constant(2)
    if training is not None and training.any():
        raise node.refuse("training mode is not supported")
    value = node.input(0)
    if node.opset < 12:  # the mask was of the dtype of the values
        mask = node.scalar(1, value)
    else:
        mask = node.scalar(1, node.emit("Equal", value, value))
    return value, node.emit("Expand", mask, shape=value.shape)


READERS: dict[str, Read] = {
    **{name: _read_plain for name, each in OPERATIONS.items() if each.kind is Kind.ELEMENTWISE},
    **dict.fromkeys(("Max", "Min", "Sum"), _read_variadic),
    "BiasGelu": _read_biased_gelu,
    "Cast": _read_cast,
    "CastLike": _read_cast,
    "Celu": _read_celu,
    "Clip": _read_clip,
    "Dropout": _read_dropout,
    "Elu": _read_elu,
    "FastGelu": _read_biased_gelu,
    "Gelu": _read_gelu,
    "HardSigmoid": _read_hard_sigmoid,
    "HardSwish": _read_hard_swish,
    "Identity": lambda node: node.input(0),
    "IsInf": _read_infinite,
    "LeakyRelu": _read_leaky,
    "Mean": _read_mean,
    "Mish": _read_mish,
    "Mod": _read_modulo,
    "PRelu": _read_prelu,
    "Pow": _read_power,
    "QuickGelu": _read_swish,
    "Reciprocal": _read_reciprocal,
    "Selu": _read_selu,
    "Shrink": _read_shrink,
    "Softplus": lambda node: _softplus(node, node.input(0)),
    "Softsign": _read_softsign,
    "Swish": _read_swish,
    "ThresholdedRelu": _read_threshold,
}


def apply_activation(node: NodeSource, value: Operand, name: str, numbers: list[float]) -> Operand:
    """Append the activation that a fused operator of onnxruntime names.

    Args:
        numbers: its attributes in their order in ONNX.
    """
    keys = {"Clip": ("min", "max"), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
    if name not in READERS or (numbers and name not in keys):
        raise node.refuse(f"activation {name} is not supported")
    attributes = dict(zip(keys.get(name, ()), numbers, strict=False))
    result = READERS[name](NodeSource(name, (value,), attributes, 10, node.builder))
    assert not isinstance(result, tuple)
    return result
