"""Reductions of the output by atomic operations, by one for lanes of a warp that meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from amos.codegen.device.arithmetic import TextArithmetic
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
    ("+=", "int32"): "atomicAdd",
    ("+=", "float32"): "atomicAdd",
    ("max=", "int32"): "atomicMax",
    ("min=", "int32"): "atomicMin",
    ("max=", "float32"): "f_raise",
    ("min=", "float32"): "f_lower",
}
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
    names = {_name_atomic(x, plan.accumulator) for x in list_reductions(plan.mapping.operator)}
    return _FLOATS.format(inline=INLINE) if names & {"f_raise", "f_lower"} else ""


def combine_element(result: Result, accumulator: str, place: str, at: Mapping[str, Value]) -> str:
    """Write the statement that combines an accumulator's value with an element."""
    return _put(result, accumulator, place, write_wide(result.epilogue, accumulator, at))


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
    combiner = result.combination.removesuffix("=")
    exchange = "__shfl_xor_sync(0xffffffffu, part, {bit})"
    join = TextArithmetic(CUDA, at).combine(combiner, kind, "part", exchange)
    first = f"!(lane & {sum(bits)})"
    lines = [
        f"{cuda_type(kind)} part = {value};",
        *(f"part = {join.format(bit=bit)};" for bit in bits),
        f"if ({f'{when} && ' if when else ''}{first}) {_put(result, accumulator, place, 'part')}",
    ]
    return ["{", *block(lines), "}"]


def _put(result: Result, accumulator: str, place: str, value: str) -> str:
    to = f"{name_sums(CUDA, result, accumulator)} + {place}"
    return f"{_name_atomic(result, accumulator)}({to}, {value});"


def _name_atomic(result: Result, accumulator: str) -> str:
    return _ATOMIC[result.combination, result.combination_dtype(accumulator)]


def element_blocks(plan: GpuPlan, *, ends: bool = False) -> int:
    """Count blocks of the kernel before, or after with ``ends``; 0 without one."""
    return -(-count_elements(plan.mapping.operator, ends=ends) // ELEMENT_THREADS)
