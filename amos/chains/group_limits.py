"""What work-groups and work-items of a device may have, as constraints on loops of a nest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amos.chains.loop_nest import Allocation, Loop, LoopNest, Node
from amos.schedule import Le, Prod, Select, Sum, Variable
from amos.schedule.constraints import Constraint

#: Constraints by what they keep, beyond the rules of the paper.
GROUP_RULES = ("groups", "work-items", "local bytes", "private bytes")


@dataclass(frozen=True)
class GroupLimits:
    """What work-groups and work-items may have.

    Attributes:
        items: work-items of a group along a dimension at most; longer loops make several trips.
        group_items: work-items of a group at most.
        local_bytes: local memory of a group.
        private_bytes: memory of a work-item.
    """

    items: int = 16
    group_items: int = 4096
    local_bytes: int = 1 << 30
    private_bytes: int = 1 << 30

    @property
    def dimensions(self) -> int:
        """Along how many dimensions a group may have work-items."""
        return max(n for n in range(4) if self.items**n <= self.group_items)

    def items_of(self, extent: int) -> int:
        """Count work-items along the dimension of a loop."""
        return min(extent, self.items)


def has_items(choice: str) -> bool:
    """Return whether a loop runs on work-items of a group, or on those of all groups."""
    return choice.partition(" ")[0] in ("local", "global")


def limit_groups(
    nest: LoopNest, choices: Sequence[str], limits: GroupLimits
) -> Iterator[Variable | Constraint]:
    """Yield variables and constraints, each variable before what names it.

    Args:
        nest: the loops, with variables ``map.LOOP``.
        choices: of a loop, with variables ``uses.CHOICE``.
        limits: of the device.
    """
    yield from _limit_items([c for c in choices if " " in c], limits)
    yield from _limit_bytes(nest, choices, limits)


def _limit_items(levels: Sequence[str], limits: GroupLimits) -> Iterator[Variable | Constraint]:
    """Yield how many dimensions of groups and of work-items there are."""
    for choice in levels:
        level, _, d = choice.partition(" ")
        if level == "global":
            both = f"loops over groups along {d}"
            yield Variable(both, "other")
            yield Sum(both, (f"uses.{choice}", f"uses.group {d}"), "definition")
            yield Le(
                both,
                "one",
                "groups",
                f"a kernel has loops that are {choice} or group {d}, not both",
            )
    along, most = "dimensions of work-items", "most dimensions of work-items"
    yield Variable(most, "architecture", (limits.dimensions,))
    yield Variable(along, "other")
    used = tuple(f"uses.{choice}" for choice in levels if has_items(choice))
    yield Sum(along, used, "definition")
    reason = (
        f"{limits.items} work-items along each of more than {limits.dimensions} dimensions, but a "
        f"group has {limits.group_items:,}"
    )
    yield Le(along, most, "work-items", reason)


def enclosed_allocations(
    nodes: Sequence[Node], loops: tuple[Loop, ...] = ()
) -> Iterator[tuple[Allocation, tuple[Loop, ...]]]:
    """Yield each allocation with the loops around it."""
    for node in nodes:
        if isinstance(node, Allocation):
            yield node, loops
        elif isinstance(node, Loop):
            yield from enclosed_allocations(node.body, (*loops, node))


def _limit_bytes(
    nest: LoopNest, choices: Sequence[str], limits: GroupLimits
) -> Iterator[Variable | Constraint]:
    """Yield the bytes of each memory; work-items around an allocation each have their own."""
    memory = {"local": limits.local_bytes, "private": limits.private_bytes}
    products: dict[str, list[str]] = {name: [] for name in memory}
    owned: dict[str, str] = {}
    for allocation, loops in enclosed_allocations(nest.body):
        size, total = f"bytes of {allocation.buffer}", f"all bytes of {allocation.buffer}"
        yield Variable(size, "architecture", (allocation.nbytes,))
        for loop in loops if allocation.memory == "local" else ():
            if loop.name not in owned:
                owned[loop.name] = f"work-items of {loop.name}"
                count = limits.items_of(loop.extent)
                flags = tuple(count if has_items(c) else 1 for c in choices)
                yield Variable(owned[loop.name], "other")
                yield Select(owned[loop.name], f"map.{loop.name}", flags, "definition")
        yield Variable(total, "other")
        factors = [owned[loop.name] for loop in loops] if allocation.memory == "local" else []
        yield Prod(total, (size, *factors), "definition")
        products[allocation.memory].append(total)
    for name, most in memory.items():
        whole, room = f"{name} bytes", f"most {name} bytes"
        buffers = ", ".join(each.removeprefix("all bytes of ") for each in products[name])
        yield Variable(room, "architecture", (most,))
        yield Variable(whole, "other")
        yield Sum(whole, tuple(products[name]), "definition")
        owner = "a group" if name == "local" else "a work-item"
        yield Le(whole, room, whole, f"tiles of {buffers} exceed the {most:,} {whole} of {owner}")
