"""Plain loops, which compute all nodes of a region that are in no group.

Each function gets one simple schedule: outer loops parallel, the innermost spatial loop as vectors.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from math import copysign, inf, prod
from pathlib import Path
from typing import Any

from amos._toolchain import load_tvm, s_tir, sym, tirx, tvm
from amos.codegen.scheduling import last_line
from amos.codegen.tir.comparing import propagate_nan
from amos.codegen.tir.memory import UNCHECKED, align_to_bytes, register_pipeline
from amos.codegen.tir.rounding import (
    define_operators,
    fence_products,
    quantizes,
    round_products,
)
from amos.codegen.tir.statements import collect_nodes, occurs
from amos.codegen.tir.target import host_target
from amos.errors import NetworkError
from amos.ir.floats import limits
from amos.network.loops.fusion import PARALLEL_STEPS
from amos.network.loops.reductions import LANES

#: Elements of vectors, and the bytes of the longest.
_VECTORS, _LONGEST = (64, 32, 16, 8), 64
#: Pieces of a parallel loop that are enough to balance the cores.
_PIECES = 64
#: Most reads of an inlined block: polynomials that are inlined in each other take minutes to
#: compile.
_READS = 64
#: Kinds of TensorIR's iterations: independent of each other, and summed over.
_KINDS = _PARALLEL, _SUMMED = 0, 2


def to_text(functions: Mapping[str, Any]) -> str:
    """Serialize functions of TensorIR by name, for another process."""
    load_tvm()
    from tvm_ffi.serialization import to_json_graph_str

    return str(to_json_graph_str(tvm.IRModule(functions)))


def object_code(text: str, exact: bool) -> bytes:
    """Schedule functions, texts of :func:`to_text`, and compile them for this CPU."""
    load_tvm()
    from tvm_ffi.serialization import from_json_graph_str

    define_operators()
    pipeline = register_pipeline("amos_engine", fence_products)
    functions = {each.name_hint: f for each, f in from_json_graph_str(text).functions.items()}
    module = tvm.IRModule(schedule_loops(functions, exact))
    try:
        with tvm.transform.PassContext(config=UNCHECKED):
            compiled = tvm.tirx.build(module, target=host_target(), pipeline=pipeline)
    except Exception as error:  # TVM's passes fail with errors of many types
        raise NetworkError(f"TVM cannot compile loops: {last_line(error)}") from error
    return code_of(compiled)


def code_of(module: Any) -> bytes:
    """Return the object file of a compiled module of TVM."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "code.o")
        module.write_to_file(str(path), "o")
        return path.read_bytes()


def needs_exact_rounding(functions: Iterable[Any]) -> bool:
    """Return whether functions round floats to integers.

    A quantized result may lie halfway between two quanta, and then depends on every rounding.
    """
    return any(map(quantizes, functions))


def schedule_loops(functions: Mapping[str, Any], exact: bool) -> dict[str, Any]:
    """Schedule functions of :class:`amos.network.loops.functions.LoopFunctions`.

    Args:
        exact: whether products are rounded before they are added.
    """
    load_tvm()
    results = {}
    for name, function in functions.items():
        scheduled = _begin_at_infinity(propagate_nan(_schedule_loops(function)))
        results[name] = _allow_unaligned(round_products(scheduled) if exact else scheduled)
    return results


def _begin_at_infinity(function: Any) -> Any:
    """Return a function whose maxima and minima of floats begin at an infinity.

    TVM's begin at the largest finite numbers, and it divides the reductions of no others.
    """
    import tvm_ffi

    def infinite(number: Any) -> Any:
        # Of bfloat16 the largest number is float32's.
        unbounded = abs(number.value) >= limits(str(number.ty.dtype))[1]
        return tirx.const(copysign(inf, number.value), number.ty.dtype) if unbounded else number

    def replace_init(block: Any) -> Any:
        if block.name_hint.endswith("_init"):
            return tvm_ffi.structural_map(block, bounds)
        if block.init is None:
            return block
        init = tvm_ffi.structural_map(block.init, bounds)
        parts = block.iter_vars, block.reads, block.writes, block.name_hint, block.body, init
        return s_tir.SBlock(*parts, block.alloc_buffers, block.match_buffers, block.annotations)

    bounds = tirx.FloatImm, infinite
    return function.with_body(tvm_ffi.structural_map(function.body, (s_tir.SBlock, replace_init)))


def _allow_unaligned(function: Any) -> Any:
    """Return a function whose arguments may begin at any byte, as a network's inputs do."""
    return align_to_bytes(tvm.IRModule({"main": function}))["main"]


