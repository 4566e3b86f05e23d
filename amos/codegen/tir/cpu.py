"""Schedule → TensorIR for CPUs: tile, order, parallelize, tensorize (Table 3a)."""

from __future__ import annotations

from math import prod
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.tir.edges import part_edges
from amos.codegen.tir.program import MAIN, Program, spatial_variable, step_variable
from amos.codegen.tir.shuffling import shuffle_staging
from amos.codegen.tir.skipping import skip_padding
from amos.codegen.tir.split_reduction import PART, shorten_last_part
from amos.codegen.tir.tensor_intrin import register_tensor_intrin
from amos.ir import dtype
from amos.machine.cpu import cpu
from amos.plan import CpuSchedule
from amos.plan.nest import Loop
from amos.plan.staging_vectors import vector_copy
from amos.plan.strided import StridedOperand

__all__ = [
    "copy_block",
    "parallelize",
    "schedule_cpu",
    "split_step",
    "stage_blocks",
    "tile_loops",
    "vectorize_tail",
]

#: Parts of a copy for each core that keep the cores evenly busy.
_SHARES = 4


def schedule_cpu(program: Program, schedule: CpuSchedule, kind: str) -> Any:
    """Apply a schedule and tensorize.

    Args:
        program: the unscheduled computation.
        schedule: a feasible schedule of the program's mapping.
        kind: implementation of the intrinsic, ``"native"`` or ``"generic"``.

    Returns:
        A ``tvm.s_tir.Schedule`` whose module is ready to compile.
    """
    load_tvm()
    from tvm import s_tir

    sch = s_tir.Schedule(program.prim_func())
    main = sch.get_sblock("main")
    loops = _named_loops(sch, main, program)
    # A fragment of one element leaves no lane to vectorize.
    vector = any(lane.extent > 1 for lane in program.mapping.intrinsic.compute.spatial)
    # Parts of a sum are lanes too, but are no longer there when it is written back.
    parted = program.partial > 1
    finishing = _finishing(sch, main, program)
    order, width = schedule.spatial_order(program.nest), schedule.copy_width
    steps = [loops[loop.name] for loop in schedule.reduce_order(program.nest)]
    outer, blocks, inner = tile_loops(sch, order, loops, schedule)
    count = schedule.parallel
    if program.parts is not None:
        outer, count = [loops[PART], *outer], count + 1
    lanes = [loops[name] for name in program.lanes]
    # Loops of a single step, which no schedule names, stand outside, where they part nothing.
    single = [loops[x.name] for x in program.nest.spatial if x.extent == 1 and x.name in loops]
    sch.reorder(*single, *outer, *blocks, *steps, *inner, *lanes)
    for loop in inner:
        sch.unroll(loop)
    core, outer = parallelize(sch, outer, count)
    if surrounding := [*outer, *blocks]:
        around = len(sch.get_loops(main)) - len(steps) - len(inner) - len(lanes)
        for block in finishing:
            sch.reverse_compute_at(block, surrounding[-1])
            _finish_copy(sch, block, around, vector)
    # Where every step runs in parallel, the core's loop is the outermost one itself.
    places = [core, *(x for x in outer[:1] if x is not core)] if outer else []
    stage_blocks(sch, program, schedule, places, kind)
    unroll = schedule.unroll
    if program.parts is not None and len(steps) == 1:
        unroll = program.parts.unrolled
    split_step(sch, steps, unroll)
    _initialize(sch, main, steps, lanes, inner, vector or parted)
    if program.parts is not None:
        # What has too little parallelism has few sums.
        vectorize_tail(sch, sch.get_sblock("unstage"), 1, width)
    elif not program.destination.in_place:
        copy_block(sch, sch.get_sblock("unstage"), 1, width)
    sch.tensorize(lanes[0], register_tensor_intrin(program.mapping.intrinsic, kind))
    module = _finished_loops(sch.mod, program, schedule)
    if schedule.copy == "vectors":
        module = shuffle_staging(module, program)
    return s_tir.Schedule(module)


def _finishing(sch: Any, main: Any, program: Program) -> list[Any]:
    """The blocks that take the accumulators of one tile from registers, in order."""
    made = [sch.get_sblock("fold")] if program.partial > 1 else []
    if program.crops:
        made.append(sch.get_sblock("unstage"))
    return made or [sch.cache_write(main, 0, "global")]


def _finished_loops(module: Any, program: Program, schedule: CpuSchedule) -> Any:
    """The module without the steps that add nothing, and without conditions at edges."""
    import tvm

    ((name, function),) = module.functions.items()
    function = skip_padding(function, program)
    function = part_edges(function, program, schedule)
    if program.parts is not None:
        part, step = spatial_variable(0), step_variable(program.parts.loop)
        function = shorten_last_part(function, program.parts, MAIN, part, step)
    return tvm.IRModule({name: function})


def _named_loops(sch: Any, block: Any, program: Program) -> dict[str, Any]:
    """Loops of the main block by the nest's names, in the order TE made them."""
    names = list(program.dimensions)
    names += [loop.name for loop in program.nest.reduce if loop.extent > 1]
    names += [g.lane for g in program.nest.groups.values() if g.kind == "reduce"]
    return dict(zip(names, sch.get_loops(block), strict=True))


