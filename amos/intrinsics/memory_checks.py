"""Checks of memory statements against the fragments of their intrinsic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from amos.intrinsics.memory import REGISTERS, Memory
from amos.intrinsics.scratchpad import scratchpads
from amos.ir import BufferLoad, dtype

if TYPE_CHECKING:
    from amos.intrinsics.description import Intrinsic


def memory_problems(unit: Intrinsic) -> Iterator[str]:
    """Yield the errors of a memory abstraction, in words; callers stop at the first."""
    loads = {load.tensor.name: load for load in unit.operands}
    for statement in unit.memory:
        yield from _statement_problems(unit, statement, loads[statement.operand])
    yield from _scope_problems(unit.memory)
    yield from _placement_problems(unit)


def complete_statement(statement: Memory, operand: BufferLoad) -> Memory:
    """Complete a statement of an operand; without indices the fragment is contiguous outside."""
    shape, indices, strides = operand.tensor.shape, statement.indices, statement.strides
    if not indices:
        indices = tuple(index.names[0] for index in operand.indices)
        strides = tuple(str(prod(shape[d + 1 :])) for d in range(len(shape)))
    return replace(statement, indices=indices, strides=strides, fragment=operand.tensor)


def _scope_problems(memory: Sequence[Memory]) -> Iterator[str]:
    """Yield reasons why statements do not describe one memory together, in words."""
    declared = {pad.name for pad in scratchpads(memory)} | {*REGISTERS}
    bases: dict[tuple[str, str], str] = {}
    for statement in memory:
        where = f"memory statement of {statement.operand!r}"
        if statement.register_scope not in declared:
            yield (
                f"{where}: scope {statement.register_scope!r} is declared nowhere: expected "
                f"{', '.join(sorted(declared))}, or the capacity of such a buffer"
            )
        owner = bases.setdefault((statement.scope, statement.address), statement.operand)
        if owner != statement.operand:
            yield (
                f"{where}: expected a base address of its own, got {statement.address} of {owner!r}"
            )


def _placement_problems(unit: Intrinsic) -> Iterator[str]:
    """Yield reasons why fragments have no single place in memory, or no room on chip."""
    symbols: dict[str, tuple[str, int]] = {}
    for statement in unit.memory:
        where, name = f"memory statement of {statement.operand!r}", statement.operand
        placement = statement.placement
        if placement != unit.placements[name]:
            yield f"{where}: its load and its store put elements in different places"
        for symbol, value in zip(statement.strides, placement.strides, strict=True):
            if not symbol.isdigit() and symbols.setdefault(symbol, (name, value))[1] != value:
                yield (
                    f"{where}: stride {symbol} is {value} elements here and {symbols[symbol][1]} "
                    f"in {symbols[symbol][0]!r}; give each a name of its own"
                )
    for pad in unit.scratchpads:
        need = sum(unit.fragment_bytes(x) for x in unit.operands if x.tensor.name in pad.operands)
        if pad.capacity < need:
            yield (
                f"memory: buffer {pad.name!r}: capacity: expected a fragment of each of "
                f"{', '.join(pad.operands)}, {need} bytes, got {pad.capacity}"
            )


def _statement_problems(unit: Intrinsic, statement: Memory, operand: BufferLoad) -> Iterator[str]:
    """Yield reasons why a memory statement cannot move its operand."""
    where = f"memory statement of {statement.operand!r}"
    indices = tuple(index.names[0] for index in operand.indices)
    if statement.indices != indices:
        yield (
            f"{where}: expected the fragment's indices {', '.join(indices) or 'none'}, "
            f"got {', '.join(statement.indices) or 'none'}"
        )
    if unknown := [n for n in statement.broadcast if n not in unit.extents]:
        yield f"{where}: broadcast along {unknown[0]!r}; iterations are {', '.join(unit.extents)}"
    size = unit.fragment_bytes(operand)
    if statement.capacity and statement.capacity < size:
        yield (
            f"{where}: capacity: expected at least one fragment, {size} bytes, "
            f"got {statement.capacity}"
        )
    stored = operand is unit.destination
    if statement.staged:
        kind = dtype(str(operand.tensor.dtype))
        if stored or not dtype(statement.staged).represents(kind):
            yield (
                f"{where}: staged: expected a dtype with every value of a source's {kind.name}, "
                f"got {statement.staged}"
            )
    if statement.direction == "store" and not stored:
        yield f"{where}: a source is loaded, not stored"
    if statement.layout is not None:
        statement.layout.check(statement.operand, indices, operand.tensor.shape)
