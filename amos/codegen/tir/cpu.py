"""Schedule → TensorIR for CPUs: tile, order, parallelize, tensorize (Table 3a)."""

from __future__ import annotations

from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.tir.edges import part_edges
from amos.codegen.tir.program import MAIN, Program, spatial_variable, step_variable
from amos.codegen.tir.shuffling import shuffle_staging
from amos.codegen.tir.skipping import skip_padding
from amos.codegen.tir.split_reduction import shorten_last_part
from amos.codegen.tir.tensor_intrin import register_tensor_intrin
from amos.plan.cpu_plan import CpuPlan, dividing_width

__all__ = [
    "copy_block",
    "parallelize",
    "schedule_cpu",
    "split_step",
    "stage_blocks",
    "tile_loops",
    "vectorize_tail",
]


def schedule_cpu(program: Program) -> Any:
    """Do to a program what its plan says, and tensorize.

    Args:
        program: the unscheduled computation.

    Returns:
        A module that is ready to compile.
    """
    load_tvm()
    from tvm import s_tir

    plan = program.plan
    sch = s_tir.Schedule(program.prim_func())
    main = sch.get_sblock("main")
    loops = _named_loops(sch, main, program)
    # A fragment of one element leaves no lane to vectorize.
    vector = any(lane.extent > 1 for lane in plan.mapping.intrinsic.compute.spatial)
    # Parts of a sum are lanes too, but are no longer there when it is written back.
    parted = plan.partial > 1
    finishing = _finishing(sch, main, program)
    steps = [loops[name] for name in plan.reduce]
    outer, blocks, inner = tile_loops(sch, plan, loops)
    lanes = [loops[name] for name in program.lanes]
    # Loops of a single step, which no schedule names, stand outside, where they part nothing.
    single = [loops[x.name] for x in plan.nest.spatial if x.extent == 1 and x.name in loops]
    sch.reorder(*single, *outer, *blocks, *steps, *inner, *lanes)
    for loop in inner:
        sch.unroll(loop)
    places, outer = parallelize(sch, plan, outer)
    if surrounding := [*outer, *blocks]:
        around = len(sch.get_loops(main)) - len(steps) - len(inner) - len(lanes)
        for block in finishing:
            sch.reverse_compute_at(block, surrounding[-1])
            _finish_copy(sch, block, around, vector)
    stage_blocks(sch, plan, places)
    split_step(sch, steps, plan.unrolled)
    _initialize(sch, main, steps, lanes, inner, vector or parted)
    if plan.split is not None:
        # What has too little parallelism has few sums.
        vectorize_tail(sch, sch.get_sblock("unstage"), 1, plan.copy_width)
    elif not plan.destination.in_place:
        copy_block(sch, sch.get_sblock("unstage"), 1, plan.copy_width)
    sch.tensorize(lanes[0], register_tensor_intrin(plan.mapping.intrinsic, plan.implementation))
    return shuffle_staging(_finished_loops(sch.mod, program), program)


def _finishing(sch: Any, main: Any, program: Program) -> list[Any]:
    """The blocks that take the accumulators of one tile from registers, in order."""
    made = [sch.get_sblock("fold")] if program.plan.partial > 1 else []
    if program.crops:
        made.append(sch.get_sblock("unstage"))
    return made or [sch.cache_write(main, 0, "global")]


def _finished_loops(module: Any, program: Program) -> Any:
    """The module without the steps that add nothing, and without conditions at edges."""
    import tvm

    ((name, function),) = module.functions.items()
    function = skip_padding(function, program)
    function = part_edges(function, program)
    if (split := program.plan.split) is not None:
        part, step = spatial_variable(0), step_variable(split.loop)
        function = shorten_last_part(function, split, MAIN, part, step)
    return tvm.IRModule({name: function})


def _named_loops(sch: Any, block: Any, program: Program) -> dict[str, Any]:
    """Loops of the main block by the nest's names, in the order TE made them."""
    names = list(program.dimensions)
    names += [loop.name for loop in program.plan.nest.reduce if loop.extent > 1]
    names += [g.lane for g in program.plan.nest.groups.values() if g.kind == "reduce"]
    return dict(zip(names, sch.get_loops(block), strict=True))


