"""The rules of a space: what a schedule decides of the loops (AMOS, Table 3a), and within what.

``C1`` to ``C6`` are the kinds of constraints of Heron, Table 8.
"""

from __future__ import annotations

import itertools
from math import prod

from amos.errors import ScheduleError
from amos.intrinsics.memory import MEMORIES
from amos.ir import dtype
from amos.plan.nest import Loop
from amos.schedule import gpu_rules
from amos.schedule.constraints import Eq, In
from amos.schedule.draft import Draft, Rule, TilingContext
from amos.schedule.memory_rules import memories, own_buffers, registers

#: Longest order that is enumerated as one variable; more loops keep their order
#: beyond it, since a permutation of more has no practical effect on locality.
_MAX_PERMUTED = 5
#: Register tiles that one block of a loop may hold.
_BLOCKS = (1, 2, 4, 8, 16)
#: Warps of a thread block along one loop.
_WARPS = (1, 2, 4, 8)
_UNROLLED = (1, 2, 4)
#: Elements of one vectorized step of a copy; the first is the default.
_VECTORS, _THREAD_VECTORS = (64, 32, 16), (16, 8, 4)
#: Parts of a reduction that run at the same time, on a CPU and on a GPU.
#: Their sums are added up, on a GPU atomically: half precision is too coarse for that.
_ADDED = ("float32", "float64", "int32")
_SPLITS, _GRID_SPLITS = (1, 2, 4, 8, 16), (1, 2, 4, 8)
#: Calls that a core must have of a part at least, or starting it costs more than they do.
_PART_CALLS = 256


