"""What the schedule of a warp on a CUDA machine decides beyond that of a CPU core.

A thread block computes ``block.LOOP`` register tiles along each loop at the same
time, one on each warp; the outer loops become the grid. Each step of the reduction
stages what the whole block reads in shared memory.
"""

from __future__ import annotations

from amos.machine.gpu_costs import (
    ASYNC,
    MAX_THREADS,
    OTHER_REGISTERS,
    REGISTER_FILE,
    ROW_ALIGNMENT,
    THREAD_REGISTERS,
    WARP,
)
from amos.plan.banks import swizzle_period
from amos.plan.gpu_registers import fragment_registers
from amos.plan.staging import StagedOperand
from amos.schedule.constraints import Le, Prod, Select, Sum
from amos.schedule.template import Draft, Primitive, TilingContext

__all__ = [
    "SWIZZLED",
    "Bind",
    "Pipeline",
    "StorageAlignment",
    "ThreadLimit",
    "held_registers",
    "shared_bytes",
    "side_bytes",
]

_BUFFERS = (1, 2, 3, 4)
#: Bytes that a padded row is longer: one and two of the widest accesses of a thread.
_PADDING = (0, 16, 32)
#: Stands for no padding, and pieces of rows that change places from row to row.
SWIZZLED = -1


class Bind:
    """Grid and thread block: outer loops to blocks, the tiles of a block to warps."""

    name = "bind"

    def condition(self, context: TilingContext) -> bool:
        """Warps run the intrinsic."""
        return context.warps and bool(context.spatial)

    def apply(self, context: TilingContext) -> list[Primitive]:
        """All outer loops together make the grid."""
        loops = tuple(loop.name for loop in context.spatial)
        return [
            Primitive("bind", "bind", self.name, scope="threads", parts=loops, values=("warps",))
        ]


