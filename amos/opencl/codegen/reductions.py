"""Reductions of the output by atomic operations, by one for elements of a vector that meet."""

from __future__ import annotations

from collections.abc import Mapping

from amos.codegen.device.arithmetic import TextArithmetic, write_wide
from amos.codegen.device.reductions import list_reductions, name_sums, neutral_value
from amos.ir import Operator, Result
from amos.ir.index_text import Value
from amos.opencl.codegen.text import OPENCL
from amos.opencl.plan import TYPES

_ATOMIC = {
    ("+=", "int32"): "atomic_add",
    ("max=", "int32"): "atomic_max",
    ("min=", "int32"): "atomic_min",
    ("+=", "float32"): "f_increase",
    ("max=", "float32"): "f_raise",
    ("min=", "float32"): "f_lower",
}
#: Bits of floats are in order as integers, those of negative ones in the opposite order. NaN
#: stands at the end of that order which wins.
_FLOATS = {
    "f_increase": """static void f_increase(volatile __global float *to, float value) {
  volatile __global int *const bits = (volatile __global int *)to;
  int old = *bits, seen;
  do {
    seen = old;
    old = atomic_cmpxchg(bits, seen, as_int(as_float(seen) + value));
  } while (old != seen);
}
""",
    "f_raise": """static void f_raise(volatile __global float *to, float value) {
  const uint bits = value != value ? 0x7fffffffu : as_uint(value);
  if (bits >> 31) atomic_min((volatile __global uint *)to, bits);
  else atomic_max((volatile __global int *)to, as_int(bits));
}
""",
    "f_lower": """static void f_lower(volatile __global float *to, float value) {
  const uint bits = value != value ? 0xffffffffu : as_uint(value);
  if (bits >> 31) atomic_max((volatile __global uint *)to, bits);
  else atomic_min((volatile __global int *)to, as_int(bits));
}
""",
}


def reduction_helpers(operator: Operator, accumulator: str) -> str:
    """Write the functions that :func:`combine_element` calls, if any."""
    names = {_name_atomic(each, accumulator) for each in list_reductions(operator)}
    return "".join(text for name, text in _FLOATS.items() if name in names)


def combine_element(result: Result, accumulator: str, place: str, value: str) -> str:
    """Write the statement that combines a value with an element of a reduction."""
    to = f"{name_sums(OPENCL, result, accumulator)} + {place}"
    return f"{_name_atomic(result, accumulator)}({to}, {value});"


def start_part(result: Result, accumulator: str, name: str) -> str:
    """Declare the combination of a vector's elements."""
    kind = TYPES[result.combination_dtype(accumulator)]
    return f"{kind} {name} = {neutral_value(OPENCL, result, accumulator)};"


def combine_part(result: Result, accumulator: str, name: str, at: Mapping[str, Value]) -> str:
    """Write the statement that combines an accumulator's value with that of other elements."""
    kind, combiner = result.combination_dtype(accumulator), result.combination.removesuffix("=")
    own = write_wide(OPENCL, result.epilogue, accumulator, at)
    return f"{name} = {TextArithmetic(OPENCL, at).combine(combiner, kind, name, own)};"


def _name_atomic(result: Result, accumulator: str) -> str:
    return _ATOMIC[result.combination, result.combination_dtype(accumulator)]
