"""Epilogues of accumulators and prologues of sources, as text in a dialect of C.

The arithmetic is that of :mod:`amos.ir.epilogue`, bit for bit: operations that round
once and that no compiler fuses, and integers that wrap around.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from amos.codegen.device.text import element_at
from amos.ir import BufferLoad, Operator, Prologue, dtype
from amos.ir.epilogue import Epilogue
from amos.ir.expression import Function, inline_call
from amos.ir.index_text import Value

#: Name of the accumulator where it is stored.
SUM = "sum"
_COMBINERS = {"+": "add", "max": "greater", "min": "less"}


@dataclass(frozen=True)
class Dialect:
    """How a language writes arithmetic; ``{}`` stands for a value.

    Attributes:
        inline: before a function.
        wrapped: an operation of two ``int``, whose sign is put in, that wraps around.
        rounded: sum, difference and product of two ``float``, which no compiler fuses.
        rare: name → type, parameters and body of a function, defined only where it is called.
        narrowed: dtype → a ``float`` as an element of it.
        widened: dtype → an element of it as a ``float``.
        integer: an element as ``int``.
        real: an element as ``float``.
        converted: an ``int`` as ``float``, rounded to nearest even.
        nearest_integer: a ``float`` as ``int``, rounded likewise, clamped above.
        nearest: a ``float`` rounded to a whole one.
        wide: an index with 64 bits.
        pointer: to elements of a type, a name of other elements.
        from_bits: an unsigned integer's bits as ``float``.
        thread: number of the thread among all of a launch for elements of reductions.
    """

    inline: str
    wrapped: str
    rounded: tuple[str, str, str]
    rare: Mapping[str, str]
    narrowed: Mapping[str, str]
    widened: Mapping[str, str]
    integer: str
    real: str
    converted: str
    nearest_integer: str
    nearest: str
    wide: str
    pointer: str
    from_bits: str
    thread: str

    @property
    def functions(self) -> dict[str, tuple[str, str]]:
        """Functions of two arguments by name: type of these and of the result, and the body."""
        names = ("add", "subtract", "multiply")
        compared = {"greater": "a > b ? a : b", "less": "a < b ? a : b"}
        integer = dict(zip(names, map(self.wrapped.format, "+-*"), strict=True)) | compared
        real = dict(zip(names, self.rounded, strict=True)) | compared
        real["unless_nan"] = "a != a ? a : b"
        functions = {f"i_{name}": ("int", body) for name, body in integer.items()}
        return functions | {f"f_{name}": ("float", body) for name, body in real.items()}


def arithmetic_helpers(op: Operator, accumulator: str, dialect: Dialect) -> str:
    """Write the functions of an operator's epilogues and prologues, if any."""
    if not op.epilogues and not op.prologues:
        return ""
    by = TextArithmetic(dialect, {})
    if op.epilogue is not None:
        by.write_result(op.epilogue, accumulator)
    for result in op.further:
        write = by.write_wide if result.reduces else by.write_result
        write(result.epilogue, accumulator)
        if result.last is not None:
            by.write_result(result.last, result.combination_dtype(accumulator))
    for prologue in op.prologues:
        by.write_source(prologue)
    return by.definitions()


def write_result(
    dialect: Dialect, epilogue: Epilogue, accumulator: str, at: Mapping[str, Value]
) -> str:
    """Write the value that is stored for the accumulator :data:`SUM` at spatial iterations."""
    return TextArithmetic(dialect, at).write_result(epilogue, accumulator)


def write_wide(
    dialect: Dialect, epilogue: Epilogue, accumulator: str, at: Mapping[str, Value]
) -> str:
    """Write an expression as :func:`write_result` does, as ``int`` or ``float``."""
    return TextArithmetic(dialect, at).write_wide(epilogue, accumulator)


def write_source(dialect: Dialect, prologue: Prologue, at: Mapping[str, Value]) -> str:
    """Write one element of a source that is computed, ``at`` along the prologue's dimensions."""
    return TextArithmetic(dialect, at).write_source(prologue)