def _schedule_loops(function: Any) -> Any:
    """Schedule a function: outer loops in parallel, innermost ones as vectors."""
    schedule = s_tir.Schedule(tvm.IRModule({"main": function}))
    try:
        root = schedule.get_sblock("root")
        for block in _select_inlined(schedule, schedule.get_child_blocks(root)):
            _inline(schedule, block)
        begins = [_schedule_block(schedule, b) for b in schedule.get_child_blocks(root)]
        # Apart from their first value sums can no longer be moved.
        for begin in begins:
            begin()
    except (s_tir.ScheduleError, tvm.error.InternalError):
        return function  # what cannot be scheduled runs as it is
    return schedule.mod["main"]


def _select_inlined(schedule: Any, blocks: list[Any]) -> list[Any]:
    """Select the blocks that are computed where they are read.

    Ahead of a transpose values are complete: they are computed in vectors, and moved one by one.
    """
    *before, last = blocks
    if _transposes(schedule, last):
        moved = len(before)
        while moved and _moves(schedule, before[moved - 1]):
            moved -= 1
        del before[max(moved - 1, 0) : moved]
    return before


def _moves(schedule: Any, block: Any) -> bool:
    """Return whether a block only moves elements, with or without padding."""
    value: Any = getattr(schedule.get(block).body, "value", None)
    if getattr(getattr(value, "op", None), "name", "") == "prim.if_then_else":
        value = value.args[1]
    return type(value).__name__ == "TensorLoad"


def _transposes(schedule: Any, block: Any) -> bool:
    """Return whether a block moves neighbouring elements to places that are no neighbours."""
    described = schedule.get(block)
    if not described.iter_vars or not _moves(schedule, block):
        return False
    last = described.iter_vars[-1].var
    return not any(not read.region or read.region[-1].min.same_as(last) for read in described.reads)


def _inline(schedule: Any, block: Any) -> None:
    """Compute an intermediate where it is read, unless that is in two places or in every step."""
    consumers = schedule.get_consumers(block)
    if len(consumers) != 1 or _reads_inlined(schedule, block, consumers[0]) > _READS:
        return
    if _is_read_again(schedule, block, consumers[0]) and not _moves(schedule, block):
        return
    try:
        schedule.compute_inline(block)
    except s_tir.ScheduleError:
        return  # it is a sum, or decides what is read


def _is_read_again(schedule: Any, block: Any, consumer: Any) -> bool:
    """Return whether each step of a loop reads the same element of a block's result."""
    described = schedule.get(consumer)
    result = schedule.get(block).writes[0].source
    read = [at.min for x in described.reads if x.source.same_as(result) for at in x.region]
    loops = (each.var for each in described.iter_vars if int(each.dom.extent) > 1)
    return not all(any(occurs(loop, index) for index in read) for loop in loops)


def _reads_inlined(schedule: Any, block: Any, consumer: Any) -> int:
    """Count the reads of a block if it were inlined in its consumer."""
    described = schedule.get(block)
    result = described.writes[0].source
    reads = collect_nodes(schedule.get(consumer).body, tvm.ir.TensorLoad)
    times = sum(bool(read.source.same_as(result)) for read in reads)
    return times * len(collect_nodes(described.body, tvm.ir.TensorLoad))


def _schedule_block(schedule: Any, block: Any) -> Callable[[], None]:
    """Schedule the loops of a block; return the last step, which waits for all other blocks."""
    kinds = [int(each.iter_type) for each in schedule.get(block).iter_vars]
    loops = schedule.get_loops(block)
    plain = len(loops) == len(kinds) and all(kind in _KINDS for kind in kinds)
    if any(schedule.get(loop).kind for loop in loops):
        return lambda: None  # it is computed in the loops of its sums
    spatial = [loop for loop, kind in zip(loops, kinds, strict=False) if kind == _PARALLEL]
    if not plain or not spatial:
        return lambda: None
    summed = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _SUMMED]
    extents = {loop: int(schedule.get(loop).extent) for loop in loops}
    large = prod(extents.values()) >= PARALLEL_STEPS
    vectors = _list_lanes(schedule, block)
    rows = vectors and summed == loops[-1:] and extents[loops[-1]] % LANES == 0
    if rows and _along_rows(schedule, block):
        return _schedule_rows(schedule, block, large)
    if not summed and (lengths := _concatenated_lengths(schedule, block, extents[loops[-1]])):
        return _schedule_concatenation(schedule, loops, lengths, vectors, large)
    *outer, last = spatial
    lanes = next((n for n in vectors if extents[last] % n == 0), 1)
    if lanes == 1 and vectors and not summed and outer and extents[last] > 2 * LANES:
        return _schedule_ragged(schedule, loops, extents[last], large)
    vector = []
    if lanes > 1:
        last, inner = schedule.split(last, [None, lanes])
        vector = [inner]
    schedule.reorder(*outer, last, *summed, *vector)
    if summed and vector and (follower := _find_follower(schedule, block)):
        schedule.reverse_compute_at(follower, last)
        vector.append(schedule.get_loops(follower)[-1])
    if large:
        _divide(schedule, [*outer, last])
    for loop in vector:
        schedule.vectorize(loop)
    return lambda: schedule.decompose_reduction(block, summed[0]) if summed else None