class StorageAlignment:
    """Longer rows in shared memory, so that a column is not all in one bank."""

    name = "align"

    def condition(self, context: TilingContext) -> bool:
        """Sources pass through shared memory."""
        return context.warps and bool(context.spatial)

    def apply(self, context: TilingContext) -> list[Primitive]:
        """Elements of padding for each source, in steps that keep rows aligned; or a swizzle."""
        held = [op for op in context.sources if op.name in context.scratchpads]
        return [
            Primitive(
                "storage_align",
                op.name,
                self.name,
                scope=context.scratchpads[op.name],
                values=(
                    *(n * 8 // context.tiles[op.name].bits for n in _PADDING),
                    *((SWIZZLED,) if can_swizzle(context, op) else ()),
                ),
            )
            for op in held
        ]


class Pipeline:
    """Several buffers in shared memory, filled while others are read."""

    name = "pipeline"

    def condition(self, context: TilingContext) -> bool:
        """There are steps to overlap."""
        return context.warps and bool(context.spatial and context.reduce)

    def apply(self, context: TilingContext) -> list[Primitive]:
        """More than one buffer needs copies that do not stall the warp."""
        assert context.machine is not None
        modern = context.machine.architecture >= ASYNC
        return [
            Primitive(
                "pipeline", "pipeline", self.name, values=_BUFFERS if modern else _BUFFERS[:1]
            )
        ]


class ThreadLimit:
    """C5 of a thread block: threads, and the registers of all of them."""

    name = "C5"

    def condition(self, context: TilingContext, template: list[Primitive]) -> bool:
        """Loops are bound to threads."""
        return any(primitive.kind == "bind" for primitive in template)

    def apply(self, draft: Draft, template: list[Primitive]) -> None:
        """``warps``, ``threads`` and ``registers.block``."""
        context, rule = draft.context, self.name
        blocks = tuple(f"block.{loop.name}" for loop in context.spatial)
        warps = draft.derived("warps", rule)
        width = draft.constant("warp", WARP, rule)
        threads = draft.derived("threads", rule)
        most = draft.constant("threads.most", MAX_THREADS, rule)
        file = draft.constant("registers.file", REGISTER_FILE, rule)
        thread = "registers.thread"
        used = draft.derived("registers.block", rule, "other")
        draft.require(
            Prod(warps, blocks, rule),
            Prod(threads, (warps, width), rule),
            Le(threads, most, rule, f"{{left}} threads in a block, but {MAX_THREADS} at most"),
            Prod(used, (threads, thread), rule),
            Le(
                used,
                file,
                rule,
                f"{{left}} registers for a thread block, but {REGISTER_FILE} are there",
            ),
        )


def held_registers(draft: Draft) -> None:
    """C5: the registers of a thread (:mod:`amos.plan.gpu_registers`).

    ``kept`` chooses the source that is held whole; of the other one fragment is live.
    """
    context, rule = draft.context, "C5"
    operands = (*context.sources, context.destination)
    intrinsic = context.mapping.intrinsic
    names = [load.tensor.name for load in intrinsic.operands]
    sizes = dict(zip(names, fragment_registers(intrinsic), strict=True))
    one = {}
    for op in operands:
        one[op.name] = draft.constant(f"registers.one.{op.name}", sizes[op.name], rule)
        count = draft.derived(f"fragments.{op.name}", rule)
        whole = draft.derived(f"registers.{op.name}", rule, "other")
        loops = tuple(f"tile.{loop}" for loop in context.indexed(op))
        draft.require(Prod(count, loops, rule), Prod(whole, (one[op.name], count), rule))
    choices = []
    for op in context.sources:
        rest = [one[other.name] for other in context.sources if other is not op]
        choice = draft.derived(f"registers.with.{op.name}", rule, "other")
        draft.require(Sum(choice, (f"registers.{op.name}", *rest), rule))
        choices.append(choice)
    held = draft.derived("registers.held", rule, "other")
    kept = draft.free("kept", len(choices), rule)
    spare = draft.constant("registers.other", OTHER_REGISTERS, rule)
    thread = draft.derived("registers.thread", rule, "other")
    limit = draft.constant("registers", THREAD_REGISTERS, rule)
    draft.require(
        Select(held, kept, tuple(choices), rule),
        Sum(thread, (f"registers.{context.destination.name}", held, spare), rule),
        Le(
            thread,
            limit,
            rule,
            f"{{left}} registers for a thread, but {THREAD_REGISTERS} are there for it",
        ),
    )


def shared_bytes(draft: Draft, scope: str, held: list[str]) -> None:
    """C5: the buffers of a thread block fit the shared memory that one block may have."""
    context, rule = draft.context, "C5"
    assert context.machine is not None
    capacity = context.machine.multiprocessor.block_shared
    amounts = []
    for op in context.sources:
        if op.name not in held:
            continue
        tile = context.tiles[op.name]
        align = draft.variables[f"align.{op.name}"].domain
        choices = tuple(tile.rows.lanes * int(tile.row(int(padding))) for padding in align)
        size = draft.derived(f"bytes.{op.name}", rule)
        amount = draft.derived(f"{scope}.{op.name}", rule, "other")
        loops = tuple(f"span.{loop}" for loop in context.indexed(op))
        draft.require(
            Select(size, f"align.{op.name}", choices, rule), Prod(amount, (size, *loops), rule)
        )
        amounts.append(amount)
    _leaving(draft, scope, capacity)
    step = draft.derived(f"{scope}.step", rule, "other")
    used = draft.derived(f"{scope}.used", rule, "other")
    limit = draft.constant(f"{scope}.capacity", capacity, rule)
    buffers = tuple(name for name in ("unroll", "pipeline") if name in draft.variables)
    reason = f"{{left}} bytes of {scope} in use by one thread block, but {capacity} are there"
    draft.require(
        Sum(step, tuple(amounts), rule),
        Prod(used, (step, *buffers), rule),
        Le(used, limit, rule, reason),
    )


def _leaving(draft: Draft, scope: str, capacity: int) -> None:
    """Accumulators whose layout is hidden leave through the memory of the buffers."""
    context, rule = draft.context, "C5"
    op = context.destination
    tile = context.tiles[op.name]
    if not tile.hidden:
        return
    size = draft.constant(f"bytes.{op.name}", tile.elements * tile.bits // 8, rule)
    blocks = tuple(f"block.{loop.name}" for loop in context.spatial)
    amount = draft.derived(f"{scope}.{op.name}", rule, "other")
    limit = draft.constant(f"{scope}.capacity", capacity, rule)
    reason = f"{{left}} bytes of {scope} for accumulators, but {capacity} are there"
    draft.require(Prod(amount, (size, *blocks), rule), Le(amount, limit, rule, reason))


def can_swizzle(context: TilingContext, op: StagedOperand) -> bool:
    """Whether lanes know where their elements are, and rows have pieces that can change places.

    It is asked of both sides of a fragment, whichever the tensor is contiguous along.
    """
    if not context.mapping.intrinsic.open_registers:
        return False
    return any(
        swizzle_period(-(-width // ROW_ALIGNMENT) * ROW_ALIGNMENT)
        for width in side_bytes(context, op)
    )


def side_bytes(context: TilingContext, op: StagedOperand) -> list[int]:
    """Bytes of the elements along each side of a fragment."""
    bits = context.tiles[op.name].bits
    return [max(1, context.nest.groups[target].lanes * bits // 8) for target in op.fragment]
