"""Copies of whole fragments, after scheduling: vector loads and a permutation.

The innermost loops of a staging block, over the elements of a fragment, are replaced by
what :mod:`amos.plan.staging_vectors` plans. A run entirely in the padding holds the padding's
value. Where a run is partly outside of the tensor, the fragment is copied element by element.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from amos._toolchain import ir, s_tir, sym, tirx, tvm_ffi
from amos.codegen.tir.arrays import constant, convert
from amos.codegen.tir.program import Program
from amos.codegen.tir.statements import rewrite, wrap_in_loops
from amos.plan.staging import Guard
from amos.plan.staging_vectors import VectorCopy, VectorPlan


def shuffle_staging(function: Any, program: Program) -> Any:
    """Copy a scheduled function's gathered sources in vectors where possible."""
    for source, copy in program.plan.copies.items():
        if copy.vectors is not None:
            in_vectors = partial(_copy_in_vectors, name=f"stage_{source}", copy=copy.vectors)
            function = function.with_body(rewrite(function.body, "For", in_vectors))
    return function


class _Live(NamedTuple):
    """Conditions of a run: it is zeros if one of ``filled`` fails, padding if one of ``inside``."""

    filled: list[Any]
    in_bounds: list[Any]


def _copy_in_vectors(nest: Any, *, name: str, copy: VectorCopy) -> Any:
    """Replace the innermost of the loops around a block of that name by one block of vectors."""
    loops, realize = [], nest
    while type(realize).__name__ == "For":
        loops.append(realize)
        realize = realize.body
    if type(realize).__name__ != "SBlockRealize" or realize.block.name_hint != name:
        return None
    dims, block = copy.op.dims, realize.block
    replaced = [*copy.written_out, *range(len(dims) - copy.unit, len(dims))]
    moving = {
        x.name for d in replaced for x in tirx.analysis.undefined_vars(realize.iter_values[d])
    }
    inner = [x for x in loops if x.loop_var.name in moving]
    # Runs entirely in the padding read nothing.
    if not block.reads or not _covers(inner, realize, copy, replaced):
        return nest
    bound = {d: tirx.Var(f"v_o{d}", "int32") for d in range(len(dims)) if d not in replaced}
    vectors = [_store_vector(copy, block, bound, place) for place in copy.places()]
    stores = [store for store, _ in vectors]
    body = tirx.SeqStmt(stores) if len(stores) > 1 else stores[0]
    if uncut := _distinct([c for _, conditions in vectors for c in conditions]):
        at = [bound.get(d, value) for d, value in enumerate(realize.iter_values)]
        # The block's predicate stands once, around the whole vector.
        elements = wrap_in_loops(inner, s_tir.SBlockRealize(at, True, block))
        body = tirx.IfThenElse(tirx.all(*uncut), body, elements)
    source, target = block.reads[0].source, block.writes[0].source
    written = [(bound[d], 1) if d in bound else (0, dim.extent) for d, dim in enumerate(dims)]
    copied = s_tir.SBlock(
        [tirx.IterVar((0, dims[d].extent), v, tirx.IterVar.DataPar) for d, v in bound.items()],
        [_region(source, [(0, size) for size in source.shape])], [_region(target, written)],
        f"{name}_vectors", body,
    )  # fmt: skip
    values = [realize.iter_values[d] for d in bound]
    outer = [x for x in loops if x.loop_var.name not in moving]
    return wrap_in_loops(outer, s_tir.SBlockRealize(values, realize.predicate, copied))


def _region(buffer: Any, ranges: list[tuple[Any, Any]]) -> Any:
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(*each) for each in ranges])


def _covers(inner: list[Any], realize: Any, copy: VectorCopy, replaced: list[int]) -> bool:
    """Return whether loops of their own copy the replaced dimensions from end to end."""
    lengths = {x.loop_var.name: int(x.extent) for x in inner}
    if any(x.name in lengths for x in tirx.analysis.undefined_vars(realize.predicate)):
        return False
    moved = {d: copy.op.dims[d].extent for d in replaced if copy.op.dims[d].extent > 1}
    loops_match = all(
        type(value := realize.iter_values[d]).__name__ == "Var" and lengths.get(value.name) == size
        for d, size in moved.items()
    )
    return loops_match and len(lengths) == len(moved)


