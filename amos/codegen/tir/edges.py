"""Tiles at the end of a loop that they do not divide: written out apart from the others.

A condition for each result of a register tile would stand behind the reduction, and
LLVM moves the calls that make the result behind it too: one after the other instead of
side by side, with what they read waiting in memory. So there is one condition for a
whole register tile, and two pieces of code: all of its steps, or those before the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from amos.codegen.tir.loops import changed, find, occurs
from amos.codegen.tir.program import MAIN, Program, spatial_variable
from amos.codegen.tir.rewriting import rebuilt, with_body

__all__ = ["part_edges"]

_INIT, _COPY = "main_init", "unstage"


@dataclass(frozen=True)
class _Edge:
    """A loop that its tiles and blocks do not divide.

    Attributes:
        dimension: of the accumulators.
        start: where a register tile begins, in terms of the loops around it.
        tile: steps of a register tile.
        extent: steps that have a result.
        padded: steps of whole tiles and blocks.
    """

    dimension: int
    start: Any
    tile: int
    extent: int
    padded: int

    @property
    def rest(self) -> int:
        """Steps of the tile that is cut; 0 if none is."""
        return self.extent % self.tile

    @property
    def beyond(self) -> bool:
        """Whether whole tiles lie beyond the end."""
        return self.padded - self.extent >= self.tile


def part_edges(function: Any, program: Program) -> Any:
    """A scheduled function whose register tiles are written out without conditions.

    Args:
        function: what a schedule has made, after tensorization.
        program: what was scheduled.
    """
    import tvm
    from tvm import s_tir

    main = find(function.body, MAIN)
    if not program.crops or not program.plan.padded or main is None:
        return function
    extents = {loop.name: loop.extent for loop in program.plan.nest.spatial}
    edges = []
    for name, padded in program.plan.padded.items():
        dimension = program.dimensions.index(name)
        start = _start(main.values[spatial_variable(dimension)], main.loops)
        edges.append(_Edge(dimension, start, program.plan.tile.get(name, 1), extents[name], padded))
    around = [loop for loop in main.loops if find(loop.body, _INIT) is not None][-1]

    def parted(loop: Any) -> Any:
        whole = _within(loop.body, _INIT, lambda tile: _parted(tile, edges))
        return with_body(loop, whole)

    function = function.with_body(changed(function.body, around.loop_var, parted))
    # Each piece of code gets loops of its own.
    return s_tir.transform.ConvertSSA()(tvm.IRModule({"main": function}))["main"]


def _within(stmt: Any, block: str, change: Callable[[Any], Any]) -> Any:
    """The statement changed from the one on that holds a block; copies before it are left."""
    from tvm import tirx

    if type(stmt).__name__ != "SeqStmt":
        return change(stmt)
    first = next(n for n, each in enumerate(stmt.seq) if find(each, block) is not None)
    made = change(tirx.SeqStmt(list(stmt.seq[first:])))
    return tirx.SeqStmt([*stmt.seq[:first], made]) if first else made


def _parted(tile: Any, edges: Sequence[_Edge]) -> Any:
    """A register tile as whole ones and cut ones, under conditions that tell which it is."""
    from tvm import tirx

    if not edges:
        return tile
    edge, *others = edges
    made: Any = None
    if edge.rest:
        made = _parted(_cut(tile, edge, edge.rest), others)
        if edge.beyond:
            made = tirx.IfThenElse(edge.start < edge.extent, made, None)
    last = edge.extent - edge.tile
    whole = _parted(_cut(tile, edge, edge.tile), others)
    return tirx.IfThenElse(edge.start <= last, whole, made)


def _cut(stmt: Any, edge: _Edge, steps: int, step: Any = 0) -> Any:
    """A register tile of so many steps along an edge."""
    from tvm import s_tir, tirx

    kind = type(stmt).__name__
    if kind == "SBlockRealize":
        values = list(stmt.iter_values)
        values[edge.dimension] = edge.start + step
        # What a condition leaves out is not made to begin with.
        return s_tir.SBlockRealize(values, True, _anew(stmt.block))
    if kind != "For" or not _moves(stmt, edge.dimension):
        return rebuilt(stmt, lambda inner: _cut(inner, edge, steps, step))
    body = _cut(stmt.body, edge, steps, stmt.loop_var)
    return tirx.For(
        stmt.loop_var, stmt.min, steps, stmt.kind, body, stmt.thread_binding, stmt.annotations
    )


def _anew(block: Any) -> Any:
    """A block of the same meaning with variables of its own, on the same buffers."""
    import tvm
    from tvm import s_tir, tirx

    if not block.match_buffers:
        return block
    made = tvm.ir.load_json(tvm.ir.save_json(block))

    def region(copy: Any, given: Any) -> Any:
        return tirx.BufferRegion(given.source, copy.region)

    def regions(copies: Any, given: Any) -> list[Any]:
        return [region(*pair) for pair in zip(copies, given, strict=True)]

    matched = [
        s_tir.MatchBufferRegion(copy.buffer, region(copy.source, given.source))
        for copy, given in zip(made.match_buffers, block.match_buffers, strict=True)
    ]
    return s_tir.SBlock(
        made.iter_vars, regions(made.reads, block.reads), regions(made.writes, block.writes),
        made.name_hint, made.body, made.init, made.alloc_buffers, matched, made.annotations,
    )  # fmt: skip


def _moves(loop: Any, dimension: int) -> bool:
    """Whether a loop of a register tile is the one along a dimension of the accumulators."""
    from tvm import tirx

    if loop.kind != tirx.ForKind.UNROLLED:
        return False
    stmt = loop.body
    while type(stmt).__name__ != "SBlockRealize":
        stmt = stmt.body
    return occurs(loop.loop_var, stmt.iter_values[dimension])


def _start(value: Any, loops: Sequence[Any]) -> Any:
    """A position without the steps of the register tile."""
    from tvm import sym, tirx
    from tvm.ir import Range

    analyzer = sym.Analyzer()
    for loop in loops:
        tile = loop.kind == tirx.ForKind.UNROLLED
        whole = Range.from_min_extent(0, loop.extent)
        analyzer.bind(loop.loop_var, tirx.const(0, "int32") if tile else whole)
    return analyzer.simplify(value)
