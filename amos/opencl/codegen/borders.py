"""Conditions under which a work-item, or a group, reads and stores nothing beyond a border."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from amos.codegen.device.access import loop_values
from amos.codegen.device.text import identifier
from amos.ir.index_text import Value, text, upper_bound, variable
from amos.opencl.groups import VectorFragment
from amos.opencl.plan import OpenClPlan


def loop_steps(plan: OpenClPlan, tile_step: int | None = None) -> dict[str, Value]:
    """Return the steps of a work-item's fragment in the group by spatial loop, or variables."""
    steps: dict[str, Value] = {}
    for loop in plan.spatial:
        name, tile = identifier(loop.name), plan.schedule.tile[loop.name]
        own = variable(f"item_{name}", plan.schedule.items[loop.name])
        step = variable(f"t_{name}", tile) if tile_step is None else tile_step
        steps[loop.name] = plan.step(loop.name, own, step)
    return steps


def list_read_conditions(
    plan: OpenClPlan, source: VectorFragment, *, of_group: bool = False
) -> list[str]:
    """Write conditions that a work-item, or a group, reads no border of a source.

    Each index of the tensor lies between two values that the steps do not change.
    """
    load, extents = source.staged.load, plan.mapping.operator.extents
    sides = [name for name in source.staged.fragment if _is_indexed_by(source, name)]
    steps = {} if of_group else loop_steps(plan, tile_step=0)
    spans = plan.spans if of_group else plan.reach
    firsts, _ = loop_values(plan, steps, source.loops)
    lowest: dict[str, Value] = dict.fromkeys(extents, 0)
    highest: dict[str, Value] = {name: extent - 1 for name, extent in extents.items()}
    for loop in firsts.keys() & extents.keys():
        lowest[loop], highest[loop] = firsts[loop], firsts[loop] + (spans[loop] - 1)
    conditions = _end_conditions(plan, sides, firsts, spans)
    for index, size in zip(load.indices, load.tensor.shape, strict=True):
        low, high = index.bounds(extents)
        rising = {name for name, step in index.terms if step > 0}
        first, last = (
            index.evaluate({n: (a if n in rising else b)[n] for n, _ in index.terms})
            for a, b in ((lowest, highest), (highest, lowest))
        )
        conditions += [f"({text(first)} >= 0)"] if low < 0 else []
        conditions += [f"({text(last)} < {size})"] if high >= size else []
    return conditions


def _is_indexed_by(source: VectorFragment, side: str) -> bool:
    return bool(set(source.nest.groups[side].members) & source.staged.load.names)


def list_store_conditions(plan: OpenClPlan) -> list[str]:
    """Write conditions that all elements of a work-item's accumulators are results."""
    loops = [loop.name for loop in plan.spatial]
    firsts, _ = loop_values(plan, loop_steps(plan, tile_step=0), loops)
    sides = plan.fragments[-1].staged.fragment
    return _end_conditions(plan, sides, firsts, plan.reach)


def _end_conditions(
    plan: OpenClPlan, sides: Sequence[str], firsts: Mapping[str, Value], spans: Mapping[str, int]
) -> list[str]:
    """Write conditions that loops have more steps, and fill sides of a fragment in each."""
    ends = {loop.name: loop.extent for loop in plan.spatial}
    for group in map(plan.nest.groups.__getitem__, sides):
        ends[group.tile] = group.size // group.lanes
    lasts = {loop: first + (spans[loop] - 1) for loop, first in firsts.items()}
    return [
        f"({text(last)} < {ends[loop]})"
        for loop, last in lasts.items()
        if upper_bound(last) >= ends[loop]
    ]
