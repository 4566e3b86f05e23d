"""The rules of a space: decisions of a schedule about the loops (AMOS, Table 3a), and their limits.

``C1`` to ``C6`` are the kinds of constraints of Heron, Table 8. Those of CPUs are
:data:`RULES`; other targets apply some of these functions with values of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from math import prod

from amos.errors import ScheduleError
from amos.intrinsics import Intrinsic
from amos.intrinsics.memory import MEMORIES
from amos.plan.nest import Loop
from amos.schedule.constraints import Eq, In
from amos.schedule.draft import Draft, Rule, TilingContext
from amos.schedule.memory_rules import memories, own_buffers, registers

#: Longest order that is enumerated as one variable; more loops keep their order
#: beyond it, since a permutation of more has no practical effect on locality.
_MAX_PERMUTED = 5
#: Register tiles that one block of a loop may hold.
_BLOCKS = (1, 2, 4, 8, 16)
_UNROLLED = (1, 2, 4)
#: Elements that one vectorized step of a copy moves; the first is the default.
_VECTORS = (64, 32, 16)
#: Parts of a reduction that run at the same time.
_SPLITS = (1, 2, 4, 8, 16)
#: Dtypes of accumulators whose parts are added up: half precision is too coarse for that.
_ADDED = ("float32", "float64", "int32")
#: Fewest calls of a part on one core, below which its start costs more than the calls.
_PART_CALLS = 256


def tiles(
    draft: Draft,
    block: str = "block",
    counts: tuple[int, ...] | Callable[[int], Iterable[int]] = _BLOCKS,
    most: int | None = None,
) -> None:
    """C1: split each spatial loop into an outer part, a block and a register tile.

    Args:
        block: key of the variables that say how many tiles a block has along a loop.
        counts: how many it may have, fewer than steps of the loop; or a function of these.
        most: steps of a tile; by default as many fragments as fit the registers.
    """
    context = draft.context
    most = context.registers if most is None else most
    divisors = context.tiling == "divisors"
    for name, extent in ((loop.name, loop.extent) for loop in context.spatial):
        sizes = tile_sizes(extent, most, divisors=divisors)
        if callable(counts):
            blocks = tuple(counts(extent))
        else:
            blocks = tuple(n for n in counts if n == 1 or n < extent)
        if divisors:
            blocks = tuple(n for n in blocks if extent % n == 0)
        draft.tunable(f"tile.{name}", sizes)
        if len(blocks) > 1:
            draft.tunable(f"{block}.{name}", blocks, default=1)
        else:
            draft.constant(f"{block}.{name}", 1, "length")
        draft.constant(f"extent.{name}", extent, "length")
        step_counts = (-(-extent // size) for size in sizes)
        steps = draft.select(f"steps.{name}", f"tile.{name}", step_counts)
        span = draft.product(f"span.{name}", (f"tile.{name}", f"{block}.{name}"))
        draft.limit(f"{block}.{name}", steps, f"a block of {name} is longer than the loop")
        if divisors:
            exact = tuple(n for n in range(1, extent + 1) if extent % n == 0)
            draft.require(In(span, exact, draft.rule))


def fused_sizes(draft: Draft) -> None:
    """C2: fuse the iterations that the mapping matches to one of the intrinsic."""
    extents = draft.context.mapping.operator.extents
    for group in draft.context.nest.groups.values():
        parts = [draft.constant(f"size.{n}", extents[n], "length") for n in group.members]
        draft.product(f"fused.{group.target}", parts)


def orders(draft: Draft, *, shares_all: bool = False) -> None:
    """C3: order spatial loops and reductions; choose which run in parallel, and the unrolling."""
    context = draft.context
    if count := len(context.spatial):
        draft.tunable("order", permutations(context.spatial))
        draft.tunable("parallel", tuple(range(count if shares_all else 1, count + 1)))
    if context.reduce:
        draft.tunable("reduce", permutations(context.reduce))
        draft.tunable("unroll", _UNROLLED)


def split(draft: Draft) -> None:
    """C1 of a reduction: split it into parts, each of which takes a step of the outermost loop."""
    split_reduction(draft, tuple(n for n in _SPLITS if n <= _most_parts(draft.context)))


def split_reduction(draft: Draft, counts: tuple[int, ...]) -> None:
    """Let a schedule choose the number of parts of a reduction, among them 1."""
    context = draft.context
    if not context.reduce or not (context.spatial or len(counts) > 1):
        return
    extents = {loop.name: loop.extent for loop in context.reduce}
    values = tuple(n for n in counts if n <= max(extents.values()))
    draft.tunable("split", values, default=1)
    if len(values) > 1:
        outermost = (extents[order.split()[0]] for order in permutations(context.reduce))
        steps = draft.select("split.steps", "reduce", outermost)
        draft.limit("split", steps, "a reduction of {right} steps in {left} parts")


def _most_parts(context: TilingContext) -> int:
    """Return the most parts of a reduction, whatever its loops are; 1 where there is no choice.

    There is one where the smallest tiles make fewer steps than there are cores, and a part is long
    enough to amortize its start. Kernels on tile registers have no parts.
    """
    machine, most = context.machine, max(_SPLITS)
    if not adds_parts(context.mapping.intrinsic):
        return 1
    if machine is not None:
        most = min(most, machine.cores) if machine.cached else 1
    if prod(loop.extent for loop in context.spatial) >= most:
        return 1
    calls = prod(loop.extent for loop in context.reduce)
    return max(1, min(most, calls // _PART_CALLS))


def adds_parts(intrinsic: Intrinsic) -> bool:
    """Return whether sums of parts of a reduction are added up."""
    return intrinsic.dtypes[-1] in _ADDED and not intrinsic.tile_registers


def stages(draft: Draft, places: tuple[str, ...] = ("whole", "tile")) -> None:
    """C4: choose where a gathered source is staged, and how many fragments one staging copies."""
    context = draft.context
    for op in context.gathered:
        draft.tunable(f"stage.{op.name}", places)
        if not context.spatial:
            continue
        whole = draft.product(f"whole.{op.name}", context.along("extent", op))
        tile_fragments = draft.product(f"part.{op.name}", context.along("span", op))
        choices = [whole if place == "whole" else tile_fragments for place in places]
        draft.select(f"staged.{op.name}", f"stage.{op.name}", choices)


def optional_copies(draft: Draft) -> None:
    """C4: choose whether a source that can be read in place is staged, and where."""
    for op in draft.context.optional:
        draft.tunable(f"stage.{op.name}", ("none", "whole", "tile"), default="none")


def copies(draft: Draft) -> None:
    """C3: choose the width of copies, and whether they move permuted vectors or elements."""
    gathered, optional = draft.context.gathered, draft.context.optional
    needs = () if gathered else tuple(f"stage.{op.name}" for op in optional)
    if gathered or optional:
        draft.tunable("vector", _VECTORS, default=_VECTORS[0], needs=needs)
    if any(op.vectors for op in (*gathered, *optional)):
        draft.tunable("copy", ("elements", "vectors"), default="elements", needs=needs)


def limit_by_description(draft: Draft) -> None:
    """C6: add limits of one intrinsic alone, from its description.

    A call has the problem size of the intrinsic; and where a store names a ``write_interval``, a
    step of the reduction writes at least as many accumulators before it writes one again.
    """
    intrinsic = draft.context.mapping.intrinsic
    for it in intrinsic.iterations:
        size = draft.constant(f"problem.{it.name}", it.extent)
        lanes = draft.constant(f"lanes.{it.name}", it.extent, "length")
        draft.require(Eq(lanes, size, draft.rule))
    machine = draft.context.machine
    levels = () if machine is None else (level.name for level in machine.levels)
    scopes = {*MEMORIES, *levels, *(pad.name for pad in intrinsic.scratchpads)}
    for statement in intrinsic.memory:
        if machine is not None and statement.scope not in scopes:
            raise ScheduleError(
                f"{intrinsic.name}: scope {statement.scope!r} of {statement.operand} is declared "
                f"nowhere: {machine.name} and the intrinsic have {', '.join(sorted(scopes))}"
            )
        if (cycles := statement.write_interval) > 1 and draft.context.reduce:
            name = f"fragments.{draft.context.destination.name}"
            # Without a loop to tile there is one.
            accumulators = draft.constant(name, 1, "length")
            draft.limit(
                draft.constant("write.interval", cycles),
                accumulators,
                f"an accumulator is written again after {{right}} calls, but {cycles} must pass",
            )


#: Rules of CPUs, in the order of their application; a plug-in may add its own.
RULES = [
    Rule("C1", tiles),
    Rule("C2", fused_sizes),
    Rule("C3", orders),
    Rule("C1", split),
    Rule("C4", stages),
    Rule("C4", optional_copies),
    Rule("C3", copies),
    Rule("C5", registers),
    Rule("C5", memories),
    Rule("C5", own_buffers),
    Rule("C6", limit_by_description),
]


def tile_sizes(extent: int, most: int, *, divisors: bool) -> tuple[int, ...]:
    """List the sizes of tiles of a loop.

    Without ``divisors``: for each number of steps the smallest tile that takes no
    more, since a larger one only pads more. Their number is bounded by ``most``
    and by twice the root of the extent, whatever its factors are.
    """
    sizes = range(1, min(extent, most) + 1)
    if divisors:
        return tuple(size for size in sizes if extent % size == 0)
    return tuple(sorted({-(-extent // -(-extent // size)) for size in sizes}))


def permutations(loops: tuple[Loop, ...]) -> tuple[str, ...]:
    """List the orders of loops, outermost first."""
    names = [loop.name for loop in loops]
    head, tail = names[:_MAX_PERMUTED], names[_MAX_PERMUTED:]
    return tuple(" ".join([*order, *tail]) for order in itertools.permutations(head))
