"""Finding and changing a loop of a scheduled function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from amos.codegen.tir.rewriting import rebuilt

__all__ = ["Found", "changed", "find", "occurs", "tests_digits"]


@dataclass(frozen=True)
class Found:
    """A block of a scheduled function.

    Attributes:
        loops: the loops around it, from the outermost inward.
        values: the block's variables by name, in terms of those loops.
    """

    loops: tuple[Any, ...]
    values: dict[str, Any]


def find(stmt: Any, block: str, loops: tuple[Any, ...] = ()) -> Found | None:
    """The block of that name, and the loops around it; ``None`` if there is none.

    Args:
        stmt: where to look.
        block: the name.
        loops: loops around the statement.
    """
    kind = type(stmt).__name__
    if kind == "SBlockRealize":
        if stmt.block.name_hint != block:
            return find(stmt.block.body, block, loops)
        names = (x.var.name for x in stmt.block.iter_vars)
        return Found(loops, dict(zip(names, stmt.iter_values, strict=True)))
    if kind == "SeqStmt":
        inner = (find(each, block, loops) for each in stmt.seq)
        return next((found for found in inner if found is not None), None)
    if kind == "For":
        return find(stmt.body, block, (*loops, stmt))
    return find(stmt.then_case, block, loops) if kind == "IfThenElse" else None


def occurs(variable: Any, expression: Any) -> bool:
    """Whether an expression contains a variable; two variables may have one name.

    Args:
        variable: a loop's.
        expression: where to look.
    """
    from tvm import tirx

    return any(variable.same_as(each) for each in tirx.analysis.undefined_vars(expression))


def changed(stmt: Any, variable: Any, change: Callable[[Any], Any]) -> Any:
    """The statement with the loop over one variable replaced.

    Args:
        stmt: what contains the loop.
        variable: the loop's variable.
        change: makes the new loop of the old one.
    """
    if type(stmt).__name__ == "For" and stmt.loop_var.same_as(variable):
        return change(stmt)
    return rebuilt(stmt, lambda inner: changed(inner, variable, change))


def tests_digits(stmt: Any, lanes: tuple[Any, ...] = ()) -> bool:
    """Whether a vectorized copy tests, in each lane, a digit of the lane's number.

    TVM leaves such a copy a loop, with the condition in it.

    Args:
        stmt: where to look.
        lanes: variables of the vectorized loops around it.
    """
    from tvm import sym, tirx

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
    """The conditions of a value."""
    parts = list(getattr(value, "args", ()))
    if parts and "if_then_else" in str(value.op):
        yield parts[0]
    names = ("a", "b", "value", "true_value", "false_value")
    for each in parts + [getattr(value, name) for name in names if hasattr(value, name)]:
        yield from _conditions(each)
