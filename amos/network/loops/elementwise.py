"""Loops of operators of which each element is computed of those at its place.

Functions of halves are computed in ``float32``; exponentials of that are polynomials, which vectors
compute, to some ulp the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from math import pi, sqrt
from typing import Any

from amos._toolchain import te, tirx, topi
from amos.codegen.tir.arrays import is_number
from amos.network.graph import Constant, Node
from amos.network.operations import OPERATIONS, Kind
from amos.network.shapes import HALVES

#: Largest exponent of a power that is written as products.
_LARGEST_EXPONENT = 3


def element(operand: Any, at: Sequence[Any]) -> Any:
    """Return the element of an operand that is broadcast; a number for itself.

    Args:
        operand: a tensor, or an expression of a single value.
        at: place in what it is broadcast to.
    """
    if not isinstance(operand, te.Tensor):
        return operand
    own = at[len(at) - len(operand.shape) :]
    extents = map(int, operand.shape)
    return operand(*(0 if size == 1 else i for size, i in zip(extents, own, strict=True)))


def emit_elementwise(node: Node, operands: Sequence[Any]) -> Any:
    """Emit an operator whose elements are expressions of those of its operands."""
    function = _expressions()[node.operation]
    return te.compute(
        node.shape,
        lambda *at: function(node, *(element(each, at) for each in operands)),
        name=node.operation.lower(),
    )


def emit_function(node: Node, operands: Sequence[Any]) -> Any:
    """Emit a function that is a tensor of polynomials, in ``float32`` if it is of halves."""
    (x,) = operands
    return cast_tensor(_TENSORS[node.operation](node, in_float32(x)), node.dtype)


def in_float32(x: Any) -> Any:
    """Return a tensor in ``float32`` if it is one of halves."""
    return cast_tensor(x, "float32") if str(x.dtype) in HALVES else x


def cast_tensor(x: Any, kind: str) -> Any:
    """Return a tensor in a dtype."""
    if str(x.dtype) == kind:
        return x
    return te.compute(x.shape, lambda *at: x(*at).astype(kind), name="cast")


def map_tensor(function: Callable[..., Any], *tensors: Any, name: str) -> Any:
    """Apply a function to the elements of tensors of one shape."""
    return te.compute(tensors[0].shape, lambda *at: function(*(x(*at) for x in tensors)), name=name)


def exponential(x: Any) -> Any:
    """Return the exponential of a tensor of ``float32`` or ``float64``."""
    return topi.fast_exp(x)


def _tanh(_: Node, x: Any) -> Any:
    return topi.fast_tanh(x)


def _logistic(x: Any) -> Any:
    power = exponential(map_tensor(lambda value: -value, x, name="negative"))
    return map_tensor(lambda value: 1 / (1 + value), power, name="sigmoid")


def _swish(_: Node, x: Any) -> Any:
    return map_tensor(lambda a, b: a * b, x, _logistic(x), name="swish")


def _error_function(x: Any) -> Any:
    if str(x.dtype) == "float32":
        return topi.fast_erf(x)
    return map_tensor(tirx.erf, x, name="erf")


def _gelu(node: Node, x: Any) -> Any:
    def inner(value: Any) -> Any:
        if node.attributes["approximate"] == "tanh":
            return value * (1 + value * value * 0.044715) * sqrt(2 / pi)
        return value * sqrt(1 / 2)

    within = map_tensor(inner, x, name="within")
    tanh = node.attributes["approximate"] == "tanh"
    share = topi.fast_tanh(within) if tanh else _error_function(within)
    return map_tensor(lambda a, b: a * (1 + b) * 0.5, x, share, name="gelu")


_TENSORS: Mapping[str, Callable[[Node, Any], Any]] = {
    "Erf": lambda _, x: _error_function(x),
    "Exp": lambda _, x: exponential(x),
    "Gelu": _gelu,
    "Sigmoid": lambda _, x: _logistic(x),
    "Swish": _swish,
    "Tanh": _tanh,
}
#: Functions of one number that TVM has, too.
_INTRINSICS = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Floor", "Log"),
    *("Sin", "Sqrt", "Tan"),
)
#: Functions of one number that TVM cannot compute in vectors, which C has.
_OF_C = ("Cosh", "Sinh")
#: Emitters by operator.
ELEMENTWISE_LOOPS: Mapping[str, Callable[[Node, Sequence[Any]], Any]] = {
    name: emit_function if name in _TENSORS else emit_elementwise
    for name, operation in OPERATIONS.items()
    if operation.kind is Kind.ELEMENTWISE and operation.evaluate
}


@cache
def _expressions() -> Mapping[str, Callable[..., Any]]:
    """Map operators to functions of a node and elements of its operands."""

    def unary(function: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda _, x: _of_halves(function, x)

    def binary(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        return lambda _, x, y: function(x, y)

    true, false = tirx.const(True, "bool"), tirx.const(False, "bool")
    return {
        **{name: unary(getattr(tirx, name.lower())) for name in _INTRINSICS},
        **{name: unary(partial(_call_c, name.lower())) for name in _OF_C},
        "Add": binary(lambda x, y: x + y),
        "And": binary(tirx.all),
        "BitwiseAnd": binary(tirx.bitwise_and),
        "BitwiseNot": lambda _, x: tirx.bitwise_not(x),
        "BitwiseOr": binary(tirx.bitwise_or),
        "BitwiseXor": binary(tirx.bitwise_xor),
        "Cast": lambda node, x: _convert(x, node.dtype),
        "Div": binary(_quotient),
        "Equal": _equal,
        "Greater": binary(tirx.GT),
        "GreaterOrEqual": binary(tirx.GE),
        "Identity": lambda _, x: x,
        "IsNaN": lambda _, x: tirx.Select(is_number(x), false, true),
        "Less": binary(tirx.LT),
        "LessOrEqual": binary(tirx.LE),
        "Max": binary(tirx.max),
        "Min": binary(tirx.min),
        "Mod": _remainder,
        "Mul": binary(lambda x, y: x * y),
        "Neg": lambda _, x: -x,
        # TVM makes another comparison of one that is negated, which differs for NaN.
        "Not": lambda _, x: tirx.Select(x, false, true),
        "Or": binary(tirx.any),
        "Pow": _power,
        "Round": unary(tirx.nearbyint),
        "Relu": lambda _, x: tirx.max(x, tirx.const(0, x.ty.dtype)),
        "Sign": lambda _, x: _sign(x),
        "Sub": binary(lambda x, y: x - y),
        "Where": lambda _, condition, x, y: tirx.Select(condition, x, y),
        "Xor": binary(lambda x, y: tirx.NE(_comparable(x), _comparable(y))),
    }


def _of_halves(function: Callable[..., Any], *values: Any) -> Any:
    """Wrap a function of floats so that it computes halves in ``float32``."""
    kind = str(values[0].ty.dtype)
    if kind not in HALVES:
        return function(*values)
    return function(*(value.astype("float32") for value in values)).astype(kind)


def _comparable(x: Any) -> Any:
    """Convert a truth value to one that LLVM compares in vectors."""
    return x.astype("uint8") if str(x.ty.dtype) == "bool" else x


def _equal(node: Node, x: Any, y: Any) -> Any:
    """Compare two values; TVM takes a value to be equal to itself, also NaN."""
    if node.operands[0] is node.operands[1] and _is_float(x):
        return is_number(x)
    return tirx.EQ(_comparable(x), _comparable(y))


def _call_c(function: str, *values: Any) -> Any:
    """Call a function of C's library, for which TVM has an operator and no code."""
    kind = str(values[0].ty.dtype)
    return tirx.call_pure_extern(kind, function if kind == "float64" else f"{function}f", *values)


