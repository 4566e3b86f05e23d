"""Reductions of the output: where their elements begin, and how they end.

Workers meet in an element of a reduction under most schedules, so that each puts its own to
it by an atomic operation. A first kernel stores the neutral value, and a last one applies the
expression of a finished reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

from amos.codegen.device.arithmetic import SUM, Dialect, write_result
from amos.codegen.device.text import block, result_at
from amos.ir import Operator, Result
from amos.ir.index_text import Value, variable
from amos.plan.device_plan import DevicePlan

#: Neutral values by sign and dtype; of floats the bits, if they are no number.
_NEUTRAL: dict[tuple[str, str], str | int] = {
    ("+=", "int32"): "0",
    ("+=", "float32"): "0.0f",
    ("max=", "int32"): "-2147483647 - 1",
    ("max=", "float32"): 0xFF800000,
    ("min=", "int32"): "2147483647",
    ("min=", "float32"): 0x7F800000,
}


def list_reductions(operator: Operator, *, ends: bool = False) -> list[Result]:
    """List the reductions of an operator, or those that are finished by an expression."""
    return [x for x in operator.further if x.reduces and (x.last is not None or not ends)]


def count_elements(operator: Operator, *, ends: bool = False) -> int:
    """Return the elements of the largest reduction, with ``ends`` of those that are finished."""
    reductions = list_reductions(operator, ends=ends)
    return max((prod(_stored_extents(operator, x).values()) for x in reductions), default=0)


def neutral_value(dialect: Dialect, result: Result, accumulator: str) -> str:
    """Write what a reduction's element is before anything is put to it."""
    value = _NEUTRAL[result.combination, result.combination_dtype(accumulator)]
    return value if isinstance(value, str) else dialect.from_bits.format(f"{value:#x}u")


def name_sums(dialect: Dialect, result: Result, accumulator: str) -> str:
    """Name the buffer of a reduction: the result, of as many bytes."""
    kind, name = result.combination_dtype(accumulator), result.store.tensor.name
    same = kind == result.tensor(accumulator).dtype
    return name if same else dialect.pointer.format(_type(kind), name)


def start_elements(plan: DevicePlan, dialect: Dialect) -> list[str]:
    """Write the kernel before: each thread initializes an element of each reduction."""

    def start(result: Result, place: str, _: Mapping[str, Value]) -> str:
        neutral = neutral_value(dialect, result, plan.accumulator)
        return f"{name_sums(dialect, result, plan.accumulator)}[{place}] = {neutral};"

    return _by_threads(plan, dialect, list_reductions(plan.mapping.operator), start)


def end_elements(plan: DevicePlan, dialect: Dialect) -> list[str]:
    """Write the kernel after: each thread finishes an element of each reduction."""

    def end(result: Result, place: str, at: Mapping[str, Value]) -> str:
        assert result.last is not None
        kind = result.combination_dtype(plan.accumulator)
        sums = name_sums(dialect, result, plan.accumulator)
        value = write_result(dialect, result.last, kind, at)
        whole = f"const {_type(kind)} {SUM} = {sums}[{place}];"
        return f"{{ {whole} {result.store.tensor.name}[{place}] = {value}; }}"

    return _by_threads(plan, dialect, list_reductions(plan.mapping.operator, ends=True), end)


def _by_threads(
    plan: DevicePlan,
    dialect: Dialect,
    results: Iterable[Result],
    statement: Callable[[Result, str, Mapping[str, Value]], str],
) -> list[str]:
    """Write a statement for each element of results, by its place and its iterations."""
    lines = [f"const int thread = {dialect.thread};"]
    for result in results:
        extents = _stored_extents(plan.mapping.operator, result)
        at, size = dict[str, Value](), prod(extents.values())
        remaining = variable("thread", size)
        for name, extent in reversed(extents.items()):
            at[name], remaining = remaining % extent, remaining // extent
        place = result_at(result.store, at, dialect.wide)
        lines.append(f"if (thread < {size}) {statement(result, place, at)}")
    return block(lines)


def _type(kind: str) -> str:
    return "int" if kind == "int32" else "float"


def _stored_extents(operator: Operator, result: Result) -> dict[str, int]:
    return {it.name: it.extent for it in operator.spatial if it.name in result.store.names}
