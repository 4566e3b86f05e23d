"""Separate code for the tiles at the end of a loop that they do not divide.

A condition for each result of a register tile would follow the reduction, and LLVM would sink the
calls that compute the result below it: they would run in sequence instead of interleaved, and their
operands would be spilled. So there is one condition for a whole register tile, and two pieces of
code: all of its steps, or those before the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amos._toolchain import ir, s_tir, sym, tirx, tvm_ffi
from amos.codegen.tir.program import STORED, Program, spatial_variable
from amos.codegen.tir.statements import common_loops, copy_loop, find_block, occurs, replace_loop
from amos.plan.cpu_plan import Edge


@dataclass(frozen=True)
class _Edge:
    """A loop that its tiles and blocks do not divide.

    Attributes:
        dimension: of the accumulators.
        start: where a register tile begins, in terms of the loops around it.
    """

    plan: Edge
    dimension: int
    start: Any


def part_edges(function: Any, program: Program) -> Any:
    """Write the register tiles of a scheduled function out without conditions."""
    main = find_block(function.body, program.main)
    if not program.plan.edges or main is None:
        return function
    edges = []
    for edge in program.plan.edges:
        dimension = program.axes.index((edge.loop,))
        start = _start(main.values[spatial_variable(dimension)], main.loops)
        edges.append(_Edge(edge, dimension, start))
    enclosing = common_loops(main, STORED)[-1]
    first = "main_init" if program.plan.mapping.operator.compute.accumulates else program.main

    def part_loop(loop: Any) -> Any:
        return copy_loop(loop, body=_part_body(loop.body, first, edges))

    return replace_loop(function, enclosing.loop_var, part_loop)


def _part_body(body: Any, first: str, edges: Sequence[_Edge]) -> Any:
    """Part the register tile at the end of a loop's body; leave the copies before it."""
    if type(body).__name__ != "SeqStmt" or find_block(body.seq[0], first) is not None:
        return _part_tile(body, edges)
    start = next(n for n, each in enumerate(body.seq) if find_block(each, first) is not None)
    return tirx.SeqStmt([*body.seq[:start], _part_tile(tirx.SeqStmt(body.seq[start:]), edges)])


def _part_tile(tile: Any, edges: Sequence[_Edge]) -> Any:
    """Write a register tile as whole ones and cut ones, under conditions that tell them apart."""
    if not edges:
        return _renew_variables(tile)
    edge, *inner = edges
    plan, cut = edge.plan, None
    if plan.cut:
        cut = _part_tile(_cut(tile, edge, plan.cut), inner)
        if plan.beyond:
            cut = tirx.IfThenElse(edge.start < plan.extent, cut, None)
    whole = _part_tile(_cut(tile, edge, plan.tile), inner)
    return tirx.IfThenElse(edge.start <= plan.extent - plan.tile, whole, cut)


def _cut(stmt: Any, edge: _Edge, steps: int, step: Any = 0) -> Any:
    """Cut a register tile to ``steps`` steps along an edge."""

    def block(realize: Any, _: Any) -> Any:
        values = list(realize.iter_values)
        values[edge.dimension] = edge.start + step
        # What a condition leaves out is not computed to begin with.
        return s_tir.SBlockRealize(values, True, realize.block)

    def loop(node: Any, mutator: Any) -> Any:
        if not _moves(node, edge.dimension):
            return mutator.default_mutate(node)
        return copy_loop(node, body=_cut(node.body, edge, steps, node.loop_var), extent=steps)

    return tvm_ffi.structural_mutate(stmt, [(s_tir.SBlockRealize, block), (tirx.For, loop)])


def _renew_variables(tile: Any) -> Any:
    from tvm_ffi.serialization import from_json_graph_str, to_json_graph_str

    # TVM's own function would first look for what its earlier versions wrote.
    copy = from_json_graph_str(to_json_graph_str(tile))
    originals = dict(zip(*map(tirx.analysis.undefined_vars, (copy, tile)), strict=True))
    return tvm_ffi.structural_map(copy, (tirx.Var, lambda x: originals.get(x, x)))


def _moves(loop: Any, dimension: int) -> bool:
    """Return whether a loop of a register tile runs along a dimension of the accumulators."""
    if loop.kind != tirx.ForKind.UNROLLED:
        return False
    stmt = loop.body
    while type(stmt).__name__ != "SBlockRealize":
        stmt = stmt.body
    return occurs(loop.loop_var, stmt.iter_values[dimension])


def _start(value: Any, loops: Sequence[Any]) -> Any:
    """Return a position without the steps of the register tile."""
    analyzer = sym.Analyzer()
    for loop in loops:
        tile = loop.kind == tirx.ForKind.UNROLLED
        extent = ir.Range.from_min_extent(0, loop.extent)
        analyzer.bind(loop.loop_var, tirx.const(0, "int32") if tile else extent)
    return analyzer.simplify(value)