def _convert(x: Any, kind: str) -> Any:
    if kind == "bool" and str(x.ty.dtype) != "bool":
        wide = x.astype("float32") if str(x.ty.dtype) in HALVES else x
        return tirx.NE(wide, tirx.const(0, wide.ty.dtype))
    return x.astype(kind)


def _is_float(x: Any) -> bool:
    return "float" in str(x.ty.dtype)


def _quotient(x: Any, y: Any) -> Any:
    return tirx.div(x, y) if _is_float(x) else tirx.truncdiv(x, y)


def _remainder(node: Node, x: Any, y: Any) -> Any:
    if _is_float(x):
        return _of_halves(_float_remainder if node.attributes["fmod"] == 0 else _fmod, x, y)
    return tirx.truncmod(x, y) if node.attributes["fmod"] else tirx.floormod(x, y)


def _fmod(x: Any, y: Any) -> Any:
    """Compute the remainder with the sign of the dividend."""
    return _call_c("fmod", x, y)


def _float_remainder(x: Any, y: Any) -> Any:
    """Compute the remainder with the sign of the divisor."""
    remainder = _fmod(x, y)
    signs_differ = tirx.any(tirx.all(remainder < 0, y > 0), tirx.all(remainder > 0, y < 0))
    return tirx.Select(signs_differ, remainder + y, remainder)


def _power(node: Node, x: Any, y: Any) -> Any:
    """Compute a power; small whole exponents are products."""
    exponent = node.operands[1]
    if isinstance(exponent, Constant) and exponent.array.size == 1:
        times = float(exponent.array.reshape(()))
        if times.is_integer() and 1 <= times <= _LARGEST_EXPONENT:
            return reduce(lambda a, b: a * b, [x] * int(times))
    power = partial(_call_c, "pow")  # of which TVM's operator warns
    if not _is_float(x):
        return power(x.astype("float64"), y.astype("float64")).astype(x.ty.dtype)
    return _of_halves(power, x, y)


def _sign(x: Any) -> Any:
    """Compute the sign of a number; NaN of NaN."""
    kind = str(x.ty.dtype)
    zero = tirx.const(0, kind)
    below = x if kind.startswith("uint") else tirx.Select(x < zero, tirx.const(-1, kind), x)
    return tirx.Select(x > zero, tirx.const(1, kind), below)
