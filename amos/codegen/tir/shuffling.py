"""Copies of whole fragments, after scheduling: vector loads and a permutation.

The innermost loops of a staging block, over the elements of a fragment, are replaced by
what :mod:`amos.plan.staging_vectors` plans. A run that lies in padding as a whole is
zeros. Where a run leaves the tensor halfway, the fragment is copied element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amos.codegen.tir.program import Program
from amos.codegen.tir.rewriting import rebuilt, with_body
from amos.plan.staging_vectors import VectorCopy, VectorPlan

__all__ = ["shuffle_staging"]


def shuffle_staging(module: Any, program: Program) -> Any:
    """A scheduled module whose gathered sources are copied in vectors where they can be.

    Args:
        module: the module of a schedule.
        program: what was scheduled.
    """
    import tvm

    (name,) = module.functions
    function = module[name]
    for source, copy in program.plan.copies.items():
        if copy.vectors is not None:
            body = _rewritten(function.body, f"stage_{source}", copy.vectors)
            function = function.with_body(body)
    return tvm.IRModule({name: function})


def _rewritten(stmt: Any, block: str, copy: VectorCopy) -> Any:
    """The statement with the loops over a vector of the block's copy replaced."""
    found = _nest(stmt, block) if type(stmt).__name__ == "For" else None
    if found is not None:
        return _copied(*found, copy)
    return rebuilt(stmt, lambda each: _rewritten(each, block, copy))


def _nest(stmt: Any, block: str) -> tuple[list[Any], Any] | None:
    """Loops around nothing but a block of that name, from here on, and the block."""
    loops = []
    while type(stmt).__name__ == "For":
        loops.append(stmt)
        stmt = stmt.body
    is_it = type(stmt).__name__ == "SBlockRealize" and stmt.block.name_hint == block
    return (loops, stmt) if is_it else None


def _copied(loops: list[Any], realize: Any, copy: VectorCopy) -> Any:
    """The nest with its innermost loops, those over a vector, made one block."""
    from tvm import s_tir, tirx

    count, block = len(copy.op.dims), realize.block
    replaced = [*copy.written_out, *range(count - copy.unit, count)]
    inside = {
        x.name for d in replaced for x in tirx.analysis.undefined_vars(realize.iter_values[d])
    }
    kept = [x for x in loops if x.loop_var.name not in inside]
    inner = [x for x in loops if x.loop_var.name in inside]
    known = _whole(inner, realize, copy, replaced)
    # What lies in the padding as a whole reads nothing.
    if not known or not block.reads:
        return _again(loops, realize)
    outer = [d for d in range(count) if d not in replaced]
    bound = {d: tirx.Var(f"v_o{d}", "int32") for d in outer}
    variables = [
        tirx.IterVar((0, copy.op.dims[d].extent), v, tirx.IterVar.DataPar) for d, v in bound.items()
    ]
    made_vectors = [_vector(copy, block, bound, place) for place in copy.places()]
    stores = [store for store, _ in made_vectors]
    body = tirx.SeqStmt(stores) if len(stores) > 1 else stores[0]
    uncut = _distinct([c for _, conditions in made_vectors for c in conditions])
    if uncut:
        at = [bound.get(d, value) for d, value in enumerate(realize.iter_values)]
        # Under which steps anything is copied is said once, of the whole vector.
        single = s_tir.SBlockRealize(at, True, block)
        body = tirx.IfThenElse(_all(uncut), body, _again(inner, single))
    made = s_tir.SBlock(
        variables, [_everything(block.reads[0].source)],
        [_region(copy, block.writes[0].source, bound, replaced)], f"{block.name_hint}_vectors",
        body,
    )  # fmt: skip
    values = [realize.iter_values[d] for d in outer]
    return _again(kept, s_tir.SBlockRealize(values, realize.predicate, made))


def _whole(inner: list[Any], realize: Any, copy: VectorCopy, replaced: list[int]) -> bool:
    """Whether the replaced dimensions are copied from end to end by loops of their own."""
    from tvm import tirx

    lengths = {x.loop_var.name: int(x.extent) for x in inner}
    if any(x.name in lengths for x in tirx.analysis.undefined_vars(realize.predicate)):
        return False
    for d in replaced:
        value, extent = realize.iter_values[d], copy.op.dims[d].extent
        if extent == 1:
            continue
        if type(value).__name__ != "Var" or lengths.get(value.name) != extent:
            return False
    return len(lengths) == sum(copy.op.dims[d].extent > 1 for d in replaced)


def _again(loops: Sequence[Any], body: Any) -> Any:
    for loop in reversed(loops):
        body = with_body(loop, body)
    return body


def _everything(buffer: Any) -> Any:
    from tvm import tirx
    from tvm.ir import Range

    return tirx.BufferRegion(buffer, [Range.from_min_extent(0, size) for size in buffer.shape])


def _region(copy: VectorCopy, buffer: Any, bound: dict[int, Any], replaced: list[int]) -> Any:
    from tvm import tirx
    from tvm.ir import Range

    ranges = [
        Range.from_min_extent(0, copy.op.dims[d].extent)
        if d in replaced
        else Range.from_min_extent(bound[d], 1)
        for d in range(len(copy.op.dims))
    ]
    return tirx.BufferRegion(buffer, ranges)


