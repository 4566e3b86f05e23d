"""Statements of TensorIR made anew with something inside them changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["rebuilt", "with_body"]


def rebuilt(stmt: Any, change: Callable[[Any], Any]) -> Any:
    """The statement with each statement directly inside it changed.

    Args:
        stmt: a sequence, a branch without an else that matters, a loop or a block; any
            other statement is returned as it is.
        change: what becomes of each.
    """
    from tvm import s_tir, tirx

    kind = type(stmt).__name__
    if kind == "SeqStmt":
        return tirx.SeqStmt([change(each) for each in stmt.seq])
    if kind == "IfThenElse":
        return tirx.IfThenElse(stmt.condition, change(stmt.then_case), stmt.else_case)
    if kind == "For":
        return with_body(stmt, change(stmt.body))
    if kind != "SBlockRealize":
        return stmt
    inner = stmt.block
    block = s_tir.SBlock(
        inner.iter_vars, inner.reads, inner.writes, inner.name_hint, change(inner.body),
        inner.init, inner.alloc_buffers, inner.match_buffers, inner.annotations,
    )  # fmt: skip
    return s_tir.SBlockRealize(stmt.iter_values, stmt.predicate, block)


def with_body(loop: Any, body: Any) -> Any:
    """The loop around another body."""
    from tvm import tirx

    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding,
        loop.annotations,
    )  # fmt: skip
