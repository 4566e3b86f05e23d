"""Epilogues of accumulators and prologues of sources, as CUDA.

The arithmetic is that of :mod:`amos.ir.epilogue`, bit for bit: intrinsics that round
once and that no compiler fuses, and integers that wrap around.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from amos.cuda.codegen.text import INLINE, element_at
from amos.cuda.plan import GpuPlan
from amos.ir import BufferLoad, Prologue, dtype
from amos.ir.epilogue import Epilogue
from amos.ir.expression import Function, inlined
from amos.ir.index_text import Value

#: Name of the accumulator where it is stored.
SUM = "sum"
_FUNCTIONS = {
    "i_add": ("int", "static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b))"),
    "i_subtract": ("int", "static_cast<int>(static_cast<unsigned>(a) - static_cast<unsigned>(b))"),
    "i_multiply": ("int", "static_cast<int>(static_cast<unsigned>(a) * static_cast<unsigned>(b))"),
    "i_greater": ("int", "a > b ? a : b"),
    "i_less": ("int", "a < b ? a : b"),
    "f_add": ("float", "__fadd_rn(a, b)"),
    "f_subtract": ("float", "__fsub_rn(a, b)"),
    "f_multiply": ("float", "__fmul_rn(a, b)"),
    "f_greater": ("float", "a > b ? a : b"),
    "f_less": ("float", "a < b ? a : b"),
    "f_unless_nan": ("float", "a != a ? a : b"),
}
#: Rarer ones, which are defined only where they are called.
_MORE = {
    "i_shift": "int a, int b) { return a >> b; }",
    "f_divide": "float a, float b) { return __fdiv_rn(a, b); }",
    "f_sqrt": "float a) { return __fsqrt_rn(a); }",
    "f_fma": "float a, float b, float c) { return __fmaf_rn(a, b, c); }",
    # The lowest bits of such a sum are the exponent of a float.
    "f_pow2": "float a) { return __uint_as_float(__float_as_uint("
    "__fadd_rn(a, 12583039.0f)) << 23); }",
    "f_exponent": "float a) { return float(int(__float_as_uint(a) >> 23) - 127); }",
    "f_choose": "float a, float b, float c, float d) { return a > b ? c : d; }",
}
#: Functions that narrow a float to a shorter one, and that widen it again.
_NARROWED = {"bfloat16": "__float2bfloat16_rn", "float16": "__float2half_rn"}
_WIDENED = {"bfloat16": "__bfloat162float", "float16": "__half2float"}


def epilogue_helpers(plan: GpuPlan) -> str:
    """The functions of an epilogue's and a prologue's arithmetic; nothing if there is none."""
    op = plan.mapping.operator
    if not op.epilogues and not op.prologues:
        return ""
    by = _InCuda({})
    if op.epilogue is not None:
        by.finished(op.epilogue, plan.accumulator)
    for result in op.further:
        by.finished(result.epilogue, plan.accumulator)
        if result.last is not None:
            by.finished(result.last, result.combination_dtype(plan.accumulator))
    for prologue in op.prologues:
        by.computed(prologue)
    lines = ["// Integers wrap around; each operation on floats rounds once, and none is fused."]
    for name, (kind, body) in _FUNCTIONS.items():
        lines.append(f"{INLINE} {kind} {name}({kind} a, {kind} b) {{ return {body}; }}")
    for name, text in _MORE.items():
        if name in by.operations:
            lines.append(f"{INLINE} {text.partition(' ')[0]} {name}({text}")
    return "\n".join([*lines, *by.functions.values(), ""])


def finished(epilogue: Epilogue, accumulator: str, at: Mapping[str, Value]) -> str:
    """C text of what is stored for the accumulator :data:`SUM`.

    Args:
        epilogue: what it becomes.
        accumulator: its dtype.
        at: the spatial iterations of the element.
    """
    return _InCuda(at).finished(epilogue, accumulator)


def widened(epilogue: Epilogue, accumulator: str, at: Mapping[str, Value]) -> str:
    """C of an expression as :func:`finished` writes it, as ``int`` or ``float``."""
    by, final = _InCuda(at), epilogue.result(accumulator)
    value, kind = epilogue.compute(SUM, accumulator, by), epilogue.kind(accumulator)
    if final == "float32":
        return value if kind == "float32" else by.convert(value)
    return by.rounded(value, kind, final)


def computed(prologue: Prologue, at: Mapping[str, Value]) -> str:
    """C text of one element of a source that is computed.

    Args:
        prologue: what it is computed of.
        at: where it is along the prologue's dimensions.
    """
    return _InCuda(at).computed(prologue)


class _InCuda:
    """Expressions of C++; see :class:`amos.ir.expression.Arithmetic`.

    ``f_add`` adds floats and ``i_add`` integers. Functions that the language defines are
    functions here as well.

    Args:
        at: the spatial iterations of the element.

    Attributes:
        operations: names of the operations that are called.
        functions: definition of each function that is called, after those that it calls.
    """

    def __init__(self, at: Mapping[str, Value]) -> None:
        self.at = at
        self.operations: set[str] = set()
        self.functions: dict[str, str] = {}

    def finished(self, epilogue: Epilogue, kind: str) -> str:
        """C of the value stored for an accumulator of that dtype."""
        value = epilogue.compute(SUM, kind, self)
        return self._stored(value, epilogue.kind(kind), epilogue.result(kind))

    def computed(self, prologue: Prologue) -> str:
        """C of the staged value of a source."""
        return self._stored(prologue.compute(self), prologue.kind, prologue.dtype)

    def _stored(self, value: str, kind: str, final: str) -> str:
        if dtype(final).is_integer:
            return self.rounded(value, kind, final)
        wide = value if kind == "float32" else self.convert(value)
        return f"{_NARROWED[final]}({wide})" if final in _NARROWED else wide

    def read(self, load: BufferLoad, kind: str) -> str:
        where = {name: self.at.get(name, 0) for name in load.names}
        place = element_at(load.tensor.shape, [index.evaluate(where) for index in load.indices])
        element = f"{load.tensor.name}[{place}]"
        if str(load.tensor.dtype) in _WIDENED:
            return f"{_WIDENED[str(load.tensor.dtype)]}({element})"
        return element if kind == "float32" else f"static_cast<int>({element})"

    def widened(self, value: str, dtype: str) -> str:
        return f"{_WIDENED.get(dtype, 'static_cast<float>')}({value})"

    def convert(self, value: str) -> str:
        return f"__int2float_rn({value})"

    def number(self, value: float, kind: str) -> str:
        return f"{np.float32(value)!s}f" if kind == "float32" else f"({int(value)})"

    def apply(self, name: str, kind: str, values: list[str]) -> str:
        return f"rintf({values[0]})" if name == "round" else self._called(name, kind, values)

    def call(self, function: Function, kind: str, values: list[str]) -> str:
        if function.once:
            return str(inlined(function, kind, values, self))
        text = self._called(function.name, kind, values)
        name = text.partition("(")[0]
        if name not in self.functions:
            body = function.applied([*function.parameters], kind, self)
            type_name = "int" if kind == "int32" else "float"
            parameters = ", ".join(f"{type_name} {each}" for each in function.parameters)
            self.functions[name] = f"{INLINE} {type_name} {name}({parameters}) {{ return {body}; }}"
        return text

    def _called(self, name: str, kind: str, values: list[str]) -> str:
        name = f"{'f' if kind == 'float32' else 'i'}_{name.strip('_')}"
        self.operations.add(name)
        return f"{name}({', '.join(values)})"

    def rounded(self, value: str, kind: str, final: str) -> str:
        if final in _NARROWED:
            return f"{_WIDENED[final]}({_NARROWED[final]}({value}))"
        low, high = dtype(final).limits
        if kind == "float32":
            above = f"f_greater({value}, {low}.0f)"
            # Beyond the ends of an int32 the conversion itself stops at them.
            clamped = above if final == "int32" else f"f_less({above}, {high}.0f)"
            return f"__float2int_rn({clamped})"
        return value if final == "int32" else f"i_less(i_greater({value}, {low}), {high})"