def _find_follower(schedule: Any, block: Any) -> Any:
    """Return the only consumer of the sums of a block, if it is elementwise."""
    consumers = schedule.get_consumers(block)
    sums = schedule.get(block).writes[0].source
    if len(consumers) != 1:
        return None
    described = schedule.get(consumers[0])
    if [int(each.iter_type) for each in described.iter_vars] != [_PARALLEL] * len(sums.shape):
        return None
    own = [
        int(at.extent) == 1 and (at.min.same_as(each.var) or int(each.dom.extent) == 1)
        for read in described.reads
        if read.source.same_as(sums)
        for at, each in zip(read.region, described.iter_vars, strict=True)
    ]
    return consumers[0] if all(own) else None


def _list_lanes(schedule: Any, block: Any) -> list[int]:
    """List the lanes that a block's vectors may have; TVM stores no bfloat16 constants in them.

    What is the same for a whole vector, as the indices of rows are, may be wider.
    """
    described = schedule.get(block)
    tensors = [*described.reads, *described.writes]
    if any(str(each.source.dtype) == "bfloat16" for each in tensors):
        return []
    last = [each.var for each in described.iter_vars if int(each.iter_type) == _PARALLEL][-1]
    along = [each for each in tensors if any(occurs(last, at.min) for at in each.region)]
    widest = max((tvm.DataType(str(x.source.dtype)).bits + 7) // 8 for x in along)
    return [n for n in _VECTORS if n * widest <= _LONGEST]


def _divide(schedule: Any, loops: list[Any]) -> None:
    """Run the outer loops in parallel, as many as make enough pieces."""
    pieces, count = 1, 0
    while count < len(loops) and pieces < _PIECES:
        pieces *= int(schedule.get(loops[count]).extent)
        count += 1
    schedule.parallel(schedule.fuse(*loops[:count]) if count > 1 else loops[0])


def _along_rows(schedule: Any, block: Any) -> bool:
    """Return whether a block sums neighbouring elements into one."""
    described = schedule.get(block)
    last = described.iter_vars[-1].var
    rows = any(read.region[-1].min.same_as(last) for read in described.reads if read.region)
    return rows and len(described.writes) == 1


def _concatenated_lengths(schedule: Any, block: Any, extent: int) -> list[int]:
    """List the lengths of a concatenation's operands along the last iteration of a block."""
    described = schedule.get(block)
    last, begins = described.iter_vars[-1].var, {0, extent}
    for call in collect_nodes(described.body, tvm.ir.Call):
        if getattr(call.op, "name", "") == "prim.if_then_else":
            condition: Any = call.args[0]
            line: Any = ()
            if type(condition).__name__ == "LE":
                line = sym.detect_linear_equation(condition.b - condition.a, [last])
            if [type(each).__name__ for each in line] == ["IntImm"] * 2 and int(line[0]) == 1:
                begins.add(-int(line[1]))
    places = sorted(begin for begin in begins if 0 <= begin <= extent)
    return [after - at for at, after in pairwise(places)] if len(places) > 2 else []


def _schedule_concatenation(
    schedule: Any, loops: list[Any], lengths: list[int], vectors: list[int], large: bool
) -> Callable[[], None]:
    """Write a loop for each operand of a concatenation, without conditions on elements.

    Vectors are stated, as LLVM unrolls short loops and then makes vectors of the loop around them.
    """
    *outer, last = loops
    if large and outer:
        _divide(schedule, outer)
    lanes = next((n for n in vectors if not any(each % n for each in lengths)), 1)
    if lanes > 1:
        last, lane = schedule.split(last, [None, lanes])
        schedule.vectorize(lane)
    schedule.loop_partition(last, [*(each // lanes for each in lengths[:-1]), None])
    return lambda: None


def _schedule_ragged(
    schedule: Any, loops: list[Any], extent: int, large: bool
) -> Callable[[], None]:
    """Vectorize the last loop as far as vectors fill it; a second loop computes its end."""
    *outer, last = loops
    if large:
        _divide(schedule, outer)
    whole, _ = schedule.loop_partition(last, [extent // LANES * LANES, None])
    schedule.vectorize(schedule.split(whole, [None, LANES])[1])
    return lambda: None


def _schedule_rows(schedule: Any, block: Any, large: bool) -> Callable[[], None]:
    """Sum rows in as many parts as a vector has lanes, which are added at the end of a row."""
    *rows, summed = schedule.get_loops(block)
    _, lane = schedule.split(summed, [None, LANES])
    parts = schedule.rfactor(lane, len(rows))
    row = schedule.fuse(*schedule.get_loops(block)[:-1])
    schedule.compute_at(parts, row)
    lane, steps = schedule.get_loops(parts)[-2:]
    schedule.reorder(steps, lane)
    if large:
        schedule.parallel(row)
    schedule.vectorize(lane)
    return lambda: schedule.decompose_reduction(parts, steps)