class TextArithmetic:
    """Expressions of a dialect of C; see :class:`amos.ir.expression.Arithmetic`.

    ``f_add`` adds floats and ``i_add`` integers. Functions that the language defines are
    functions here as well.

    Attributes:
        operations: names of the operations that are called.
        functions: definition of each function that is called, after those that it calls.
    """

    def __init__(self, dialect: Dialect, at: Mapping[str, Value]) -> None:
        self.dialect, self.at = dialect, at
        self.operations: set[str] = set()
        self.functions: dict[str, str] = {}

    def write_result(self, epilogue: Epilogue, kind: str) -> str:
        """Write the value that is stored for an accumulator of that dtype."""
        value = epilogue.compute(SUM, kind, self)
        return self.write_stored(value, epilogue.kind(kind), epilogue.result(kind))

    def write_wide(self, epilogue: Epilogue, kind: str) -> str:
        """Write such a value as ``int`` or ``float``, rounded to its dtype."""
        value = epilogue.compute(SUM, kind, self)
        own, final = epilogue.kind(kind), epilogue.result(kind)
        if final == "float32":
            return value if own == "float32" else self.convert(value)
        return self.round_to(value, own, final)

    def write_source(self, prologue: Prologue) -> str:
        """Write the staged value of a source."""
        return self.write_stored(prologue.compute(self), prologue.kind, prologue.dtype)

    def write_stored(self, value: str, kind: str, final: str) -> str:
        """Write a value of a kind as an element of a dtype."""
        if dtype(final).is_integer:
            return self.round_to(value, kind, final)
        wide = value if kind == "float32" else self.convert(value)
        narrowed = self.dialect.narrowed
        return self._cast(narrowed[final], wide) if final in narrowed else wide

    def read(self, load: BufferLoad, kind: str) -> str:
        """Write an access in C, as a value of a dtype."""
        element = self.element(load)
        if str(load.tensor.dtype) in self.dialect.widened:
            return self._cast(self.dialect.widened[str(load.tensor.dtype)], element)
        return element if kind == "float32" else self.dialect.integer.format(element)

    def element(self, load: BufferLoad) -> str:
        """Write the element that an access reads."""
        where = {name: self.at.get(name, 0) for name in load.names}
        indices = [index.evaluate(where) for index in load.indices]
        place = element_at(load.tensor.shape, indices, self.dialect.wide)
        return f"{load.tensor.name}[{place}]"

    def combine(self, combiner: str, kind: str, first: str, second: str) -> str:
        """Write a sum, maximum or minimum of a variable and an expression; NaN stays NaN."""
        both = self._call(_COMBINERS[combiner], kind, [first, second])
        if combiner == "+" or kind != "float32":
            return both
        return self._call("unless_nan", kind, [first, both])

    def definitions(self) -> str:
        """Return the functions that the written text calls."""
        lines = [
            "// Integers wrap around; each operation on floats rounds once, and none is fused."
        ]
        for name, (kind, body) in self.dialect.functions.items():
            inline = self.dialect.inline
            lines.append(f"{inline} {kind} {name}({kind} a, {kind} b) {{ return {body}; }}")
        for name, text in self.dialect.rare.items():
            if name in self.operations:
                kind, parenthesis, body = text.partition("(")
                lines.append(f"{self.dialect.inline} {kind} {name}{parenthesis}{body}")
        return "\n".join([*lines, *self.functions.values(), ""])

    def widen(self, value: str, dtype: str) -> str:
        """Write an element of a dtype as a float."""
        return self._cast(self.dialect.widened.get(dtype, self.dialect.real), value)

    def convert(self, value: str) -> str:
        """Write an integer as a float."""
        return self.dialect.converted.format(value)

    def number(self, value: float, kind: str) -> str:
        """Write a constant."""
        return f"{np.float32(value)!s}f" if kind == "float32" else f"({int(value)})"

    def apply(self, name: str, kind: str, values: list[str]) -> str:
        """Write an operation."""
        if name == "round":
            return self.dialect.nearest.format(values[0])
        return self._call(name, kind, values)

    def call(self, function: Function, kind: str, values: list[str]) -> str:
        """Write a call of a function, which is defined at its first call."""
        if function.once:
            return str(inline_call(function, kind, values, self))
        text = self._call(function.name, kind, values)
        name = text.partition("(")[0]
        if name not in self.functions:
            body = function.compute([*function.parameters], kind, self)
            type_name = "int" if kind == "int32" else "float"
            parameters = ", ".join(f"{type_name} {each}" for each in function.parameters)
            inline = self.dialect.inline
            self.functions[name] = f"{inline} {type_name} {name}({parameters}) {{ return {body}; }}"
        return text

    def _cast(self, form: str, value: str) -> str:
        """Write a value in one of the dialect's forms, which may call a rare function."""
        self.operations.add(form.partition("(")[0])
        return form.format(value)

    def _call(self, name: str, kind: str, values: list[str]) -> str:
        name = f"{'f' if kind == 'float32' else 'i'}_{name.strip('_')}"
        self.operations.add(name)
        return f"{name}({', '.join(values)})"

    def round_to(self, value: str, kind: str, final: str) -> str:
        """Write a value rounded to a dtype, and clamped to an integer's limits."""
        if final in self.dialect.narrowed:
            narrow = self._cast(self.dialect.narrowed[final], value)
            return self._cast(self.dialect.widened[final], narrow)
        low, high = dtype(final).limits
        if kind == "float32":
            above = f"f_greater({value}, {low}.0f)"
            # Beyond the ends of an int32 the conversion itself stops at them.
            clamped = above if final == "int32" else f"f_less({above}, {high}.0f)"
            return self.dialect.nearest_integer.format(clamped)
        return value if final == "int32" else f"i_less(i_greater({value}, {low}), {high})"
