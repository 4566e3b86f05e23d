"""Rules for the schedule of a warp on a CUDA machine, beyond those of a CPU core.

A thread block computes ``warps.LOOP`` register tiles along each loop at the same
time, one on each warp; the outer loops become the grid. Each step of the reduction
stages what the whole block reads in shared memory.
"""

from __future__ import annotations

from functools import partial

from amos.cuda.banks import swizzle_period
from amos.cuda.fragment_tiles import Tile, tiles_of
from amos.cuda.registers import fragment_registers
from amos.errors import ScheduleError
from amos.ir import dtype
from amos.machine.gpu_costs import (
    ASYNC,
    MAX_THREADS,
    OTHER_REGISTERS,
    REGISTER_FILE,
    ROW_ALIGNMENT,
    THREAD_REGISTERS,
    WARP,
)
from amos.plan.device_plan import narrow_results
from amos.plan.operand import Operand
from amos.schedule import rules
from amos.schedule.constraints import In
from amos.schedule.draft import Draft, Rule
from amos.schedule.memory_rules import count_registers, own_buffers

#: Warps of a thread block along one loop.
_WARPS = (1, 2, 4, 8)
#: Parts of a reduction.
_SPLITS = (1, 2, 4, 8)
#: Bytes that a thread moves at once; the first is the default.
_WIDTHS = (16, 8, 4)
_BUFFERS = (1, 2, 3, 4)
#: Rows of blocks that take turns; the first is the default.
_RASTERS = (1, 2, 4, 8)
#: Bytes that a padded row is longer: one and two of the widest accesses of a thread.
_PADDING = (0, 16, 32)
#: Stands for no padding, and pieces of rows that change places from row to row.
SWIZZLED = -1


