"""Epilogues and prologues as TVM expressions, in the arithmetic of :mod:`amos.ir.epilogue`.

TVM's arithmetic differs: integers never overflow, which it also tells LLVM of unsigned ones; floats
cancel as if sums were exact; constants have double precision. So integers are added and multiplied
in 64 bits, of which LLVM keeps the required 32. The cast stands at the end of a sum, because TVM
simplifies the operand of a cast twice, in each sum of a sum anew. What TVM would cancel or fold is
reinterpreted as bits and back, which is opaque to TVM and costs nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amos._toolchain import tirx
from amos.codegen.tir.arrays import container_dtype, decode, encode, is_number
from amos.codegen.tir.rounding import mark_settled, nearest, round_product
from amos.ir import BufferLoad, Operator, Prologue, dtype
from amos.ir.epilogue import Epilogue
from amos.ir.expression import ACCUMULATORS, Function, Node, Typed, inline_call

#: 2**31 - 1 is no float32; this is the largest one that an int32 holds.
_LARGEST_FLOAT_IN_INT32 = 2147483520
#: Added to a small integer, it leaves a float's exponent, 127 more, in the lowest bits.
_TO_EXPONENT = 1.5 * 2**23 + 127
_CALLS = {"sqrt": "tirx.sqrt", "fma": "tirx.fma"}
_SUMS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}


def finish(
    op: Operator, accumulator: Any, at: Mapping[str, Any], tensors: Mapping[str, Any]
) -> Any:
    """Return the value to store for one element of the output.

    Args:
        at: the spatial iterations of the element; a missing one is zero.
        tensors: TE tensors of the epilogue, by name.
    """
    if op.epilogue is None:
        return accumulator
    return apply_epilogue(op.epilogue, accumulator, str(op.output.tensor.dtype), at, tensors)


def apply_epilogue(
    epilogue: Epilogue, value: Any, kind: str, at: Mapping[str, Any], tensors: Mapping[str, Any]
) -> Any:
    """Apply an epilogue to a value of a dtype; other arguments as :func:`finish` takes them."""
    by = _InTVM(at, tensors)
    element = _wrap(epilogue.compute(value, kind, by))
    return by.bind_names(cast_result(element, epilogue.kind(kind), epilogue.result(kind)))


def compute_element(prologue: Prologue, at: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    """Compute an element of a source, ``at`` along the prologue's dimensions."""
    by = _InTVM(at, tensors)
    return by.bind_names(cast_result(_wrap(prologue.compute(by)), prologue.kind, prologue.dtype))


def element(
    expression: Node, at: Mapping[str, Any], tensors: Mapping[str, Any], values: Mapping[str, Any]
) -> Any:
    """Evaluate an expression of a chain at a point, as its own kind.

    Args:
        at: where each iteration stands in the tensors.
        tensors: TE tensors or buffers, by name.
        values: of the iterations.
    """
    by = _InTVM(at, tensors)
    # TVM would make a constant of an iteration with one value, and takes zero for a pointer.
    zero = by.number(0, "int32")
    variables = {name: Typed(value + zero, "int32") for name, value in values.items()}
    return by.bind_names(_wrap(expression.compute(variables, by).value))


def cast_result(value: Any, kind: str, final: str) -> Any:
    """Convert an ``int32`` or ``float32`` value to an element of a tensor of dtype ``final``."""
    if dtype(final).is_integer:
        return _clamp(value, kind, final).astype(container_dtype(final))
    return encode(value.astype("float32"), final)


@dataclass(frozen=True)
class _Exact:
    """An integer that is not wrapped to 32 bits yet.

    Attributes:
        value: an expression of dtype int64, or of int32 where that holds it. LLVM does not always
            see that the lower halves of products in 64 bits suffice.
        largest: bound of its magnitude.
    """

    value: Any
    largest: int


def _exact(value: Any) -> _Exact:
    return value if isinstance(value, _Exact) else _Exact(value, 2**31)


def _wrap(value: Any) -> Any:
    """Wrap an exact integer to 32 bits; return any other value as it is."""
    if not isinstance(value, _Exact):
        return value
    if value.largest < 2**31:
        return value.value
    return tirx.reinterpret("int32", value.value.astype("uint32"))


