"""Streams of a described unit: its compute instruction is loops around calls of the intrinsic.

The unit's description suffices: the intrinsic's meaning says what a call computes, its memory
statements where operands are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from amos.intrinsics import Intrinsic, execute
from amos.ir import Operator, dtype
from amos.machine.stream_unit import StreamUnit
from amos.streams.codegen.instructions import Access, Buffer, Compute, Memory, Stream
from amos.streams.codegen.rectangles import Tile
from amos.streams.codegen.scaling import Scaling, scaling_of
from amos.streams.codegen.writer import Step, Writer, refuse_extras
from amos.streams.plan import StreamPlan
from amos.streams.tiles import call_cycles
from amos.validate.buffers import nest_addresses


@dataclass(frozen=True, kw_only=True)
class Calls(Compute):
    """``for … for …: dst += call(sources)``, sums outermost.

    Attributes:
        intrinsic: what a call computes, indices in the order of memory.
        buffers: of the destination, then of each source.
        bases: fragment of each at the first step of all loops.
        first: whether accumulators begin with the reduction's neutral value.
        interval: cycles from a call to the next one.
        apart: least cycles between two calls on one accumulator.
    """

    intrinsic: Intrinsic
    loops: tuple[Step, ...]
    buffers: tuple[str, ...]
    bases: tuple[int, ...]
    first: bool
    interval: int
    apart: int

    @property
    def operations(self) -> int:
        """Cycles of all calls."""
        sums, spatial = (
            prod(step.length for step in self.loops if step.sums == kind) for kind in (True, False)
        )
        return sums * max(spatial * self.interval, self.apart)

    @cached_property
    def _rows(self) -> list[np.ndarray]:
        """Fragment of each operand in each call: int array, sums × others."""
        steps = [[x for x in self.loops if x.sums == kind] for kind in (True, False)]
        return [
            base + np.add.outer(*(nest_addresses((x.length, x.moves[n]) for x in y) for y in steps))
            for n, base in enumerate(self.bases)
        ]

    def access(self, memory: Memory, run: Sequence[Any]) -> Access:
        """List the fragments of sources, which it reads, and accumulators, which it writes.

        Accumulators are read before unless their sums begin.
        """
        read = {name: np.unique(rows) for name, rows in zip(self.buffers, self._rows, strict=True)}
        written = {self.buffers[0]: read[self.buffers[0]]}
        if self.first:
            del read[self.buffers[0]]
        return Access(read, written)

    def execute(self, memory: Memory, run: Sequence[Any]) -> None:
        """Call after call, those of different accumulators together."""
        into, *sources = (memory.chip[name] for name in self.buffers)
        unit, kind = self.intrinsic, self.intrinsic.dtypes[-1]
        if self.first:
            into[np.unique(self._rows[0])] = unit.compute.neutral(kind)
        for at, *rows in zip(*self._rows, strict=True):
            fragments = {
                load.tensor.name: buffer[row].astype(dtype(own).numpy, copy=False)
                for load, own, buffer, row in zip(
                    unit.operands, unit.dtypes, [*sources, into], [*rows, at], strict=True
                )
            }
            into[at] = execute(unit, fragments)

    def __str__(self) -> str:
        steps = " x ".join(str(step.length) for step in self.loops) or "1"
        places = [f"{name}[{base}]" for name, base in zip(self.buffers, self.bases, strict=True)]
        sign = "=" if self.first else "+="
        return f"{steps} calls {places[0]} {sign} {', '.join(places[1:])}"


def check(op: Operator, unit: StreamUnit, name: str) -> Scaling | None:
    """Return the scaling by stores, for an operator whose mappings on an intrinsic are streams.

    Raises:
        BuildError: the unit has nothing for the rest of the operator; one line says what.
    """
    refuse_extras(op, name)
    return scaling_of(op, unit.scales, name)


def program(plan: StreamPlan) -> Stream:
    """Write the stream of a plan.

    Raises:
        BuildError: the operator has a prologue, or an epilogue that the unit's stores do not
            compute, or the stream is too long.
    """
    scaling = check(plan.mapping.operator, plan.unit, plan.mapping.intrinsic.name)
    buffers = [*_buffers(plan)]
    if scaling is None:
        return _Program(plan, buffers).stream()
    sums = buffers[-1]
    out = replace(sums, name=f"{sums.name}.out", dtype=scaling.dtype, queue="", of=sums.name)
    buffers.append(replace(out, scaling=scaling))
    return _Program(plan, buffers, out.name).stream()


class _Program(Writer):
    def multiply(
        self, loops: tuple[Step, ...], tiles: Sequence[Tile], bases: Sequence[int], first: bool
    ) -> None:
        plan = self.plan
        calls = Calls(
            intrinsic=plan.mapping.intrinsic.ordered,
            loops=tuple(step for step in loops if step.length > 1),
            buffers=tuple(op.buffer for op in (plan.destination, *plan.sources)),
            bases=tuple(bases),
            first=first or not plan.mapping.intrinsic.compute.accumulates,
            interval=call_cycles(plan.structure, plan.machine),
            apart=max(m.write_interval for m in plan.mapping.intrinsic.memory),
        )
        touched = self.rows_of_tiles(tiles, bases)
        into = plan.destination.buffer
        self.draft.add([calls], touched, {into: touched[into]})

    def finish(self, result: Tile, slot: int) -> None:
        """Emit nothing, as stores apply the epilogue."""


def _buffers(plan: StreamPlan) -> Iterator[Buffer]:
    """Yield the buffer of each operand's fragments in a memory of the unit."""
    for op in plan.tiles.operands:
        queue = "compute" if op is plan.destination else "load"
        yield Buffer(op.buffer, plan.depths[op.name], op.fragment, op.staged.kind, queue)
