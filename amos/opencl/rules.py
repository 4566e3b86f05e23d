"""Rules for the schedule of a work-item, beyond those of a CPU core.

A work-group computes ``items.LOOP`` tiles along each loop, one by each work-item; the outer
loops run over the groups. The stages of a group's sources must fit its local memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from amos.errors import ScheduleError
from amos.machine.opencl_unit import OpenClUnit
from amos.opencl.groups import fragments_of, register_sizes
from amos.opencl.plan import list_problems
from amos.schedule import rules
from amos.schedule.draft import Draft, Rule
from amos.schedule.memory_rules import count_registers

#: Work-items of a group along one loop: a power of two, or a divisor of its steps.
_POWERS, _MOST_ITEMS = (1, 2, 4, 8, 16, 32), 64
#: Steps of the reduction that are staged together at most.
_MOST_STEPS = 256


def _unit(draft: Draft) -> OpenClUnit:
    machine = draft.context.machine
    assert machine is not None
    assert machine.opencl is not None
    return machine.opencl


def tiles(draft: Draft) -> None:
    """C1: limit tiles of work-items by their registers; groups are of work-items."""
    context = draft.context
    for problem in list_problems(context.mapping):
        raise ScheduleError(f"{context.mapping.operator.name}: {problem}")
    most = max(1, _unit(draft).item_bytes // fragments_of(context)[-1].bytes)
    rules.tiles(draft, "items", _count_items, most)


def _count_items(extent: int) -> list[int]:
    """List the numbers of work-items that a group may have along a loop."""
    most = min(extent, _MOST_ITEMS)
    exact = {n for n in range(1, most + 1) if extent % n == 0}
    return sorted(exact | {n for n in _POWERS if n <= most})


def orders(draft: Draft) -> None:
    """C3: choose orders of groups and reductions, where sources are read, and stages."""
    context = draft.context
    for name, loops in (("order", context.spatial), ("reduce", context.reduce)):
        if loops:
            draft.tunable(name, rules.permutations(loops))
    if context.reduce:
        draft.tunable("steps", _count_steps([loop.extent for loop in context.reduce]), default=1)
    if context.spatial:
        for op in context.sources:
            draft.tunable(f"place.{op.name}", ("direct", "local"), default="direct")


def _count_steps(extents: Sequence[int]) -> tuple[int, ...]:
    """List the steps that may be staged together: whole loops, times powers of two."""
    whole = {1}
    for extent in extents:
        whole |= {n * extent for n in whole}
    most = min(prod(extents), _MOST_STEPS)
    powers = [1 << n for n in range(most.bit_length())]
    return tuple(sorted({x * n for x in whole for n in powers if x * n <= most}))


def items(draft: Draft) -> None:
    """C5: limit the work-items of a group."""
    if not draft.context.spatial:
        return
    most = _unit(draft).group_items
    count = draft.product("items", (f"items.{loop.name}" for loop in draft.context.spatial))
    limit = draft.constant("items.most", most)
    draft.limit(count, limit, f"{{left}} work-items in a group, but {most} at most")


def registers(draft: Draft) -> None:
    """C5: fit accumulators, one whole source and a fragment of the other into registers."""
    context = draft.context
    if not context.spatial:
        return
    assert context.machine is not None
    sizes = register_sizes(context, context.machine)
    needs = count_registers(draft, sizes)
    most = _unit(draft).item_bytes
    used = draft.sum("registers.item", needs)
    # A tile of one fragment is always there, whatever the registers are.
    least = sum(sizes)
    draft.limit(
        used,
        draft.constant("registers", max(most, least)),
        f"{{left}} bytes of registers for a work-item, but {most} are there for it",
    )


def local_memory(draft: Draft) -> None:
    """C5: fit the stages of a group into its local memory."""
    context = draft.context
    if not context.spatial:
        return
    amounts = []
    for op, fragment in zip(context.sources, fragments_of(context), strict=False):
        sizes = [draft.constant(f"bytes.{op.name}", fragment.bytes), *context.along("span", op)]
        if fragment.reduced:
            sizes.append("steps")
        staged = draft.product(f"local.{op.name}", sizes, "other")
        nothing = draft.constant(f"local.none.{op.name}", 0)
        choices = (nothing, staged)
        amounts.append(draft.select(f"local.used.{op.name}", f"place.{op.name}", choices, "other"))
    most = _unit(draft).local_bytes
    draft.limit(
        draft.sum("local.used", amounts),
        draft.constant("local.most", most),
        f"{{left}} bytes of local memory in use by one group, but {most} are there",
    )


#: In the order that they are applied in.
OPENCL_RULES = [
    Rule("C1", tiles),
    Rule("C2", rules.fused_sizes),
    Rule("C3", orders),
    Rule("C5", items),
    Rule("C5", registers),
    Rule("C5", local_memory),
    Rule("C6", rules.limit_by_description),
]