class _InTVM:
    """Expressions of TVM on TE tensors by name; see :class:`amos.ir.expression.Arithmetic`."""

    def __init__(self, at: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        self.at, self.tensors = at, tensors
        self._names: list[tuple[Any, Any]] = []
        #: Whether the next call settles its arguments, and names bound before one that did.
        self._settles, self._settled = True, 0

    def bind_names(self, value: Any) -> Any:
        """Bind the names that a value uses around it."""
        for name, meaning in reversed(self._names):
            value = tirx.Let(name, meaning, value)
        return value

    def _bind(self, value: Any, kind: str, settle: bool = False) -> Any:
        value = tirx.convert(_wrap(value))
        if isinstance(value, tirx.Var):
            return value
        # TVM refuses a name of integers whose range differs in a copy of a loop.
        value = _hide(value, kind) if kind == "int32" else value
        value = mark_settled(value) if settle else value
        name = tirx.Var(f"x{len(self._names)}", kind)
        self._names.append((name, value))
        return name

    def call(self, function: Function, kind: str, values: list[Any]) -> Any:
        settles = self._settles
        settle = settles and kind == "float32" and len(self._names) > self._settled
        # A function that reads its arguments once binds no names, but those that it calls may.
        self._settles = settle and function.once
        self._settled = len(self._names) if settle and not function.once else self._settled
        value = inline_call(
            function, kind, values, self, lambda value: self._bind(value, kind, settle)
        )
        self._settles = settles
        return value

    def round_to(self, value: Any, kind: str, final: str) -> Any:
        value = _wrap(value)
        if dtype(final).is_integer:
            return _clamp(value, kind, final)
        return decode(encode(value, final), final, "float32")

    def number(self, value: float, kind: str) -> Any:
        # TVM drops a product by zero, and with it the accumulator; and zero from a sum,
        # and with it a sign.
        if kind == "int32" and value == 0:
            # TVM takes an integer zero that is reinterpreted for a pointer.
            return tirx.reinterpret(kind, tirx.const(0.0, "float32"))
        return _hide(tirx.const(value, kind), kind)

    def read(self, load: BufferLoad, kind: str) -> Any:
        where = [
            index.evaluate({name: self.at.get(name, 0) for name in index.names})
            for index in load.indices
        ]
        element = self.tensors[load.tensor.name][tuple(where)]
        source = dtype(str(load.tensor.dtype))
        value = decode(element, source.name, kind)
        is_narrow = kind == "int32" and source.is_integer and source.bits < 32
        return _Exact(value, max(map(abs, source.limits))) if is_narrow else value

    def widen(self, value: Any, dtype: str) -> Any:
        return decode(value, dtype, ACCUMULATORS[dtype])

    def convert(self, value: Any) -> Any:
        return _wrap(value).astype("float32")

    def apply(self, name: str, kind: str, values: list[Any]) -> Any:
        if kind == "int32" and name in _SUMS:
            return self._sum(name, *values)
        values = [_wrap(value) for value in values]
        if name == "_choose":
            return tirx.Select(values[0] > values[1], values[2], values[3])
        if name == "_pow2":
            bits = tirx.reinterpret("uint32", self._add(values[0], self.number(_TO_EXPONENT, kind)))
            return tirx.reinterpret(kind, tirx.shift_left(bits, tirx.const(23, "uint32")))
        if name == "_exponent":
            bits = tirx.shift_right(tirx.reinterpret("uint32", values[0]), tirx.const(23, "uint32"))
            return (tirx.reinterpret("int32", bits) - 127).astype("float32")
        if name == "round":
            return nearest(values[0])
        if name in _CALLS:
            return tirx.call_intrin(kind, _CALLS[name], *values)
        lhs, rhs = values
        if name == "shift":
            return tirx.shift_right(lhs, rhs)
        if name in ("_greater", "_less"):
            return (tirx.max if name == "_greater" else tirx.min)(lhs, rhs)
        if name == "_unless_nan":
            return tirx.Select(is_number(lhs), rhs, lhs)
        if name == "add":
            return self._add(lhs, rhs)
        if name == "subtract":
            # TVM would simplify a difference of equal terms to zero, and drop their reads.
            return self._round_product(lhs) - _hide(self._round_product(rhs), kind)
        if name == "divide":
            # TVM may take a quotient for zero where nothing is read, and refuse to divide by it.
            quotient = isinstance(self._meaning(rhs), tirx.Div)
            return tirx.div(lhs, _hide(rhs, kind) if quotient else rhs)
        return lhs * rhs

    def _add(self, lhs: Any, rhs: Any) -> Any:
        return self._round_product(lhs) + self._round_product(rhs)

    def _round_product(self, term: Any) -> Any:
        """Mark a term of a sum that is a product, so that LLVM does not fuse the two."""
        product = isinstance(self._meaning(term), tirx.Mul)
        return round_product(term) if product else term

    def _meaning(self, term: Any) -> Any:
        """Return the term that a name is bound to; any other term itself."""
        return next((value for name, value in self._names if name.same_as(term)), term)

    def _sum(self, name: str, lhs: Any, rhs: Any) -> _Exact:
        a, b = _exact(lhs), _exact(rhs)
        if (largest := _largest(name, a, b)) >= 2**63:
            a, b = _exact(_wrap(lhs)), _exact(_wrap(rhs))
            largest = _largest(name, a, b)
        kind = "int32" if largest < 2**31 else "int64"
        first, second = (each.value.astype(kind) for each in (a, b))
        second = _hide(second, kind) if name == "subtract" else second
        return _Exact(_SUMS[name](first, second), largest)


def _largest(name: str, a: _Exact, b: _Exact) -> int:
    return a.largest * b.largest if name == "multiply" else a.largest + b.largest


def _hide(value: Any, kind: str) -> Any:
    """Hide a value from TVM's simplifier."""
    bits = "uint64" if kind == "int64" else "uint32"
    return tirx.reinterpret(kind, tirx.reinterpret(bits, value))


def _clamp(value: Any, kind: str, final: str) -> Any:
    """Clamp an ``int32`` or ``float32`` value to the limits of ``final``, as ``int32``."""
    low, high = dtype(final).limits
    if kind == "int32":
        if final == "int32":
            return value
        limits = tirx.const(low, "int32"), tirx.const(high, "int32")
        return tirx.min(tirx.max(value, limits[0]), limits[1])
    most = min(high, _LARGEST_FLOAT_IN_INT32)
    above = tirx.max(value, tirx.const(low, "float32"))
    clamped = tirx.min(above, tirx.const(most, "float32"))
    integer = nearest(clamped).astype("int32")
    if most == high:
        return integer
    beyond = above > tirx.const(most, "float32")
    return tirx.Select(beyond, tirx.const(high, "int32"), integer)
