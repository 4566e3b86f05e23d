"""Elements of the output, gathered from accumulators by inverting an index of the output."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingType
from typing import Any

from amos._toolchain import tirx
from amos.codegen.tir.arrays import container_dtype
from amos.ir import Affine
from amos.plan.staging import StagedOperand


def select_value(conditions: Sequence[Any], value: Any, otherwise: Any) -> Any:
    """Select a value where all conditions hold, if there are any, and another elsewhere."""
    return tirx.if_then_else(tirx.all(*conditions), value, otherwise) if conditions else value


def gather(
    op: StagedOperand, finish: Callable[[Sequence[Any], MappingType[str, Any]], Any], *position: Any
) -> Any:
    """Compute an element of the output; ``finish`` makes it of a position and iterations."""
    operator = op.nest.mapping.operator
    at: dict[str, Any] = {}
    guards: list[Any] = []
    for index, where in zip(op.load.indices, position, strict=True):
        values, live = invert(index, where, operator.extents)
        at |= values
        guards += live
    for group in op.nest.groups.values():
        if group.kind != "spatial":
            continue
        fused: Any = 0
        for name, radix in zip(group.members, group.radices, strict=True):
            fused = fused * radix + at[name]
        at[group.tile] = fused // group.lanes if group.tiles > 1 else 0
        at[group.lane] = fused % group.lanes if group.tiles > 1 else fused
    # Loops of extent 1 have no variable; their value is zero.
    value = finish([dim.index.evaluate(defaultdict(int, at)) for dim in op.dims], at)
    return select_value(guards, value, tirx.const(0, container_dtype(str(operator.result_dtype))))


def invert(index: Affine, where: Any, extents: dict[str, int]) -> tuple[dict[str, Any], list[Any]]:
    """Return the iterations that write an output element, and conditions of its existence.

    Args:
        index: an index of the output: no coefficient is negative, and iterations of more
            than one step are digits of a mixed radix (checked by the operator).
        where: the element's coordinate.
    """
    is_sum = len(index.terms) > 1
    values: dict[str, Any] = {n: 0 for n in index.names if is_sum and extents[n] == 1}
    guards: list[Any] = []
    moving = (term for term in index.terms if term[0] not in values)
    terms = sorted(moving, key=lambda term: -term[1])
    remainder = where - index.constant if index.constant else where
    if index.constant:
        guards.append(remainder >= 0)
    for number, (name, c) in enumerate(terms):
        values[name] = remainder // c if c > 1 else remainder
        reach = sum(k * (extents[n] - 1) for n, k in terms[number + 1 :])
        if c > 1:
            remainder = remainder % c
            if number + 1 == len(terms) or reach < c - 1:
                guards.append(remainder <= reach)
        guards.append(values[name] < extents[name])
    if not terms:
        guards.append(where <= index.constant)
    return values, guards
