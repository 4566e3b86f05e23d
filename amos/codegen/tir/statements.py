"""Finding and changing statements of a scheduled function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from amos._toolchain import s_tir, sym, tirx, tvm, tvm_ffi


@dataclass(frozen=True)
class BlockNest:
    """A block of a scheduled function, its loops, outermost first, and its variables by name."""

    loops: tuple[Any, ...]
    values: dict[str, Any]
    block: Any


def find_block(stmt: Any, block: str, loops: tuple[Any, ...] = ()) -> BlockNest | None:
    """Find the block of that name and its enclosing loops; ``None`` if there is none."""
    kind = type(stmt).__name__
    if kind == "SBlockRealize":
        if stmt.block.name_hint != block:
            return find_block(stmt.block.body, block, loops)
        names = (x.var.name for x in stmt.block.iter_vars)
        return BlockNest(loops, dict(zip(names, stmt.iter_values, strict=True)), stmt.block)
    if kind == "SeqStmt":
        inner = (find_block(each, block, loops) for each in stmt.seq)
        return next((nest for nest in inner if nest is not None), None)
    if kind == "For":
        return find_block(stmt.body, block, (*loops, stmt))
    return find_block(stmt.then_case, block, loops) if kind == "IfThenElse" else None


def common_loops(nest: BlockNest, block: str) -> tuple[Any, ...]:
    """Return the loops of a nest that enclose another block, too, from the outermost inward."""
    return tuple(loop for loop in nest.loops if find_block(loop.body, block) is not None)


def occurs(variable: Any, expression: Any) -> bool:
    """Return whether an expression contains a variable; two variables may have one name."""
    return any(variable.same_as(each) for each in tirx.analysis.undefined_vars(expression))


def has_names(function: Any) -> bool:
    """Return whether expressions in a function or a module bind names to values.

    TVM ignores such values when it looks for common subexpressions, but replaces them there too,
    even where they are not computed yet.
    """
    return bool(collect_nodes(function, tirx.Let))


def has_dependent_conditions(function: Any) -> bool:
    """Return whether a branch with an ``else`` contains a condition on one of the same loops.

    TVM simplifies the inner condition by what the outer one says, and then hoists it out of both,
    so that it also decides on the other branch.
    """
    parted = (
        each for each in collect_nodes(function, tirx.IfThenElse) if each.else_case is not None
    )
    for stmt in parted:
        loops = collect_nodes(stmt.condition, tirx.Var)
        for branch in (stmt.then_case, stmt.else_case):
            for inner in collect_nodes(branch, tirx.IfThenElse):
                variables = collect_nodes(inner.condition, tirx.Var)
                if any(a.same_as(b) for a in variables for b in loops):
                    return True
    return False


def collect_nodes(node: Any, kind: Any) -> list[Any]:
    """List the nodes of a class in a function, a statement or an expression."""
    nodes: list[Any] = []
    tvm_ffi.structural_walk(node, (kind, nodes.append))
    return nodes


def rewrite(stmt: Any, kind: str, change: Callable[[Any], Any]) -> Any:
    """Replace some statements within another.

    Args:
        kind: class of the statements to look at, of ``tvm.tirx``.
        change: returns the new statement, inside of which nothing is replaced; ``None`` keeps the
            statement and continues inside it.
    """

    def visit(node: Any, mutator: Any) -> Any:
        replacement = change(node)
        return mutator.default_mutate(node) if replacement is None else replacement

    return tvm_ffi.structural_mutate(stmt, (getattr(tirx, kind), visit))


def replace_loop(function: Any, variable: Any, change: Callable[[Any], Any]) -> Any:
    """Replace the loop over a variable in a function by ``change`` of it."""

    def change_matching(loop: Any) -> Any:
        return change(loop) if loop.loop_var.same_as(variable) else None

    return function.with_body(rewrite(function.body, "For", change_matching))


def copy_loop(loop: Any, *, body: Any = None, extent: Any = None) -> Any:
    """Copy a loop with another body or another extent."""
    return tirx.For(
        loop.loop_var, loop.min, loop.extent if extent is None else extent, loop.kind,
        loop.body if body is None else body, loop.thread_binding, loop.annotations,
    )  # fmt: skip


def _pieces(begin: int, end: int, width: int) -> Iterator[tuple[int, int, int]]:
    """Yield the start of each piece of a range, its number of vectors, and their elements."""
    while begin < end:
        while width > end - begin:
            width //= 2
        count = (end - begin) // width
        yield begin, count, width
        begin += count * width


def write_pieces(loop: Any, begin: int, end: int, width: int) -> list[Any]:
    """Write steps ``begin`` to ``end`` of a loop over a block as loops over vectors."""
    copy, loops = loop.body, []
    for at, count, lanes in _pieces(begin, end, width):
        step, lane = tirx.Var("piece", "int32"), tirx.Var("lane", "int32")
        place = at + step * lanes + lane

        def substitute(variable: Any, place: Any = place) -> Any:
            return place if variable.same_as(loop.loop_var) else variable

        values = [tvm_ffi.structural_map(x, (tirx.Var, substitute)) for x in copy.iter_values]
        predicate = tvm_ffi.structural_map(copy.predicate, (tirx.Var, substitute))
        body = s_tir.SBlockRealize(values, predicate, _renew_names(copy.block))
        vector = tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, body)
        loops.append(tirx.For(step, 0, count, tirx.ForKind.SERIAL, vector))
    return loops


def _renew_names(block: Any) -> Any:
    """Copy a block with new names for its values: TVM allows one value for each name."""
    names = [let.var for let in collect_nodes(block, tirx.Let)]
    renewed = {name: tirx.Var(name.name, str(name.ty.dtype)) for name in names}
    if not renewed:
        return block
    return tvm_ffi.structural_map(block, (tirx.Var, lambda x: renewed.get(x, x)))


def buffer_bytes(buffer: Any) -> int:
    """Return the size of a buffer; more than any limit if it is unknown."""
    kind = tvm.DataType(str(buffer.dtype))
    sizes = [getattr(size, "value", 1 << 40) for size in buffer.shape]
    return prod(sizes) * int(kind.bits) * int(kind.lanes) // 8


def wrap_in_loops(loops: Sequence[Any], body: Any) -> Any:
    """Wrap a body in loops, outermost first."""
    for loop in reversed(loops):
        body = copy_loop(loop, body=body)
    return body


def tests_digits(stmt: Any, lanes: tuple[Any, ...] = ()) -> bool:
    """Return whether a vectorized copy tests, in each lane, a digit of the lane's number.

    TVM leaves such a copy a loop, with the condition in it.
    """
    kind = type(stmt).__name__
    if kind == "For":
        vector = stmt.kind == tirx.ForKind.VECTORIZED
        return tests_digits(stmt.body, (*lanes, stmt.loop_var) if vector else lanes)
    if kind == "SeqStmt":
        return any(tests_digits(each, lanes) for each in stmt.seq)
    if kind == "IfThenElse":
        return tests_digits(stmt.then_case, lanes)
    if kind != "SBlockRealize":
        return False
    body, analyzer = stmt.block.body, sym.Analyzer()
    if type(body).__name__ != "BufferStore":
        return tests_digits(body, lanes)
    for variable, value in zip(stmt.block.iter_vars, stmt.iter_values, strict=True):
        analyzer.bind(variable.var, value)
    tested = (analyzer.simplify(condition) for condition in _conditions(body.value))
    return any("%" in str(x) and any(occurs(lane, x) for lane in lanes) for x in tested)


def _conditions(value: Any) -> Iterator[Any]:
    parts = list(getattr(value, "args", ()))
    if parts and "if_then_else" in str(value.op):
        yield parts[0]
    names = ("a", "b", "value", "true_value", "false_value")
    for child in parts + [getattr(value, name) for name in names if hasattr(value, name)]:
        yield from _conditions(child)


def serialize(body: Any) -> Any:
    """Return a statement with serial loops, for the core that runs it."""

    def change(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.PARALLEL:
            return None
        body = rewrite(loop.body, "For", change)
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, body)

    return rewrite(body, "For", change)
