"""Reductions of the output: where their elements begin, and how one takes up another.

Blocks meet in an element of a reduction under most schedules, so that each puts its own to
it by an atomic operation. What changes nothing is stored before, by a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from amos.codegen.cuda.epilogue import widened
from amos.codegen.cuda.expression import Value, variable
from amos.codegen.cuda.text import INLINE, block, element_at
from amos.ir import Result
from amos.plan.gpu_plan import GpuPlan

#: Threads of a block of the kernel that stands before.
START_THREADS = 256
#: What changes no element that it is put to, by sign and dtype.
_NEUTRAL = {
    ("+=", "int32"): "0",
    ("+=", "float32"): "0.0f",
    ("max=", "int32"): "-2147483647 - 1",
    ("max=", "float32"): "__uint_as_float(0xff800000u)",
    ("min=", "int32"): "2147483647",
    ("min=", "float32"): "__uint_as_float(0x7f800000u)",
}
_ATOMIC = {
    ("max=", "int32"): "atomicMax",
    ("min=", "int32"): "atomicMin",
    ("max=", "float32"): "f_raise",
    ("min=", "float32"): "f_lower",
}
#: Bits of floats are in order as integers, those of negative ones in the opposite order.
_FLOATS = """// The larger or the smaller of two floats, in one element for all threads.
{inline} void f_raise(float *to, float value) {{
  const unsigned bits = __float_as_uint(value);
  if (bits >> 31) atomicMin(reinterpret_cast<unsigned *>(to), bits);
  else atomicMax(reinterpret_cast<int *>(to), static_cast<int>(bits));
}}
{inline} void f_lower(float *to, float value) {{
  const unsigned bits = __float_as_uint(value);
  if (bits >> 31) atomicMax(reinterpret_cast<unsigned *>(to), bits);
  else atomicMin(reinterpret_cast<int *>(to), static_cast<int>(bits));
}}
"""


def reduction_helpers(plan: GpuPlan) -> str:
    """Functions that :func:`combined` calls; nothing if there are none."""
    names = {_ATOMIC.get(_kind(plan, each)) for each in _reductions(plan)}
    return _FLOATS.format(inline=INLINE) if names & {"f_raise", "f_lower"} else ""


def combined(result: Result, accumulator: str, to: str, at: Mapping[str, Value]) -> str:
    """The statement that puts what becomes of an accumulator to an element.

    Args:
        result: a reduction.
        accumulator: dtype of the accumulator.
        to: C text of the element's address.
        at: the spatial iterations of the accumulator.
    """
    kind = result.combination, str(result.tensor(accumulator).dtype)
    name = _ATOMIC.get(kind, "atomicAdd")
    return f"{name}({to}, {widened(result.epilogue, accumulator, at)});"


def start_blocks(plan: GpuPlan) -> int:
    """Blocks of the kernel that stands before; 0 if nothing does."""
    sizes = [prod(_kept(plan, result).values()) for result in _reductions(plan)]
    return -(-max(sizes, default=0) // START_THREADS)


def start_code(plan: GpuPlan) -> list[str]:
    """Its body: an element of each reduction by each thread."""
    lines = [f"const int thread = static_cast<int>(blockIdx.x) * {START_THREADS} + threadIdx.x;"]
    for result in _reductions(plan):
        extents, at = _kept(plan, result), {}
        size = prod(extents.values())
        rest = variable("thread", size)
        for name, extent in reversed(extents.items()):
            at[name], rest = rest % extent, rest // extent
        tensor, value = result.store.tensor, _NEUTRAL[_kind(plan, result)]
        place = element_at(tensor.shape, result.store.at(at))
        lines.append(f"if (thread < {size}) {tensor.name}[{place}] = {value};")
    return block(lines)


def _reductions(plan: GpuPlan) -> list[Result]:
    return [result for result in plan.mapping.operator.further if result.reduces]


def _kind(plan: GpuPlan, result: Result) -> tuple[str, str]:
    return result.combination, str(result.tensor(plan.accumulator).dtype)


def _kept(plan: GpuPlan, result: Result) -> dict[str, int]:
    """Extents of the iterations that index a reduction."""
    spatial = plan.mapping.operator.spatial
    return {it.name: it.extent for it in spatial if it.name in result.store.names}