def tile_loops(
    sch: Any, plan: CpuPlan, loops: dict[str, Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """Split each spatial loop into its outer part, its block and its register tile."""
    blocks: dict[str, Any] = {}
    tiles: dict[str, Any] = {}
    rest = dict(loops)
    for factors, low in ((plan.tile, tiles), (plan.blocks, blocks)):
        for name, factor in factors.items():
            if int(sch.get(rest[name]).extent) == factor:
                low[name] = rest.pop(name)
            else:
                rest[name], low[name] = sch.split(rest[name], [None, factor])
    outer = [rest[name] for name in plan.outer]
    return outer, [blocks[name] for name in plan.blocks], [tiles[name] for name in plan.tile]


def parallelize(sch: Any, plan: CpuPlan, outer: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Fuse the outermost loops and divide them over the cores.

    Returns:
        the loops that copies can stand in, outermost first, by their place, and the outer loops
        without what was divided of them.
    """
    if not outer:
        return {}, []
    count = len(plan.fused)
    fused = sch.fuse(*outer[:count]) if count > 1 else outer[0]
    if plan.ranges == plan.steps:
        # Every step runs in parallel.
        sch.parallel(fused)
        return {"step": fused}, [fused, *outer[count:]]
    high, low = sch.split(fused, [plan.ranges, None])
    sch.parallel(high)
    return {"range": high, "step": low}, [low, *outer[count:]]


def stage_blocks(sch: Any, plan: CpuPlan, places: dict[str, Any]) -> None:
    """Copy sources ahead of the nest, or where they are used.

    Rows that lie as in the tensor are left to :mod:`amos.codegen.amx.row_copies`.
    """
    for name, copy in plan.copies.items():
        block = sch.get_sblock(f"stage_{name}")
        if copy.place != "ahead":
            sch.compute_at(block, places[copy.place])
        elif copy.shared:
            shared = sch.get_loops(block)[: copy.shared]
            sch.parallel(sch.fuse(*shared) if copy.shared > 1 else shared[0])
        if copy.tail:
            vectorize_tail(sch, block, copy.tail, copy.width)


def copy_block(sch: Any, block: Any, tail: int, width: int) -> None:
    """A copy at the top: parallel over its outer loops, vectorized inside."""
    loops = sch.get_loops(block)
    if len(loops) > tail:
        sch.parallel(sch.fuse(*loops[:-tail]) if len(loops) - tail > 1 else loops[0])
    vectorize_tail(sch, block, tail, width)


def vectorize_tail(sch: Any, block: Any, tail: int, width: int) -> None:
    """Vectorize the last ``tail`` loops of a copy, at most ``width`` elements at a step."""
    loops = sch.get_loops(block)
    tail = min(tail, len(loops) - 1)
    if tail < 1:
        return
    fused = sch.fuse(*loops[-tail:]) if tail > 1 else loops[-1]
    extent = int(sch.get(fused).extent)
    width = dividing_width(width, extent)
    if width > 1:
        sch.vectorize(sch.split(fused, [None, width])[1] if extent > width else fused)


def _finish_copy(sch: Any, block: Any, around: int, vector: bool) -> None:
    """Write the accumulators of one tile back: unrolled, one fragment at a time.

    A loop over fragments would index the accumulators by a variable, which keeps
    them out of registers.
    """
    loops = sch.get_loops(block)[around:]
    if not loops:
        return
    for loop in loops[:-1] if vector else loops:
        sch.unroll(loop)
    if vector:
        sch.vectorize(loops[-1])


def split_step(sch: Any, steps: list[Any], factor: int) -> None:
    """Unroll steps of the innermost reduction, which ``factor`` divides."""
    if factor > 1:
        high, low = sch.split(steps[-1], [None, factor])
        sch.unroll(low)
        steps[-1] = high


def _initialize(
    sch: Any, main: Any, steps: list[Any], lanes: list[Any], inner: list[Any], vector: bool
) -> None:
    """Zero the accumulators before the reduction, one whole fragment at a time."""
    first = steps[0] if steps else (inner[0] if inner else lanes[0])
    init = sch.decompose_reduction(main, first)
    if vector:
        sch.vectorize(sch.get_loops(init)[-1])