def _store_vector(
    copy: VectorCopy, block: Any, bound: dict[int, Any], place: tuple[int, ...]
) -> tuple[Any, list[Any]]:
    """Store one vector; return the store and the conditions under which no run of it is cut."""
    plan = copy.plan(place)
    assert plan is not None
    at = bound | dict(zip(copy.written_out, place, strict=True))
    lead = [at[d] for d in sorted(at)]
    first = [0] * copy.unit
    live, uncut = _conditions(copy, plan, lead)
    where, _ = copy.op.locate([*lead, *first])
    fillers = (constant(x, copy.op.tensor_kind) for x in (copy.op.load.padding, copy.op.empty))
    value = _permute(plan, block.reads[0].source, where, live, *fillers)
    value = convert(value, copy.op.tensor_kind, copy.op.kind, copy.elements)
    return block.writes[0].source.vstore([*lead, *first], value), uncut


def _conditions(
    copy: VectorCopy, plan: VectorPlan, lead: list[Any]
) -> tuple[list[_Live], list[Any]]:
    """Return when each run is read at all, and when all elements of every run are alike."""
    analyzer, op = sym.Analyzer(), copy.op
    for value, dim in zip(lead, op.dims, strict=False):
        if isinstance(value, tirx.Var):
            whole = ir.Range.from_min_extent(0, dim.extent)
            analyzer.bind(value, tirx.const(0, "int32") if dim.extent == 1 else whole)
    #: Of each run the guards of its elements, by dimension.
    reach: list[dict[int, list[Guard]]] = [{} for _ in plan.runs]
    for position, pick in zip(copy.positions(), plan.picks, strict=True):
        if pick is None:
            continue
        for number, guard in enumerate(op.locate([*lead, *position])[1]):
            if not isinstance(guard.at, int):
                reach[pick[0]].setdefault(number, []).append(guard)
    live = [_Live([], []) for _ in plan.runs]
    uncut: list[Any] = []
    for conditions, ends in zip(live, reach, strict=True):
        for tests in ends.values():
            first, bound, pads = tests[0]
            steps = [int(analyzer.simplify(each.at - first)) for each in tests]
            low, high = (tests[steps.index(most(steps))].at for most in (min, max))
            unproven = [c for c in (low >= 0, high < bound) if not analyzer.can_prove(c)]
            padding = pads and op.load.padding != op.empty
            alike = conditions.in_bounds if padding else conditions.filled
            (alike if min(steps) == max(steps) else uncut).extend(unproven)
    return [_Live(_distinct(each.filled), _distinct(each.in_bounds)) for each in live], uncut


def _distinct(conditions: list[Any]) -> list[Any]:
    distinct: list[Any] = []
    for condition in conditions:
        if not any(tvm_ffi.structural_equal(condition, seen) for seen in distinct):
            distinct.append(condition)
    return distinct


def _permute(
    plan: VectorPlan, source: Any, where: list[Any], live: list[_Live], padding: Any, empty: Any
) -> Any:
    """Permute the runs of a plan, and the fill of its empty slots, into one vector."""
    parts: list[Any] = []
    #: Where each run's elements stand among the parts: the first part's start, and the
    #: start and first element of a second one that overlaps it.
    starts: list[tuple[int, int, int]] = []
    total = 0
    for (offset, length), conditions in zip(plan.runs, live, strict=True):
        width = 1 << (length.bit_length() - 1)
        starts.append((total, width, length))
        for begin in [0] if width == length else [0, length - width]:
            load = _load(source, where, offset + begin, width)
            if conditions.in_bounds:
                in_bounds = tirx.all(*conditions.in_bounds)
                load = tirx.if_then_else(in_bounds, load, _repeat(padding, width))
            if conditions.filled:
                load = tirx.if_then_else(tirx.all(*conditions.filled), load, _repeat(empty, width))
            parts.append(load)
            total += width
    # A permutation may not have more elements than its operands.
    if missing := max(len(plan.picks) - total, int(None in plan.picks)):
        parts.append(_repeat(empty, missing))
    index = []
    for pick in plan.picks:
        if pick is None:
            index.append(total)
            continue
        first, width, length = starts[pick[0]]
        in_first = pick[1] < width
        index.append(first + (pick[1] if in_first else 2 * width - length + pick[1]))
    if len(parts) == 1 and index == list(range(total)):
        return parts[0]
    return tirx.Shuffle(parts, [tirx.const(n, "int32") for n in index])


def _load(source: Any, where: list[Any], offset: int, width: int) -> Any:
    """Load ``width`` consecutive elements of a tensor, from an offset on."""
    if not where:
        return source[()]
    kind = str(source.dtype)
    at = [*where[:-1], where[-1] + offset]
    return source.vload(at, f"{kind}x{width}" if width > 1 else kind)


def _repeat(value: Any, width: int) -> Any:
    return tirx.Broadcast(value, width) if width > 1 else value
