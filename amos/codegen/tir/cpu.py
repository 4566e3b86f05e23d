"""Schedule → TensorIR for CPUs: tile, order, parallelize, tensorize (Table 3a)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amos._toolchain import s_tir, tvm
from amos.codegen.tir.comparing import compare_with_nan
from amos.codegen.tir.edges import part_edges
from amos.codegen.tir.fetching import fetch_ahead, fetch_residuals
from amos.codegen.tir.program import STORED, Program
from amos.codegen.tir.redirecting import redirect_results
from amos.codegen.tir.shuffling import shuffle_staging
from amos.codegen.tir.skipping import shorten_last_part, skip_padding
from amos.codegen.tir.tails import part_tails
from amos.codegen.tir.tensor_intrin import register_tensor_intrin
from amos.plan.cpu_plan import CpuPlan


@dataclass(frozen=True)
class TiledNest:
    """The loops of the main block, tiled and in order, in groups from the outermost inward.

    Attributes:
        surrounding: loops around the reduction.
        inner: of the register tile.
        lanes: inside a call.
        depth: number of all loops that enclose the reduction.
        places: those of them that can hold copies, outermost first, by their place.
    """

    surrounding: list[Any]
    steps: list[Any]
    inner: list[Any]
    lanes: list[Any]
    depth: int
    places: dict[str, Any]


def schedule_cpu(program: Program) -> Any:
    """Schedule a program by its plan, and tensorize it; the module is ready to compile."""
    plan = program.plan
    sch = s_tir.Schedule(program.prim_func())
    main = sch.get_sblock("main")
    # A fragment of one element leaves no lane to vectorize.
    vector = any(lane.extent > 1 for lane in plan.mapping.intrinsic.compute.spatial)
    finishing = _finishing_blocks(sch, main, program)
    nest = tile_nest(sch, program)
    for loop in nest.inner:
        sch.unroll(loop)
    if nest.surrounding:
        for block in finishing:
            sch.reverse_compute_at(block, nest.surrounding[-1])
            _finish_copy(sch, block, nest.depth, vector)
    stage_blocks(sch, plan, nest.places)
    if plan.mapping.operator.compute.accumulates:
        first = [*nest.steps, *nest.inner, *nest.lanes][0]
        init = sch.decompose_reduction(main, first)
        # Parts of a sum are lanes too, but are already added up when it is written back.
        if vector or plan.partial > 1:
            sch.vectorize(sch.get_loops(init)[-1])
    if plan.split is not None:
        # A kernel with too little parallelism has few sums.
        vectorize_tail(sch, sch.get_sblock(STORED), 1, plan.output_width)
    elif program.moves:
        copy_output(sch, plan.output_width)
    sch.tensorize(
        nest.lanes[0], register_tensor_intrin(plan.mapping.intrinsic, plan.implementation)
    )
    ((name, function),) = sch.mod.functions.items()
    changes = (
        skip_padding,
        fetch_ahead,
        fetch_residuals,
        part_edges,
        shorten_last_part,
        shuffle_staging,
        redirect_results,
        part_tails,
        compare_with_nan,
    )
    for change in changes:
        function = change(function, program)
    return tvm.IRModule({name: function})


def _finishing_blocks(sch: Any, main: Any, program: Program) -> list[Any]:
    """Return the blocks that take one tile's accumulators from registers, in order."""
    blocks = [sch.get_sblock("fold")] if program.plan.partial > 1 else []
    if program.crops:
        blocks.append(sch.get_sblock(STORED))
    return blocks or [sch.cache_write(main, 0, "global")]


