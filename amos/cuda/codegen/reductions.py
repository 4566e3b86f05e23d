"""Reductions of the output: where their elements begin, how one takes up another, and ends.

Blocks meet in an element of a reduction under most schedules, so that each puts its own to
it by an atomic operation, lanes of a warp that meet in one together. A first kernel stores the
neutral value, and a last one applies the expression of a finished reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

from amos.codegen.device.arithmetic import SUM
from amos.codegen.device.text import block, result_at
from amos.cuda.codegen.epilogue import write_result, write_wide
from amos.cuda.codegen.text import INLINE, cuda_type
from amos.cuda.plan import GpuPlan
from amos.ir import Result
from amos.ir.index_text import Value, variable

#: Threads of a block of the kernels that run before and behind the main one.
ELEMENT_THREADS = 256
#: Neutral values, by sign and dtype.
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
    kinds = {(x.combination, x.combination_dtype(plan.accumulator)) for x in _reductions(plan)}
    names = {_ATOMIC.get(kind) for kind in kinds}
    return _FLOATS.format(inline=INLINE) if names & {"f_raise", "f_lower"} else ""


def combine_element(result: Result, accumulator: str, place: str, at: Mapping[str, Value]) -> str:
    """Write the statement that combines an accumulator's value with an element."""
    name = _ATOMIC.get((result.combination, result.combination_dtype(accumulator)), "atomicAdd")
    to = f"{_sums(result, accumulator)} + {place}"
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
    value = f"{when} ? {own} : {_NEUTRAL[result.combination, kind]}" if when else own
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
        f"{name}({_sums(result, accumulator)} + {place}, part);"
    )
    return ["{", *block(lines), "}"]


def element_blocks(plan: GpuPlan, *, ends: bool = False) -> int:
    """Count blocks of the kernel before, or after with ``ends``; 0 without one."""
    sizes = [prod(_stored_extents(plan, result).values()) for result in _reductions(plan, ends)]
    return -(-max(sizes, default=0) // ELEMENT_THREADS)


def start_code(plan: GpuPlan) -> list[str]:
    """Write the kernel before: each thread initializes an element of each reduction."""

    def start(result: Result, place: str, _: Mapping[str, Value]) -> str:
        neutral = _NEUTRAL[result.combination, result.combination_dtype(plan.accumulator)]
        return f"{_sums(result, plan.accumulator)}[{place}] = {neutral};"

    return _by_threads(plan, _reductions(plan), start)


def end_code(plan: GpuPlan) -> list[str]:
    """Write the kernel after: each thread finishes an element of each reduction."""

    def end(result: Result, place: str, at: Mapping[str, Value]) -> str:
        assert result.last is not None
        kind = result.combination_dtype(plan.accumulator)
        whole = f"const {cuda_type(kind)} {SUM} = {_sums(result, plan.accumulator)}[{place}];"
        value = write_result(result.last, kind, at)
        return f"{{ {whole} {result.store.tensor.name}[{place}] = {value}; }}"

    return _by_threads(plan, _reductions(plan, ends=True), end)


def _by_threads(
    plan: GpuPlan,
    results: Iterable[Result],
    statement: Callable[[Result, str, Mapping[str, Value]], str],
) -> list[str]:
    """Write a statement for each element of results, by its place and its iterations."""
    lines = [f"const int thread = static_cast<int>(blockIdx.x) * {ELEMENT_THREADS} + threadIdx.x;"]
    for result in results:
        extents, at = _stored_extents(plan, result), dict[str, Value]()
        size = prod(extents.values())
        remaining = variable("thread", size)
        for name, extent in reversed(extents.items()):
            at[name], remaining = remaining % extent, remaining // extent
        place = result_at(result.store, at)
        lines.append(f"if (thread < {size}) {statement(result, place, at)}")
    return block(lines)


def _sums(result: Result, accumulator: str) -> str:
    """Name the buffer of a reduction: the result, of as many bytes."""
    kind, name = result.combination_dtype(accumulator), result.store.tensor.name
    same = kind == result.tensor(accumulator).dtype
    return name if same else f"reinterpret_cast<{cuda_type(kind)} *>({name})"


def _reductions(plan: GpuPlan, ends: bool = False) -> list[Result]:
    """List the reductions, or those that are finished."""
    further = plan.mapping.operator.further
    return [each for each in further if each.reduces and (each.last is not None or not ends)]


def _stored_extents(plan: GpuPlan, result: Result) -> dict[str, int]:
    spatial = plan.mapping.operator.spatial
    return {it.name: it.extent for it in spatial if it.name in result.store.names}
