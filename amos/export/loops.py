"""An operator's own loops as C, as the test program of an export has them.

Nothing here is shared with the kernel that it checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf

from amos.codegen.c.types import c_type
from amos.codegen.scalar_text import ScalarText
from amos.codegen.tir.arrays import held
from amos.ir import Affine, BufferLoad, Digit, Iteration, Operator, Store, dtype
from amos.ir.expression import ACCUMULATORS


def statement(operator: Operator, integer: bool, exact: bool) -> str:
    """C statement that combines one point with ``sum``, of int64_t or double.

    Args:
        integer: whether sums are integers.
        exact: whether the result does not depend on the order; if it does, the statement
            also grows ``size``, which bounds the error.
    """
    which = _summed if operator.compute.sums_products else _combined
    return which(operator, integer, exact)


def _summed(operator: Operator, integer: bool, exact: bool) -> str:
    """C statement that adds a product to ``sum``, unless one of its sources reads zero outside."""
    product = " * ".join(_read(operator, x, integer) for x in operator.sources)
    zeros = [x for x in operator.sources if x.padded and not x.padding]
    guards = " && ".join(g for x in zeros for g in _guards(x))
    inside = f"if ({guards}) " if guards else ""
    if exact:
        return f"{inside}sum += {product};"
    return f"{inside}{{ double term = {product}; sum += term; size += fabs(term); }}"


def _combined(operator: Operator, integer: bool, exact: bool) -> str:
    """C statement of any other combination of joined sources with ``sum``."""
    compute, kind = operator.compute, "int64_t" if integer else "double"
    first, *others = (_read(operator, x, integer, guarded=True) for x in operator.sources)
    steps = [f"{kind} term = {first};"]
    joined = _update("term", compute.join, "next", integer)
    steps += [f"{{ {kind} next = {x}; {joined} }}" for x in others]
    if integer and compute.combiner in ("max", "min"):
        steps.append(f"term = ({c_type(held(str(operator.output.tensor.dtype)))})term;")
    steps.append(
        _update("sum", compute.combiner, "term", integer) if compute.accumulates else "sum = term;"
    )
    if not exact:
        grown = "size = fabs(sum);" if compute.combiner != "+" else "size += fabs(term);"
        steps.append(grown)
    return f"{{ {' '.join(steps)} }}"


def _update(target: str, symbol: str, value: str, integer: bool) -> str:
    """C statement that combines a value with what is in a variable."""
    if symbol in ("max", "min"):
        return f"if ({value} {'>' if symbol == 'max' else '<'} {target}) {target} = {value};"
    if integer:
        return f"{target} = (int64_t)((uint64_t){target} {symbol} (uint64_t){value});"
    return f"{target} {symbol}= {value};"


def start(operator: Operator, integer: bool) -> str:
    """C expression of what an accumulator starts from."""
    start = operator.compute.neutral(str(operator.output.tensor.dtype))
    if isinf(start):
        return "HUGE_VAL" if start > 0 else "-HUGE_VAL"
    return str(start)


def named(name: str, prefix: str = "of") -> str:
    """A tensor, or with ``"at"`` an iteration, under a name that nothing else has."""
    return f"{prefix}_{name}"


def loop(it: Iteration) -> str:
    """C of the head of a loop over an iteration."""
    name = named(it.name, "at")
    return f"for (int64_t {name} = 0; {name} < {it.extent}; ++{name})"


def _read(operator: Operator, load: BufferLoad, integer: bool, guarded: bool = False) -> str:
    """C of what a source reads; what is padded by zero counts as read only if it is guarded."""
    prologue = operator.prologue(load.tensor.name)
    if prologue is None:
        read = f"({'int64_t' if integer else 'double'}){element(load)}"
    else:
        value = stored(prologue.at(load).compute({}, InC()).value, prologue.kind, prologue.dtype)
        if prologue.dtype == "bfloat16":
            value = f"from_bfloat16({value})"
        read = f"({'int64_t' if integer else 'double'})({value})"
    if not load.padding and not (guarded and load.padded):
        return read
    value = f"INT64_C({load.padding})" if integer else repr(float(load.padding))
    if isinf(load.padding):
        value = "HUGE_VAL" if load.padding > 0 else "-HUGE_VAL"
    return f"({' && '.join(_guards(load))} ? {read} : {value})"


def element(load: BufferLoad) -> str:
    """An element of an input, as the reference computes with it."""
    text = f"{named(load.tensor.name)}[{flat(load)}]"
    return f"from_bfloat16({text})" if str(load.tensor.dtype) == "bfloat16" else text


def flat(load: BufferLoad) -> str:
    """Position of an element in its contiguous tensor."""
    text = ""
    digits = {str(each): each for each in load.digits} if isinstance(load, Store) else {}
    for index, size in zip(load.indices, load.tensor.shape, strict=True):
        here = _affine(index, digits)
        text = f"({text}) * {size} + {here}" if text else here
    return text or "0"


def _affine(index: Affine, digits: Mapping[str, Digit] | None = None) -> str:
    digits = digits or {}
    names = {n: _digit(digits[n]) if n in digits else named(n, "at") for n in index.names}
    parts = [names[n] if c == 1 else f"{c} * {names[n]}" for n, c in index.terms]
    if index.constant or not parts:
        parts.append(f"({index.constant})")
    return f"({' + '.join(parts)})"


def _digit(digit: Digit) -> str:
    above = f"{named(digit.iteration, 'at')} / {digit.divide}"
    return f"({above} % {digit.modulo})" if digit.modulo else f"({above})"


def _guards(load: BufferLoad) -> list[str]:
    return [
        f"{_affine(i)} >= 0 && {_affine(i)} < {size}"
        for i, size in zip(load.indices, load.tensor.shape, strict=True)
    ]


def stored(value: str, computed: str, result: str) -> str:
    """A value of kind ``computed`` as an element of dtype ``result``."""
    if dtype(result).is_integer:
        return InC().rounded(value, computed, result)
    return _narrowed(f"(float)({value})", result)


def _narrowed(value: str, kind: str) -> str:
    """A float of C as an element of a floating-point type."""
    if kind == "float16":
        return f"(_Float16){value}"
    return f"bfloat16({value})" if kind == "bfloat16" else value


class InC(ScalarText):
    """What :mod:`amos.ir.epilogue` states, in C: nothing is shared with the kernel it checks."""

    def __init__(self) -> None:
        super().__init__({"int32": "int32_t", "float32": "float"}, "static inline")

    def number(self, value: float, kind: str) -> str:
        """A constant."""
        return super().number(value, kind) if kind == "float32" else f"INT32_C({int(value)})"

    def read(self, load: BufferLoad, kind: str) -> str:
        """An element of a tensor as a value of a kind."""
        return f"({'float' if kind == 'float32' else 'int32_t'}){element(load)}"

    def widened(self, value: str, dtype: str) -> str:
        """A sum of ``int64_t`` or ``double`` as a value of its dtype, and that as its kind."""
        short = f"({c_type(held(dtype))})({value})"
        return f"({'int32_t' if ACCUMULATORS[dtype] == 'int32' else 'float'}){short}"

    def convert(self, value: str) -> str:
        """An integer as a float."""
        return f"(float)({value})"

    def rounded(self, value: str, kind: str, final: str) -> str:
        """A value rounded and clamped to a dtype, as the kind that goes on."""
        if not dtype(final).is_integer:
            text = _narrowed(value, final)
            return f"from_bfloat16({text})" if final == "bfloat16" else f"(float){text}"
        low, high = dtype(final).limits
        if kind == "float32":
            return f"f_integer({value}, {low}.0, {high}.0)"
        return value if final == "int32" else f"i_min(i_max({value}, {low}), {high})"
