"""What becomes of an accumulator before it is stored, as CUDA C++.

The arithmetic is that of :mod:`amos.ir.epilogue`, bit for bit: intrinsics that round
once and that no compiler fuses, and integers that wrap around.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from amos.codegen.cuda.copies import element_at
from amos.codegen.cuda.expression import Value
from amos.codegen.cuda.text import INLINE
from amos.ir import BufferLoad, dtype
from amos.plan.gpu_plan import GpuPlan

__all__ = ["SUM", "epilogue_helpers", "finished"]

#: What the accumulator is called where it is stored.
SUM = "sum"
_FUNCTIONS = {
    "i_add": ("int", "static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b))"),
    "i_subtract": ("int", "static_cast<int>(static_cast<unsigned>(a) - static_cast<unsigned>(b))"),
    "i_multiply": ("int", "static_cast<int>(static_cast<unsigned>(a) * static_cast<unsigned>(b))"),
    "i_max": ("int", "a > b ? a : b"),
    "i_min": ("int", "a < b ? a : b"),
    "f_add": ("float", "__fadd_rn(a, b)"),
    "f_subtract": ("float", "__fsub_rn(a, b)"),
    "f_multiply": ("float", "__fmul_rn(a, b)"),
    "f_max": ("float", "a > b ? a : b"),
    "f_min": ("float", "a < b ? a : b"),
}


def epilogue_helpers(plan: GpuPlan) -> str:
    """The functions of an epilogue's arithmetic; nothing if there is none."""
    if plan.mapping.operator.epilogue is None:
        return ""
    lines = ["// Integers wrap around; each operation on floats rounds once, and none is fused."]
    for name, (kind, body) in _FUNCTIONS.items():
        lines.append(f"{INLINE} {kind} {name}({kind} a, {kind} b) {{ return {body}; }}")
    return "\n".join([*lines, ""])


def finished(plan: GpuPlan, at: Mapping[str, Value]) -> str:
    """C text of what is stored for the accumulator :data:`SUM`.

    Args:
        plan: a kernel of an operator with an epilogue.
        at: the spatial iterations of the element.
    """
    op = plan.mapping.operator
    assert op.epilogue is not None
    kind = plan.accumulator
    value = op.epilogue.compute(SUM, kind, _InCuda(at))
    return _stored(value, op.epilogue.expression.kind(kind), plan.stored_dtype)


class _InCuda:
    """Expressions of C; see :class:`amos.ir.epilogue.Arithmetic`."""

    def __init__(self, at: Mapping[str, Value]) -> None:
        self.at = at

    def number(self, value: float, kind: str) -> str:
        return f"{np.float32(value)!s}f" if kind == "float32" else f"({int(value)})"

    def read(self, load: BufferLoad, kind: str) -> str:
        known = {name: self.at.get(name, 0) for name in load.names}
        place = element_at(load.tensor.shape, [index.evaluate(known) for index in load.indices])
        element = f"{load.tensor.name}[{place}]"
        if str(load.tensor.dtype) == "bfloat16":
            return f"__bfloat162float({element})"
        return element if kind == "float32" else f"static_cast<int>({element})"

    def convert(self, value: str) -> str:
        return f"__int2float_rn({value})"

    def apply(self, name: str, kind: str, values: list[str]) -> str:
        if name == "round":
            return f"rintf({values[0]})"
        return f"{'f' if kind == 'float32' else 'i'}_{name}({', '.join(values)})"


def _stored(value: str, computed: str, kind: str) -> str:
    """A value of kind ``computed`` as an element of type ``kind``: rounded and clamped."""
    if not dtype(kind).is_integer:
        wide = value if computed == "float32" else f"__int2float_rn({value})"
        return f"__float2bfloat16_rn({wide})" if kind == "bfloat16" else wide
    low, high = dtype(kind).limits
    if computed == "float32":
        above = f"f_max({value}, {low}.0f)"
        # Beyond the ends of an int32 the conversion itself stops at them.
        value = f"__float2int_rn({above if kind == 'int32' else f'f_min({above}, {high}.0f)'})"
    elif kind != "int32":
        value = f"i_min(i_max({value}, {low}), {high})"
    return value