def tiles(draft: Draft) -> None:
    """C1: each spatial loop is split into an outer part, a block and a register tile.

    Tile sizes are bounded by the registers, blocks are powers of two.
    """
    context = draft.context
    divisors = context.tiling == "divisors"
    for name, extent in ((loop.name, loop.extent) for loop in context.spatial):
        sizes = tile_sizes(extent, context.registers, divisors=divisors)
        blocks = tuple(
            b
            for b in (_WARPS if context.warps else _BLOCKS)
            if b == 1 or (b < extent and not (divisors and extent % b))
        )
        draft.tunable(f"tile.{name}", sizes)
        if len(blocks) > 1:
            draft.tunable(f"block.{name}", blocks, default=1)
        else:
            draft.constant(f"block.{name}", 1, "length")
        draft.constant(f"extent.{name}", extent, "length")
        counts = (-(-extent // size) for size in sizes)
        steps = draft.select(f"steps.{name}", f"tile.{name}", counts)
        span = draft.product(f"span.{name}", (f"tile.{name}", f"block.{name}"))
        draft.limit(f"block.{name}", steps, f"a block of {name} is longer than the loop")
        if divisors:
            exact = tuple(n for n in range(1, extent + 1) if extent % n == 0)
            draft.require(In(span, exact, draft.rule))


def fused(draft: Draft) -> None:
    """C2: the iterations that the mapping fuses into one of the intrinsic."""
    extents = draft.context.mapping.operator.extents
    for group in draft.context.nest.groups.values():
        parts = [draft.constant(f"size.{n}", extents[n], "length") for n in group.members]
        draft.product(f"fused.{group.target}", parts)


def orders(draft: Draft) -> None:
    """C3: the order of spatial loops and reductions, which run in parallel, and the unrolling."""
    context = draft.context
    if count := len(context.spatial):
        draft.tunable("order", permutations(context.spatial))
        # A grid has no end that matters, so that all outer loops are part of it.
        draft.tunable("parallel", tuple(range(count if context.warps else 1, count + 1)))
    if context.reduce:
        draft.tunable("reduce", permutations(context.reduce))
        draft.tunable("unroll", _UNROLLED)


def split(draft: Draft) -> None:
    """C1 of a reduction: parts side by side, each of which has a step of the outermost loop."""
    context = draft.context
    most = _most_parts(context)
    if not context.reduce or not (context.spatial or most > 1):
        return
    extents = {loop.name: loop.extent for loop in context.reduce}
    most = min(max(extents.values()), most)
    splits = _GRID_SPLITS if context.warps else _SPLITS
    values = tuple(n for n in splits if n <= most)
    draft.tunable("split", values, default=1)
    if len(values) > 1:
        outermost = (extents[order.split()[0]] for order in permutations(context.reduce))
        steps = draft.select("split.steps", "reduce", outermost)
        draft.limit("split", steps, "a reduction of {right} steps in {left} parts")


def _most_parts(context: TilingContext) -> int:
    """The most parts of a reduction, whatever its loops are; 1 where there is no choice.

    A GPU has the choice unless an epilogue or a further result needs whole sums, or the output is
    part of a tensor, where it cannot be cleared to be added to. A CPU has it
    where the smallest tiles make fewer steps than there are cores, and a part is long
    enough to be worth a start. Kernels on tile registers make no parts.
    """
    machine, most = context.machine, max(_SPLITS)
    intrinsic = context.mapping.intrinsic
    if intrinsic.dtypes[-1] not in _ADDED or intrinsic.tile_registers:
        return 1
    if context.warps:
        operator = context.mapping.operator
        sums = operator.epilogues or (operator.store is not None and not operator.whole)
        return 1 if sums else max(_GRID_SPLITS)
    if machine is not None:
        most = min(most, machine.cores) if machine.cached else 1
    if prod(loop.extent for loop in context.spatial) >= most:
        return 1
    calls = prod(loop.extent for loop in context.reduce)
    return max(1, min(most, calls // _PART_CALLS))


def stages(draft: Draft) -> None:
    """C4: where a gathered source is staged, and how many fragments one staging copies."""
    context = draft.context
    # A GPU gathers as it copies.
    places = ("tile",) if context.warps else ("whole", "tile")
    for op in context.gathered:
        draft.tunable(f"stage.{op.name}", places)
        if not context.spatial:
            continue
        whole = draft.product(f"whole.{op.name}", context.along("extent", op))
        tile_fragments = draft.product(f"part.{op.name}", context.along("span", op))
        choices = [whole if place == "whole" else tile_fragments for place in places]
        draft.select(f"staged.{op.name}", f"stage.{op.name}", choices)


def copies(draft: Draft) -> None:
    """C3: how wide copies are, and whether a CPU copies vectors that it permutes or elements.

    The width of a GPU thread's copy must divide the rows it copies.
    """
    context = draft.context
    widths: tuple[int, ...] = _VECTORS if context.gathered else ()
    if context.warps and context.spatial:
        kinds = context.mapping.intrinsic.dtypes[:-1]
        least = max(dtype(kind).bits // 8 for kind in kinds)
        rows = [gpu_rules.side_bytes(tile)[-1] for tile in context.tiles[:-1]]
        widths = tuple(n for n in _THREAD_VECTORS if n >= least and not any(r % n for r in rows))
    if widths:
        draft.tunable("vector", widths, default=widths[0])
    if not context.warps and any(op.vectors for op in context.gathered):
        draft.tunable("copy", ("elements", "vectors"), default="elements")


def limit_by_description(draft: Draft) -> None:
    """C6: what one intrinsic alone demands, taken from its description.

    The call has the problem size of the intrinsic; a copy moves as many bytes at
    once as the memory statements of the sources allow; and where a store names a
    ``write_interval``, a step of the reduction writes as many accumulators before the
    same one is again.
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
        if statement.vectors and "vector" in draft.variables and statement.direction == "load":
            draft.require(In("vector", statement.vectors, draft.rule))
        if (cycles := statement.write_interval) > 1 and draft.context.reduce:
            name = f"fragments.{draft.context.destination.name}"
            # Without a loop to tile there is one.
            accumulators = draft.constant(name, 1, "length")
            draft.limit(
                draft.constant("write.interval", cycles),
                accumulators,
                f"an accumulator is written again after {{right}} calls, but {cycles} must pass",
            )


#: Applied in this order; a plug-in may add its own.
RULES = [
    Rule("C1", tiles),
    Rule("C2", fused),
    Rule("C3", orders),
    Rule("C1", split),
    Rule("C4", stages),
    Rule("C3", copies),
    Rule("C3", gpu_rules.blocks),
    Rule("C5", registers),
    Rule("C5", memories),
    Rule("C5", own_buffers),
    Rule("C5", gpu_rules.threads),
    Rule("C6", limit_by_description),
]


def tile_sizes(extent: int, most: int, *, divisors: bool) -> tuple[int, ...]:
    """Sizes of tiles of a loop.

    Without ``divisors``: for each number of steps the smallest tile that takes no
    more, since a larger one only pads more. Their number is bounded by ``most``
    and by twice the root of the extent, whatever its factors are.
    """
    sizes = range(1, min(extent, most) + 1)
    if divisors:
        return tuple(size for size in sizes if extent % size == 0)
    return tuple(sorted({-(-extent // -(-extent // size)) for size in sizes}))


def permutations(loops: tuple[Loop, ...]) -> tuple[str, ...]:
    """Orders of loops, outermost first."""
    names = [loop.name for loop in loops]
    head, tail = names[:_MAX_PERMUTED], names[_MAX_PERMUTED:]
    return tuple(" ".join([*order, *tail]) for order in itertools.permutations(head))
