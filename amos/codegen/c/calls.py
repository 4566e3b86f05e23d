"""The C implementation of an intrinsic, called by the C of a kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping

from amos.intrinsics import Implementation, Intrinsic

#: C type of an operand's element; types that C lacks are moved as bits.
OPERAND_TYPES = {
    "uint8": "uint8_t",
    "int8": "int8_t",
    "uint16": "uint16_t",
    "int16": "int16_t",
    "uint32": "uint32_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "float32": "float",
    "tfloat32": "float",
    "float64": "double",
}
#: Types that a kernel holds as another C type than the function takes.
ALIASED = ("float16",)


def function_name(intrinsic: Intrinsic) -> str:
    """Return the name of an intrinsic's function in C.

    >>> from amos import intrinsics
    >>> function_name(intrinsics.get("avx2_fmadd_m8_f32_f32"))
    'call_avx2_fmadd_m8_f32_f32'
    """
    return "call_" + re.sub(r"\W", "_", intrinsic.name, flags=re.ASCII)


def parameters(unit: Intrinsic, types: Mapping[str, str], qualifier: str = "") -> str:
    """List the parameters of a function of the operands, sources first."""
    return ", ".join(
        f"{qualifier}{'' if load is unit.destination else 'const '}"
        f"{types.get(unit.staged_dtype(load.tensor.name), 'unsigned char')} *{load.tensor.name}"
        for load in unit.operands
    )


def function_text(intrinsic: Intrinsic, source: Implementation) -> str:
    """Write the implementation as a function of pointers to fragments, sources first."""
    arguments = parameters(intrinsic, OPERAND_TYPES)
    headers = f"{source.headers.strip()}\n" if source.headers.strip() else ""
    return f"""{headers}static inline void {function_name(intrinsic)}({arguments}) {{
{source.source.strip()}
}}
"""