def tile_nest(sch: Any, program: Program) -> TiledNest:
    """Tile and order the loops of the main block, and divide the outermost over the cores."""
    plan, main = program.plan, sch.get_sblock("main")
    loops = _name_loops(sch, main, program)
    steps, lanes = ([loops[name] for name in names] for names in (plan.reduce, program.lanes))
    # Loops of one step, which no schedule names, go outermost, where they separate no others.
    single = [loops[x.name] for x in plan.nest.spatial if x.extent == 1 and x.name in loops]
    blocks: dict[str, Any] = {}
    tiles: dict[str, Any] = {}
    for factors, low in ((plan.tile, tiles), (plan.blocks, blocks)):
        for name, factor in factors.items():
            if int(sch.get(loops[name]).extent) == factor:
                low[name] = loops.pop(name)
            else:
                loops[name], low[name] = sch.split(loops[name], [None, factor])
    outer = [loops[name] for name in plan.outer]
    inner = list(tiles.values())
    sch.reorder(*single, *outer, *blocks.values(), *steps, *inner, *lanes)
    places, outer = _parallelize(sch, plan, outer)
    depth = len(sch.get_loops(main)) - len(steps) - len(inner) - len(lanes)
    if plan.unrolled > 1:
        # The steps that are unrolled divide those of the innermost reduction.
        steps[-1], unrolled = sch.split(steps[-1], [None, plan.unrolled])
        sch.unroll(unrolled)
    return TiledNest([*outer, *blocks.values()], steps, inner, lanes, depth, places)


def _name_loops(sch: Any, block: Any, program: Program) -> dict[str, Any]:
    """Return the main block's loops by the nest's names, tiles and lanes split apart."""
    nest, unnamed = program.plan.nest, iter(sch.get_loops(block))
    width = {group.lane: group.lanes for group in nest.groups.values()}
    loops: dict[str, Any] = {}
    for names in program.axes:
        loop = next(unnamed)
        if len(names) > 1:
            loop, loops[names[1]] = sch.split(loop, [None, width[names[1]]])
        loops[names[0]] = loop
    reduction = [loop.name for loop in nest.reduce if loop.extent > 1]
    reduction += [group.lane for group in nest.groups.values() if group.kind == "reduce"]
    return loops | dict(zip(reduction, unnamed, strict=True))


def _parallelize(sch: Any, plan: CpuPlan, outer: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Divide the outermost loops over cores; return loops that can hold copies, and others."""
    if not outer:
        return {}, []
    count = len(plan.fused)
    fused = _fuse(sch, outer[:count])
    if plan.ranges == plan.steps:
        # Every step runs in parallel.
        sch.parallel(fused)
        return {"step": fused}, [fused, *outer[count:]]
    high, low = sch.split(fused, [plan.ranges, None])
    sch.parallel(high)
    return {"range": high, "step": low}, [low, *outer[count:]]


def stage_blocks(sch: Any, plan: CpuPlan, places: dict[str, Any]) -> None:
    """Copy sources ahead of the nest, or where they are used.

    Rows in the tensor's own order are left to :mod:`amos.codegen.amx.row_copies`.
    """
    for name, copy in plan.copies.items():
        block = sch.get_sblock(f"stage_{name}")
        if copy.place != "ahead":
            sch.compute_at(block, places[copy.place])
        elif copy.shared:
            sch.parallel(_fuse(sch, sch.get_loops(block)[: copy.shared]))
        if copy.spread is not None:
            sch.storage_align(block, 0, copy.spread, 2 * copy.line, copy.line)
        if copy.tail:
            vectorize_tail(sch, block, copy.tail, copy.width)


def copy_output(sch: Any, width: int) -> None:
    """Move all accumulators to the output: parallel over the outer loops, vectorized inside."""
    block = sch.get_sblock(STORED)
    if outer := sch.get_loops(block)[:-1]:
        sch.parallel(_fuse(sch, outer))
    vectorize_tail(sch, block, 1, width)


def vectorize_tail(sch: Any, block: Any, tail: int, width: int) -> None:
    """Vectorize the last ``tail`` loops of a copy, ``width`` elements at a step."""
    if not (loops := sch.get_loops(block)[-tail:]):
        return  # an output without dimensions
    fused = _fuse(sch, loops)
    if width > 1:
        # A range of steps that begins within a loop has no constant extent.
        whole = getattr(sch.get(fused).extent, "value", None) == width
        sch.vectorize(fused if whole else sch.split(fused, [None, width])[1])


def _fuse(sch: Any, loops: list[Any]) -> Any:
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def _finish_copy(sch: Any, block: Any, depth: int, vector: bool) -> None:
    """Write the accumulators of one tile back: unrolled, one fragment at a time.

    A loop over fragments would index the accumulators by a variable, which keeps
    them out of registers.
    """
    loops = sch.get_loops(block)[depth:]
    if not loops:
        return
    for loop in loops[:-1] if vector else loops:
        sch.unroll(loop)
    if vector:
        sch.vectorize(loops[-1])
