"""Reductions of the output by atomic operations, by one for lanes of a warp that meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from amos.codegen.device.reductions import (
    count_elements,
    list_reductions,
    name_sums,
    neutral_value,
)
from amos.codegen.device.text import block
from amos.cuda.codegen.epilogue import CUDA, write_wide
from amos.cuda.codegen.text import ELEMENT_THREADS, INLINE, cuda_type
from amos.cuda.plan import GpuPlan
from amos.ir import Result
from amos.ir.index_text import Value

_ATOMIC = {
    ("max=", "int32"): "atomicMax",
    ("min=", "int32"): "atomicMin",
    ("max=", "float32"): "f_raise",
    ("min=", "float32"): "f_lower",
}
_JOINS = {"+=": "add", "max=": "greater", "min=": "less"}
#: Bits of floats are in order as integers, those of negative ones in the opposite order. NaN
#: stands at the end of that order which wins.
_FLOATS = """// The larger or the smaller of two floats, in one element for all threads.
{inline} void f_raise(float *to, float value) {{
  const unsigned bits = value != value ? 0x7fffffffu : __float_as_uint(value);
  if (bits >> 31) atomicMin(reinterpret_cast<unsigned *>(to), bits);
  else atomicMax(reinterpret_cast<int *>(to), static_cast<int>(bits));
}}
{inline} void f_lower(float *to, float value) {{
  const unsigned bits = value != value ? 0xffffffffu : __float_as_uint(value);
  if (bits >> 31) atomicMax(reinterpret_cast<unsigned *>(to), bits);
  else atomicMin(reinterpret_cast<int *>(to), static_cast<int>(bits));
}}
"""


def reduction_helpers(plan: GpuPlan) -> str:
    """Write the functions that :func:`combine_element` calls, if any."""
    kinds = (
        (x.combination, x.combination_dtype(plan.accumulator))
        for x in list_reductions(plan.mapping.operator)
    )
    names = {*map(_ATOMIC.get, kinds)}
    return _FLOATS.format(inline=INLINE) if names & {"f_raise", "f_lower"} else ""


def combine_element(result: Result, accumulator: str, place: str, at: Mapping[str, Value]) -> str:
    """Write the statement that combines an accumulator's value with an element."""
    name = _ATOMIC.get((result.combination, result.combination_dtype(accumulator)), "atomicAdd")
    to = f"{name_sums(CUDA, result, accumulator)} + {place}"
    return f"{name}({to}, {write_wide(result.epilogue, accumulator, at)});"


def combine_lanes(
    result: Result,
    accumulator: str,
    place: str,
    at: Mapping[str, Value],
    when: str,
    bits: Sequence[int],
) -> list[str]:
    """Combine the values that lanes have for one element, and the result with it."""
    kind = result.combination_dtype(accumulator)
    own = write_wide(result.epilogue, accumulator, at)
    value = f"{when} ? {own} : {neutral_value(CUDA, result, accumulator)}" if when else own
    join = f"{'i' if kind == 'int32' else 'f'}_{_JOINS[result.combination]}"
    first = f"!(lane & {sum(bits)})"
    name = _ATOMIC.get((result.combination, kind), "atomicAdd")
    lines = [f"{cuda_type(kind)} part = {value};"]
    exchange = "__shfl_xor_sync(0xffffffffu, part, {bit})"
    value = f"{join}(part, {exchange})"
    if kind == "float32" and result.combination != "+=":
        value = f"f_unless_nan(part, {value})"
    lines += [f"part = {value.format(bit=bit)};" for bit in bits]
    lines.append(
        f"if ({f'{when} && ' if when else ''}{first}) "
        f"{name}({name_sums(CUDA, result, accumulator)} + {place}, part);"
    )
    return ["{", *block(lines), "}"]


def element_blocks(plan: GpuPlan, *, ends: bool = False) -> int:
    """Count blocks of the kernel before, or after with ``ends``; 0 without one."""
    return -(-count_elements(plan.mapping.operator, ends=ends) // ELEMENT_THREADS)