def tiles(draft: Draft) -> None:
    """C1: limit tiles of warps by the registers of their threads."""
    intrinsic = draft.context.mapping.intrinsic
    fits = max(2, (THREAD_REGISTERS - OTHER_REGISTERS) // fragment_registers(intrinsic)[-1])
    most = min(intrinsic.registers, fits) if intrinsic.registers else fits
    rules.tiles(draft, "warps", _WARPS, most)


def split(draft: Draft) -> None:
    """C1: split a reduction into parts whose sums are added atomically.

    There are none where an epilogue or a further result needs whole sums, or the output is
    part of a tensor, where it cannot be cleared to be added to.
    """
    mapping = draft.context.mapping
    operator = mapping.operator
    whole = operator.epilogues or (operator.store is not None and not operator.whole)
    divides = rules.adds_parts(mapping.intrinsic) and not whole
    rules.split_reduction(draft, _SPLITS if divides else _SPLITS[:1])


def copies(draft: Draft) -> None:
    """C3: let a thread copy at once only what divides its rows."""
    context = draft.context
    if not context.spatial:
        return
    least = max(dtype(kind).bits // 8 for kind in context.mapping.intrinsic.dtypes[:-1])
    rows = [side_bytes(tile)[-1] for tile in tiles_of(context)[:-1]]
    if any(tile.realigned for tile in tiles_of(context)[:-1]):
        draft.tunable("realign", ("off", "on"), default="off")
    if widths := tuple(n for n in _WIDTHS if n >= least and not any(row % n for row in rows)):
        draft.tunable("copy_bytes", widths, default=widths[0])


def blocks(draft: Draft) -> None:
    """C3: give outer loops to blocks and tiles of a block to warps; choose rows and buffers.

    Rows of blocks that take turns read the same columns from the L2 cache.
    Rows of shared memory are padded in steps that keep them aligned, or swizzled, so that a
    column is not all in one bank. Several buffers, filled while others are read, need
    copies that do not stall the warp.
    """
    context = draft.context
    for narrow in narrow_results(context.mapping, "CUDA"):
        raise ScheduleError(f"{context.mapping.operator.name}: {narrow}")
    if not context.spatial:
        return
    assert context.machine is not None
    draft.tunable("bind", ("warps",))
    if len(context.spatial) > 1:
        draft.tunable("raster", _RASTERS, default=1)
    for op, tile in zip(context.sources, tiles_of(context), strict=False):
        if op.name in context.scratchpads:
            padding = tuple(n * 8 // tile.bits for n in _PADDING)
            padding += (SWIZZLED,) if _can_swizzle(tile) else ()
            draft.tunable(f"align.{op.name}", padding, default=0)
    if context.reduce:
        several = context.machine.architecture >= ASYNC
        draft.tunable("pipeline", _BUFFERS if several else _BUFFERS[:1], default=1)


def threads(draft: Draft) -> None:
    """C5: limit the threads of a block and the registers of all of them."""
    context = draft.context
    if not context.spatial:
        return
    warps = draft.product("warps", (f"warps.{loop.name}" for loop in context.spatial))
    count = draft.product("threads", (warps, draft.constant("warp", WARP)))
    used = draft.product("registers.block", (count, "registers.thread"), "other")
    draft.limit(
        count,
        draft.constant("threads.most", MAX_THREADS),
        f"{{left}} threads in a block, but {MAX_THREADS} at most",
    )
    draft.limit(
        used,
        draft.constant("registers.file", REGISTER_FILE),
        f"{{left}} registers for a thread block, but {REGISTER_FILE} are there",
    )


def thread_registers(draft: Draft) -> None:
    """C5: limit the registers of a thread (:mod:`amos.cuda.registers`).

    ``kept`` chooses the source that is held whole; of the other one fragment is live.
    """
    context = draft.context
    if not context.spatial:
        return
    needs = count_registers(draft, fragment_registers(context.mapping.intrinsic))
    spare = draft.constant("registers.other", OTHER_REGISTERS)
    draft.limit(
        draft.sum("registers.thread", (*needs, spare)),
        draft.constant("registers", THREAD_REGISTERS),
        f"{{left}} registers for a thread, but {THREAD_REGISTERS} are there for it",
    )


def memories(draft: Draft) -> None:
    """C5: fit the stages of a block into shared memory, the first level of the machine."""
    context = draft.context
    assert context.machine is not None
    for level in sorted(context.machine.levels, key=lambda level: level.name):
        staged = [op for op in context.operands if context.scratchpads.get(op.name) == level.name]
        if staged and context.spatial:
            shared_bytes(draft, level.name, staged)


def shared_bytes(draft: Draft, scope: str, staged: list[Operand]) -> None:
    """C5: fit a block's buffers into the shared memory that one block may have.

    Accumulators whose layout is hidden leave through the memory of the buffers.
    """
    context = draft.context
    assert context.machine is not None
    room = context.machine.multiprocessor.block_shared
    capacity = draft.constant(f"{scope}.capacity", room)
    amounts = []
    for op, tile in zip(context.sources, tiles_of(context), strict=False):
        if op in staged:
            padding = draft.variables[f"align.{op.name}"].domain
            rows = (tile.rows.lanes * int(tile.row(int(n))) for n in padding)
            size = draft.select(f"bytes.{op.name}", f"align.{op.name}", rows)
            fragments = (size, *context.along("span", op))
            amounts.append(draft.product(f"{scope}.{op.name}", fragments, "other"))
    result, tile = context.destination, tiles_of(context)[-1]
    if tile.hidden:
        size = draft.constant(f"bytes.{result.name}", tile.elements * tile.bits // 8)
        own = (size, *(f"warps.{loop.name}" for loop in context.spatial))
        leaving = draft.product(f"{scope}.{result.name}", own, "other")
        words = f"{{left}} bytes of {scope} for accumulators, but {room} are there"
        draft.limit(leaving, capacity, words)
    step = draft.sum(f"{scope}.step", amounts)
    buffers = (name for name in ("unroll", "pipeline") if name in draft.variables)
    draft.limit(
        draft.product(f"{scope}.used", (step, *buffers), "other"),
        capacity,
        f"{{left}} bytes of {scope} in use by one thread block, but {room} are there",
    )


def _can_swizzle(tile: Tile) -> bool:
    """Return whether lanes know the places of their elements, and rows have pieces to permute.

    It is asked of both sides of a fragment, whichever the tensor is contiguous along.
    """
    return tile.nest.mapping.intrinsic.open_registers and any(
        swizzle_period(-(-width // ROW_ALIGNMENT) * ROW_ALIGNMENT) for width in side_bytes(tile)
    )


def side_bytes(tile: Tile) -> list[int]:
    """Return bytes of the elements along each side of a fragment."""
    lanes = [tile.nest.groups[target].lanes for target in tile.staged.fragment]
    return [max(1, n * tile.bits // 8) for n in lanes]


def described_copies(draft: Draft) -> None:
    """C6: copy as many bytes at once as memory statements of the sources allow."""
    for statement in draft.context.mapping.intrinsic.memory:
        if statement.vectors and "copy_bytes" in draft.variables and statement.direction == "load":
            draft.require(In("copy_bytes", statement.vectors, draft.rule))


#: In the order that they are applied in.
GPU_RULES = [
    Rule("C1", tiles),
    Rule("C2", rules.fused_sizes),
    Rule("C3", partial(rules.orders, shares_all=True)),
    Rule("C1", split),
    Rule("C4", partial(rules.stages, places=("tile",))),
    Rule("C3", copies),
    Rule("C3", blocks),
    Rule("C5", thread_registers),
    Rule("C5", memories),
    Rule("C5", own_buffers),
    Rule("C5", threads),
    Rule("C6", rules.limit_by_description),
    Rule("C6", described_copies),
]