def tile_loops(
    sch: Any, order: tuple[Loop, ...], loops: dict[str, Any], schedule: CpuSchedule
) -> tuple[list[Any], list[Any], list[Any]]:
    """Split each spatial loop into its outer part, its block and its register tile.

    The longest register tile comes first: what the innermost one indexes is held in
    registers for all steps of the others, so that few fragments of sources live
    beside the accumulators.
    """
    outer, blocks, tiles = [], [], []
    for loop in order:
        tile, block = schedule.tile[loop.name], schedule.block[loop.name]
        rest = loops[loop.name]
        if tile > 1:
            rest, low = _divide(sch, rest, tile)
            tiles.append((tile, low))
        if block > 1 and rest is not None:
            rest, middle = _divide(sch, rest, block)
            blocks.append(middle)
        if rest is not None:
            outer.append(rest)
    inner = [low for _, low in sorted(tiles, key=lambda pair: -pair[0])]
    return outer, blocks, inner


def _divide(sch: Any, loop: Any, factor: int) -> tuple[Any, Any]:
    """The outer part, ``None`` if nothing is left of it, and the inner one."""
    if int(sch.get(loop).extent) == factor:
        return None, loop
    high, low = sch.split(loop, [None, factor])
    return high, low


def parallelize(sch: Any, outer: list[Any], count: int) -> tuple[Any, list[Any]]:
    """Fuse the outermost loops and divide them over the cores.

    Returns:
        the parallel loop, and the outer loops without what was divided of them.

    TVM allocates the buffers of a parallel loop's body anew in every step, which
    costs as much as a small tile does. So only as many steps run in parallel as
    keep the cores evenly busy, each of them a plain loop over a contiguous range.
    """
    if not outer:
        return None, []
    count = min(count, len(outer))
    fused = sch.fuse(*outer[:count]) if count > 1 else outer[0]
    steps = int(sch.get(fused).extent)
    ranges = _even_ranges(steps, cpu().cores)
    if ranges == steps:
        sch.parallel(fused)
        return fused, [fused, *outer[count:]]
    high, low = sch.split(fused, [ranges, None])
    sch.parallel(high)
    return high, [low, *outer[count:]]


def _even_ranges(steps: int, cores: int) -> int:
    """Fewest equal ranges that load the busiest core no more than single steps do."""
    busiest = -(-steps // cores)
    for ranges in range(min(cores, steps), steps):
        if steps % ranges == 0 and -(-ranges // cores) * (steps // ranges) <= busiest:
            return ranges
    return steps


def stage_blocks(
    sch: Any, program: Program, schedule: CpuSchedule, places: list[Any], kind: str
) -> None:
    """Copy sources ahead of the nest, or where they are used.

    Where they are used is the first of ``places``, outermost first, in which the
    copy fits the cache: once for each core, so that neither waits for the other
    nor reads what the other has just written, or else once for each outermost step.
    Rows that lie as in the tensor are left to :mod:`amos.codegen.amx.row_copies`.
    """
    for op, argument in zip(program.sources, program.arguments, strict=False):
        if op.in_place or argument.packed is not None:
            continue
        block = sch.get_sblock(f"stage_{op.name}")
        vectors = vector_copy(op) if schedule.copy == "vectors" else None
        width = schedule.copy_width
        # Generic code needs LLVM's loop vectorizer, which must see no fused lanes
        # (amos.codegen.tir.target).
        together = len(op.fragment) + 1 if kind == "native" else 1
        if schedule.stage[op.name] == "whole" or not places:
            if vectors is not None:
                _share_out(sch, block, min([len(op.dims) - vectors.unit, *vectors.written_out]))
            elif isinstance(op, StridedOperand):
                _share_out(sch, block, len(op.dims) - 1)
            else:
                copy_block(sch, block, together, width)
            continue
        for place in places:
            sch.compute_at(block, place)
            inside = _inside(sch, block, place)
            copied = prod(int(sch.get(each).extent) for each in sch.get_loops(block)[-inside:])
            if copied * dtype(argument.dtype).bits // 8 <= _private_cache() // 2:
                break
        if vectors is None and not isinstance(op, StridedOperand):
            vectorize_tail(sch, block, min(together, inside), width)


def _share_out(sch: Any, block: Any, count: int) -> None:
    """Divide the outermost loops of a copy, at most ``count``, over the cores.

    As few as keep the cores evenly busy: what is fused has to be taken apart again.
    """
    loops, steps, taken = sch.get_loops(block)[:count], 1, 0
    while taken < len(loops) and steps < _SHARES * cpu().cores:
        steps *= int(sch.get(loops[taken]).extent)
        taken += 1
    if taken:
        sch.parallel(sch.fuse(*loops[:taken]) if taken > 1 else loops[0])


def _private_cache() -> int:
    """Bytes of the largest cache that a core has for itself."""
    own = (c.capacity for c in cpu().caches if c.units == cpu().cores)
    return max(own, default=1 << 18)


def _inside(sch: Any, block: Any, loop: Any) -> int:
    """How many loops around a block stand inside ``loop``, one of them."""
    loops = [sch.get(each) for each in sch.get_loops(block)]
    around = next(n for n, each in enumerate(loops) if each.same_as(sch.get(loop)))
    return len(loops) - around - 1


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
    while width > 1 and extent % width:
        width //= 2
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
    """Unroll steps of the innermost reduction, where ``factor`` divides it."""
    if steps and factor > 1 and int(sch.get(steps[-1]).extent) % factor == 0:
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