def _vector(
    copy: VectorCopy, block: Any, bound: dict[int, Any], place: tuple[int, ...]
) -> tuple[Any, list[Any]]:
    """Stores one vector, and the conditions under which no run of it is cut."""
    plan = copy.plan(place)
    assert plan is not None
    fixed = dict(zip(copy.written_out, place, strict=True))
    lead: list[Any] = [bound[d] if d in bound else fixed[d] for d in range(_leading(copy))]
    where, live, inside = _conditions(copy, plan, lead)
    value = _permuted(plan, block.reads[0].source, where, live)
    return block.writes[0].source.vstore([*lead, *[0] * copy.unit], value), inside


def _leading(copy: VectorCopy) -> int:
    return len(copy.op.dims) - copy.unit


def _conditions(
    copy: VectorCopy, plan: VectorPlan, lead: list[Any]
) -> tuple[list[Any], list[list[Any]], list[Any]]:
    """Where the vector begins, when each run is read at all, and when none is cut.

    Returns:
        the tensor's indices of the first position, the conditions of each run, and those
        under which all elements of every run are alike.
    """
    from tvm import tirx
    from tvm.sym import Analyzer

    analyzer, op = Analyzer(), copy.op
    for d, value in enumerate(lead):
        if isinstance(value, tirx.Var):
            extent = op.dims[d].extent
            analyzer.bind(value, tirx.const(0, "int32") if extent == 1 else _range(extent))
    where, _ = op.locate([*lead, *[0] * copy.unit])
    reach: list[dict[int, list[Any]]] = [{} for _ in plan.runs]
    for position, pick in zip(copy.positions(), plan.picks, strict=True):
        if pick is None:
            continue
        for number, (at, bound) in enumerate(op.locate([*lead, *position])[1]):
            if not isinstance(at, int):
                reach[pick[0]].setdefault(number, []).append((at, bound))
    live: list[list[Any]] = []
    inside: list[Any] = []
    for found in reach:
        live.append([])
        for tests in found.values():
            steps = [_distance(analyzer, at, tests[0][0]) for at, _ in tests]
            low, high = tests[steps.index(min(steps))][0], tests[steps.index(max(steps))][0]
            made = [low >= 0, high < tests[0][1]]
            unproven = [c for c in made if not analyzer.can_prove(c)]
            kept = live[-1] if min(steps) == max(steps) else inside
            kept += unproven
    return where, [_distinct(conditions) for conditions in live], inside


def _range(extent: int) -> Any:
    from tvm.ir import Range

    return Range.from_min_extent(0, extent)


def _distance(analyzer: Any, at: Any, first: Any) -> int:
    found = analyzer.simplify(at - first)
    return int(found)


def _distinct(conditions: list[Any]) -> list[Any]:
    from tvm_ffi import structural_equal

    kept: list[Any] = []
    for condition in conditions:
        if not any(structural_equal(condition, other) for other in kept):
            kept.append(condition)
    return kept


def _all(conditions: list[Any]) -> Any:
    from tvm import tirx

    return tirx.all(*conditions) if len(conditions) > 1 else conditions[0]


def _load(source: Any, where: list[Any], offset: int, width: int) -> Any:
    """So many elements of a tensor, from one at an offset on."""
    if not where:
        return source[()]
    kind = str(source.dtype)
    at = [*where[:-1], where[-1] + offset]
    return source.vload(at, f"{kind}x{width}" if width > 1 else kind)


def _permuted(plan: VectorPlan, source: Any, where: list[Any], live: list[list[Any]]) -> Any:
    """The vector of a plan: its runs, and zeros, permuted."""
    from tvm import tirx

    kind = str(source.dtype)
    parts: list[Any] = []
    #: Where each run's elements stand among the parts: the first part's start, and the
    #: start and first element of a second one that overlaps it.
    starts: list[tuple[int, int, int]] = []
    total = 0
    for (offset, length), conditions in zip(plan.runs, live, strict=True):
        width = 1 << (length.bit_length() - 1)
        begins = [0] if width == length else [0, length - width]
        first = total
        for begin in begins:
            load = _load(source, where, offset + begin, width)
            if conditions:
                zero = tirx.const(0, kind)
                empty = tirx.Broadcast(zero, width) if width > 1 else zero
                load = tirx.if_then_else(_all(conditions), load, empty)
            parts.append(load)
            total += width
        starts.append((first, width, length))
    # A permutation may not have more elements than what is permuted.
    missing = max(len(plan.picks) - total, int(None in plan.picks))
    if missing:
        zero = tirx.const(0, kind)
        parts.append(tirx.Broadcast(zero, missing) if missing > 1 else zero)
    index = []
    for pick in plan.picks:
        if pick is None:
            index.append(total)
            continue
        first, width, length = starts[pick[0]]
        inside = pick[1] < width
        index.append(first + (pick[1] if inside else 2 * width - length + pick[1]))
    if len(parts) == 1 and index == list(range(total)):
        return parts[0]
    return tirx.Shuffle(parts, [tirx.const(n, "int32") for n in index])
