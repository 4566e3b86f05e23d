"""A plan of a CPU kernel in words."""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from typing import TYPE_CHECKING

from amos.plan.staging import StagedOperand

if TYPE_CHECKING:
    from amos.plan.cpu_plan import CpuPlan, Edge


def describe_plan(plan: CpuPlan) -> list[str]:
    """Write a plan in words: shares of the cores, loops from the outermost in, operands."""
    limits, share = plan.limits, plan.steps // plan.ranges
    lines = [
        f"{plan.mapping.title} ({plan.implementation})",
        f"  machine   {limits.cores} cores, {limits.cache >> 10} KiB of cache for each alone",
    ]
    if plan.padded:
        loops = {x.name: x.extent for x in plan.nest.spatial}
        longer = (f"{name} {loops[name]} -> {extent}" for name, extent in plan.padded.items())
        lines.append(f"  padded    {', '.join(longer)}")
    lines += [f"  edge      {_edge(edge)}" for edge in plan.edges]
    if plan.fused:
        lines.append(
            f"  shared    {_loops(plan.fused)}: {plan.steps} steps in {plan.ranges} ranges of "
            f"{share}, at most {-(-plan.ranges // limits.cores)} ranges for a core"
        )
    outer = {name: n for name, n in plan.outer.items() if name not in plan.fused}
    rows = {"outer": outer, "blocks": plan.blocks, "reduction": plan.reduce, "tile": plan.tile}
    lines += [f"  {kind:9} {_loops(loops)}" for kind, loops in rows.items() if loops]
    room = plan.mapping.intrinsic.registers
    lines.append(
        f"  calls     {plan.unrolled} steps of the reduction unrolled, {plan.accumulators} "
        f"accumulators, {plan.registers} of {room or 'unlimited'} registers"
    )
    lines += [
        f"  skipped   steps of {skip.loop} with {skip.index} outside of 0 to {skip.size - 1}"
        for skip in plan.skips
    ]
    lines += [f"  {op.name:9} {_operand(plan, op)}" for op in plan.sources]
    stored = "in place" if plan.destination.in_place else "copied to the output at the end"
    operator = plan.mapping.operator
    if operator.store is not None:
        stored = f"stored to {operator.store}"
    lines.append(f"  {plan.destination.name:9} {operator.result.name}: {stored}")
    if plan.fetched_residuals:
        names = ", ".join(sorted(plan.fetched_residuals))
        lines.append(f"  prefetch  {names}, before each register tile")
    return lines


def _loops(loops: MappingType[str, int]) -> str:
    return " x ".join(f"{name} {steps}" for name, steps in loops.items())


def _edge(edge: Edge) -> str:
    tiles = f"{edge.loop}: tiles of {edge.tile}"
    if edge.cut:
        tiles += f", the last of {edge.cut}"
    return tiles + ", none beyond the end" * edge.beyond


def _operand(plan: CpuPlan, op: StagedOperand) -> str:
    """Write the form of a source, and where and how it is copied or prefetched."""
    text = f"{op.load.tensor.name}: {plan.form(op)}"
    if op.prologue is not None:
        text += f" from {', '.join(tensor.name for tensor in op.prologue.tensors)}"
    if plan.fetch is not None and plan.fetch.op.name == op.name:
        text += f", {plan.fetch.elements} elements of the next tile prefetched in each step"
    if (copy := plan.copies.get(op.name)) is None:
        return text
    where = {"ahead": "ahead of the nest", "range": "once a range", "step": "in each step"}
    how = "elements at a time" if copy.vectors is None else "elements a vector, permuted"
    size = " x ".join(map(str, copy.extents))
    return f"{text}, copied {where[copy.place]}, {size} elements, {copy.width} {how}"
