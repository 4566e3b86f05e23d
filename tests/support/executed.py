"""Scheduled TensorIR, run without its data: which blocks, products and fetches, how often."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

_OPERATIONS: Mapping[str, Any] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Min": min,
    "Max": max,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "And": lambda a, b: a and b,
    "Or": lambda a, b: a or b,
}
#: Calls that are events: a piece of what they are printed as, and the event.
_CALLS = {"x86.tdp": "multiply", "tirx.prefetch": "fetch"}


@dataclass(frozen=True)
class Step:
    """One step of a loop.

    Attributes:
        loop: which one; two loops may have one name.
        number: of the step.
        parallel: whether other cores may run other steps.
    """

    loop: int
    number: int
    parallel: bool


@dataclass(frozen=True)
class Event:
    """One execution of a block, a multiplication of tiles or a fetch.

    Attributes:
        name: of the block; ``"multiply"`` or ``"fetch"``.
        steps: of the loops around it, from the outermost inward.
        lanes: elements of a vector.
    """

    name: str
    steps: tuple[Step, ...] = ()
    lanes: int = 1


def run_loops(function: Any) -> list[Event]:
    """The events of a scheduled function in order; blocks are not entered but the root."""
    return list(_run(function.body, {}, Event("")))


def _run(stmt: Any, values: dict[Any, int], at: Event) -> Iterator[Event]:
    kind = type(stmt).__name__
    if kind == "SBlockRealize":
        if stmt.block.name_hint == "root":
            yield from _run(stmt.block.body, values, at)
        else:
            yield replace(at, name=stmt.block.name_hint)
    elif kind == "SeqStmt":
        for inner in stmt.seq:
            yield from _run(inner, values, at)
    elif kind == "AttrStmt":
        yield from _run(stmt.body, values, at)
    elif kind == "IfThenElse":
        branch = stmt.then_case if _value(stmt.condition, values) else stmt.else_case
        if branch is not None:
            yield from _run(branch, values, at)
    elif kind == "For":
        yield from _run_loop(stmt, values, at)
    else:
        text = str(stmt.value)
        yield from (replace(at, name=name) for call, name in _CALLS.items() if call in text)


def _run_loop(loop: Any, values: dict[Any, int], at: Event) -> Iterator[Event]:
    from tvm import tirx

    extent = _value(loop.extent, values)
    if loop.kind == tirx.ForKind.VECTORIZED:
        vector = replace(at, lanes=at.lanes * extent)
        yield from _run(loop.body, values | {loop.loop_var: 0}, vector)
        return
    for number in range(extent):
        step = Step(hash(loop.loop_var), number, loop.kind == tirx.ForKind.PARALLEL)
        inner = replace(at, steps=(*at.steps, step))
        yield from _run(loop.body, values | {loop.loop_var: number}, inner)


def _value(expression: Any, values: dict[Any, int]) -> int:
    kind = type(expression).__name__
    if kind in ("int", "IntImm"):
        return int(expression)
    if kind == "Var":
        return values[expression]
    result: int = _OPERATIONS[kind](_value(expression.a, values), _value(expression.b, values))
    return result
