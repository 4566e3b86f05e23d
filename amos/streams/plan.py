"""The plan of a stream: tiles, the loops around them, and the room that they have on chip.

>>> import amos
>>> op = amos.operators.get("gemm", dtype="s8", m=64, n=64, k=64)
>>> mapping = amos.enumerate_mappings(op, "vta_gemm_m1n16k16_s8_s32")[0]
>>> schedule = amos.StreamSchedule(tile={"i1.tile": 32, "i2.tile": 2}, steps={"r1.tile": 4})
>>> print(StreamPlan.of(mapping, schedule, amos.machines.get("vta_pynq")))
m-n-k of gemm on vta_gemm_m1n16k16_s8_s32 (vta_pynq)
  tiles  i1.tile 2 x 32, i2.tile 2 x 2
  sums   r1.tile 1 x 4
  Src1   a: 1 buffer of 128 in inp, which has 2048; loaded 2 times, 1 load each
  Src2   b: 1 buffer of 8 in wgt, which has 1024; loaded 4 times, 1 load each
  Dst    out: 1 buffer of 64 in acc, which has 2048; stored 4 times, 1 store each
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from amos.errors import BuildError, ScheduleError
from amos.machine.machine import Machine
from amos.machine.stream_unit import StreamUnit
from amos.mapping.mapping import Mapping
from amos.plan.nest import Loop
from amos.plan.schedule import Plan, Schedule, batch_of
from amos.streams.operand import StreamOperand
from amos.streams.schedule import StreamSchedule
from amos.streams.tiles import StreamTiles, list_memories, runs_streams

#: Name of micro-operations in DRAM.
MICRO_OPS = "uops"


class Span(NamedTuple):
    """Steps of a loop that are in one tile."""

    start: int
    length: int


@dataclass(frozen=True)
class StreamPlan(Plan):
    """A stream of one mapping under one schedule.

    Raises:
        BuildError: the machine has no streams of that intrinsic, or the tiles do not fit it.
        ScheduleError: a tile is longer than its loop, or an order does not name the loops.
    """

    schedule: StreamSchedule
    machine: Machine

    def __post_init__(self) -> None:
        where = f"{self.mapping.name} on {self.machine.name}"
        if not runs_streams(self.structure, self.machine):
            name = self.mapping.intrinsic.name
            raise BuildError(f"{where}: no streams of {name} run there")
        overfull = self.tiles.find_overfull(self.machine)
        for pad in list_memories(self.mapping.intrinsic, self.machine):
            if overfull[pad.name][0]:
                sharing = [
                    f"{self._buffers(n)} tiles of {self._fragments(op)} fragments of {op.name}"
                    for n, op in enumerate(self.tiles.operands)
                    if op.name in pad.operands
                ]
                raise BuildError(f"{where}: {' and '.join(sharing)} in buffer {pad}")

    @classmethod
    def of(cls, mapping: Mapping, schedule: Schedule, machine: Machine) -> StreamPlan:
        """Plan the stream of a schedule.

        Raises:
            BuildError: its tiles exceed a buffer.
            ScheduleError: it is of another target, or not one of the mapping's.
        """
        if not isinstance(schedule, StreamSchedule):
            raise ScheduleError(
                f"schedule of {mapping.name}: expected one of streams, got a "
                f"{type(schedule).__name__}"
            )
        schedule.batch(Plan(mapping, schedule).structure)
        return cls(mapping, schedule, machine)

    @property
    def unit(self) -> StreamUnit:
        """Costs and capacities of the queues."""
        assert self.machine.stream is not None
        return self.machine.stream

    @cached_property
    def tiles(self) -> StreamTiles:
        """All numbers of the plan, as a batch of one."""
        return StreamTiles(self.structure, batch_of(self.structure, [self.schedule]))

    @property
    def sources(self) -> tuple[StreamOperand, ...]:
        """The intrinsic's sources."""
        return self.tiles.operands[:-1]

    @property
    def destination(self) -> StreamOperand:
        """Its destination."""
        return self.tiles.operands[-1]

    def _buffers(self, number: int) -> int:
        return int(self.tiles.buffers(number)[0])

    def _fragments(self, operand: StreamOperand) -> int:
        return int(self.tiles.fragments(operand)[0])

    @cached_property
    def slots(self) -> dict[str, tuple[int, ...]]:
        """First fragment of each tile that an operand has room for, by its name."""
        return {
            op.name: tuple(n * self._pitch(op) for n in range(self._buffers(number)))
            for number, op in enumerate(self.tiles.operands)
        }

    def _pitch(self, operand: StreamOperand) -> int:
        """Return the fragments from one tile on chip to the next: with banks each has its own."""
        return operand.bank if operand.pad.banks > 1 else self._fragments(operand)

    @cached_property
    def depths(self) -> dict[str, int]:
        """Fragments of the buffer that an operand has, by its name: all if it has it alone."""
        return {
            op.name: op.depth if len(op.pad.operands) == 1 else self._pitch(op) * self._buffers(n)
            for n, op in enumerate(self.tiles.operands)
        }

    @cached_property
    def regions(self) -> dict[str, str]:
        """Name of each operand in DRAM, by its own: the tensor's, if no other operand reads it.

        A tensor that two operands read lies there once for each, in fragments of different kinds.
        """
        tensors = {op.name: op.staged.load.tensor.name for op in self.tiles.operands}
        names = [*tensors.values(), MICRO_OPS]
        return {
            name: tensor if names.count(tensor) == 1 else f"{tensor}.{name}"
            for name, tensor in tensors.items()
        }

    def output_tiles(self) -> Iterator[dict[str, Span]]:
        """Yield the spans of the spatial loops, tile by tile."""
        return _tile(self.spatial, self.schedule.tile)

    def reduction_tiles(self) -> Iterator[dict[str, Span]]:
        """Yield the spans of the reduction loops, tile by tile."""
        return _tile(self.reduce_loops, self.schedule.steps)

    def __str__(self) -> str:
        lines = [f"{self.mapping.title} ({self.machine.name})"]
        for what, loops, sizes in (
            ("tiles", self.spatial, self.schedule.tile),
            ("sums", self.reduce_loops, self.schedule.steps),
        ):
            counts = (f"{x.name} {-(-x.extent // sizes[x.name])} x {sizes[x.name]}" for x in loops)
            lines.append(f"  {what:6} {', '.join(counts) or 'one'}")
        for number, op in enumerate(self.tiles.operands):
            verb, done = ("store", "stored") if op is self.destination else ("load", "loaded")
            loads, transfers = int(self.tiles.loads(number)[0]), int(self.tiles.transfers(op)[0])
            room = f"{_many(self._buffers(number), 'buffer')} of {self._fragments(op)}"
            lines.append(
                f"  {op.name:6} {op.staged.load.tensor.name}: {room} in {op.pad.name}, which has "
                f"{op.depth}; {done} {loads} times, {_many(transfers, verb)} each"
            )
        return "\n".join(lines)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count > 1)


def _tile(loops: Sequence[Loop], lengths: MappingType[str, int]) -> Iterator[dict[str, Span]]:
    spans = [
        [
            Span(start, min(lengths[x.name], x.extent - start))
            for start in range(0, x.extent, lengths[x.name])
        ]
        for x in loops
    ]
    for chosen in itertools.product(*spans):
        yield dict(zip((x.name for x in loops), chosen, strict=True))
