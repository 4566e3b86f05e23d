"""Results at the end of a row, in vectors of its remaining elements.

A copy of accumulators to a tensor whose rows are no multiple of a vector tests in every lane
whether the row ends there. TVM does not vectorize such a copy. LLVM spends most of a kernel's
compilation on it: it masks vectors, which :mod:`amos.codegen.tir.narrow` forbids for results of 8
and 16 bits, and copies single elements where an epilogue reads a tensor. The position of a row's
end in its last vector is known, so that vector is written as shorter ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amos._toolchain import ir, s_tir, sym, tirx, tvm_ffi
from amos.codegen.tir.program import STORED, Program
from amos.codegen.tir.statements import copy_loop, occurs, write_pieces

#: Lanes of the vectors that a plain loop is written in.
_LANES = 16


def part_tails(function: Any, program: Program) -> Any:
    """Store a scheduled function's results in vectors without conditions."""
    loops: list[Any] = []

    def visit(loop: Any, mutator: Any) -> Any:
        loops.append(loop)
        parted = _part_copy(loop, loops)
        if parted is None:
            parted = mutator.default_mutate(loop)
        loops.pop()
        return parted

    return function.with_body(tvm_ffi.structural_mutate(function.body, (tirx.For, visit)))


@dataclass(frozen=True)
class _Bound:
    """A condition that the lanes of a copy up to some position meet.

    Attributes:
        condition: as the copy states it.
        valid: lanes that meet it; none or less, and more than there are, are possible.
        tail: value of ``valid`` where some lanes meet it and others do not.
    """

    condition: Any
    valid: Any
    tail: int


def _part_copy(loop: Any, loops: Sequence[Any]) -> Any:
    """Split a copy to the results into whole vectors and the last one; ``None`` for others."""
    copy = loop.body
    if type(copy).__name__ != "SBlockRealize" or copy.block.name_hint != STORED:
        return None
    conditions = [*_terms(copy.predicate)]
    if guarded := type(copy.block.body).__name__ == "IfThenElse":
        conditions += _terms(copy.block.body.condition)
    dependent = [x for x in conditions if _depends(x, copy, loop.loop_var)]
    bound = _find_bound(dependent[0], copy, loops) if len(dependent) == 1 else None
    if bound is None or (guarded and copy.block.body.else_case is not None):
        return None
    loop = copy_loop(loop, body=_drop_condition(copy, bound.condition))
    extent = int(loop.extent)
    vector = loop.kind == tirx.ForKind.VECTORIZED
    whole = [loop] if vector else write_pieces(loop, 0, extent, _LANES)
    parts = [tirx.IfThenElse(bound.valid >= extent, _sequence(whole), None)]
    if bound.tail:
        tail = write_pieces(loop, 0, bound.tail, extent if vector else _LANES)
        parts.append(tirx.IfThenElse(bound.valid.equal(bound.tail), _sequence(tail), None))
    return _sequence(parts)


def _sequence(statements: Sequence[Any]) -> Any:
    return tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]


def _terms(condition: Any) -> list[Any]:
    if type(condition).__name__ == "And":
        return [*_terms(condition.a), *_terms(condition.b)]
    return [condition]


def _resolve(value: Any, copy: Any) -> Any:
    """Express a value inside a block by the enclosing loops."""
    meanings = list(zip((x.var for x in copy.block.iter_vars), copy.iter_values, strict=True))

    def meaning(variable: Any) -> Any:
        return next((value for name, value in meanings if name.same_as(variable)), variable)

    return tvm_ffi.structural_map(value, (tirx.Var, meaning))


def _depends(condition: Any, copy: Any, lane: Any) -> bool:
    return occurs(lane, _resolve(condition, copy))


def _find_bound(condition: Any, copy: Any, loops: Sequence[Any]) -> _Bound | None:
    """Count the lanes of the innermost loop that meet a condition; ``None`` if unknown."""
    *outer, loop = loops
    kind = type(condition).__name__
    if kind not in ("LT", "LE"):
        return None
    distance = _resolve(condition.b - condition.a, copy) + (kind == "LE")
    line = sym.detect_linear_equation(distance, [loop.loop_var])
    analyzer = sym.Analyzer()
    for outer_loop in outer:
        analyzer.bind(
            outer_loop.loop_var, ir.Range.from_min_extent(outer_loop.min, outer_loop.extent)
        )
    if len(line) != 2 or not analyzer.can_prove_equal(line[0], -1):
        return None
    valid, extent = analyzer.simplify(line[1]), int(loop.extent)
    steps = analyzer.modular_set(valid)
    if int(steps.coeff) % extent:
        return None
    return _Bound(condition, valid, int(steps.base) % extent)


def _drop_condition(copy: Any, condition: Any) -> Any:
    def terms_left(whole: Any) -> list[Any]:
        return [x for x in _terms(whole) if not x.same_as(condition)]

    block, body = copy.block, copy.block.body
    if type(body).__name__ == "IfThenElse":
        terms = terms_left(body.condition)
        body = tirx.IfThenElse(tirx.all(*terms), body.then_case, None) if terms else body.then_case
        block = s_tir.SBlock(
            block.iter_vars, block.reads, block.writes, block.name_hint, body, block.init,
            block.alloc_buffers, block.match_buffers, block.annotations,
        )  # fmt: skip
    terms = terms_left(copy.predicate)
    predicate = tirx.all(*terms) if terms else tirx.const(True, "bool")
    return s_tir.SBlockRealize(copy.iter_values, predicate, block)
