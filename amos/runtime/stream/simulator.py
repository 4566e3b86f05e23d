"""Executes streams: what they compute, how long it takes, and whether they are sound.

Instructions of one queue follow one another; those of different queues are ordered by tokens
alone. The n-th pop of a kind of token takes the n-th push, whatever the speed of the
queues is, so what happens before what is a property of the stream. Two accesses to one
fragment of which one writes, and neither of which happens before the other, are a
hazard, whether or not this run would have met it. Transfers that go on at the same time
share the port to DRAM evenly.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from itertools import product

import numpy as np

from amos.codegen.stream.instructions import (
    NEIGHBOURS,
    QUEUES,
    Access,
    Instruction,
    Memory,
    Stream,
)
from amos.errors import StreamError
from amos.machine.stream_unit import StreamUnit

__all__ = ["Run", "simulate"]

#: Of each queue the instruction up to which everything has happened before; -1 for none.
_Clock = tuple[int, ...]
_START: _Clock = (-1,) * len(QUEUES)
#: Cycles, or bytes, that are none.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Run:
    """What became of a stream.

    Attributes:
        cycles: until the last instruction is done.
        busy: cycles that each queue works, tokens and the port to DRAM not waited for.
        moved: bytes to and from DRAM.
        dram: contents of each tensor in DRAM.
    """

    cycles: int
    busy: MappingType[str, int]
    moved: int
    dram: MappingType[str, np.ndarray]


@dataclass
class _Active:
    """An instruction that has begun.

    Attributes:
        instruction: which one.
        clock: what has happened before its end, itself included.
        until: cycle at which it goes on: its data flows, or it is done.
        left: bytes that are still to flow.
        behind: cycles that it takes after that.
    """

    instruction: Instruction
    clock: _Clock
    until: float
    left: float
    behind: int


def simulate(
    stream: Stream, dram: MappingType[str, np.ndarray], unit: StreamUnit, port: float
) -> Run:
    """Run a stream.

    Args:
        stream: the instructions.
        dram: tensors that are there before, one row a fragment.
        unit: what the queues cost.
        port: bytes that DRAM moves in a cycle, for all queues together.

    Raises:
        StreamError: a hazard, a fragment that is read before it is written or outside of its
            buffer or tensor, queues that wait for each other, tokens that nobody pops.
    """
    return _Simulation(stream, dram, unit, port).run()


class _Simulation:
    def __init__(
        self, stream: Stream, dram: MappingType[str, np.ndarray], unit: StreamUnit, port: float
    ) -> None:
        self.stream, self.unit, self.port = stream, unit, port
        self.memory = Memory(stream, {**dram, **stream.constants})
        self.waiting = [deque[int]() for _ in QUEUES]
        for number, queue in enumerate(stream.queues):
            self.waiting[queue].append(number)
        pairs = product(range(len(QUEUES)), NEIGHBOURS.values())
        self.tokens = {(q, q + d): deque[_Clock]() for q, d in pairs if 0 <= q + d < len(QUEUES)}
        self.now, self.moved, self.busy = 0.0, 0, [0] * len(QUEUES)
        self.active: list[_Active | None] = [None] * len(QUEUES)
        self.clocks = [_START] * len(QUEUES)
        #: By queue and buffer: the last instruction of the queue that read and wrote each row.
        self.last = {
            (queue, name): np.full((2, len(rows)), -1, np.int64)
            for queue in range(len(QUEUES))
            for name, rows in self.memory.filled.items()
        }

    def run(self) -> Run:
        while any(self.waiting) or any(self.active):
            for queue in range(len(QUEUES)):
                if self._can_start(queue):
                    self._start(queue)
            if not any(self.active):
                raise StreamError(f"the queues wait for each other: {self._stuck()}")
            self._advance()
        for (giver, taker), left in self.tokens.items():
            if left:
                raise StreamError(
                    f"{len(left)} tokens from {QUEUES[giver]} to {QUEUES[taker]} are left over"
                )
        busy = dict(zip(QUEUES, self.busy, strict=True))
        return Run(math.ceil(self.now - _ROUNDING), busy, self.moved, self.memory.dram)

    def _start(self, queue: int) -> None:
        """Begin the next instruction of a queue, and do at once what it does to memory."""
        number = self.waiting[queue].popleft()
        each = self.stream.instructions[number]
        try:
            clock = self._clock(each, queue, number)
            access = each.access(self.memory)
            self._check(access, queue, clock)
            each.execute(self.memory)
        except StreamError as error:
            raise StreamError(f"instruction {number} of {QUEUES[queue]}: {error}") from None
        for name, rows in access.reads.items():
            self.last[queue, name][0, rows] = number
        for name, rows in access.writes.items():
            self.last[queue, name][1, rows] = number
            self.memory.filled[name][rows] = True
        self.clocks[queue] = clock
        self.active[queue] = self._begun(each, queue, clock)

    def _begun(self, each: Instruction, queue: int, clock: _Clock) -> _Active:
        unit, size, behind = self.unit, 0, 0
        if each.moved:
            size = each.moved * self.memory.buffers[each.buffer].bytes  # type: ignore[attr-defined]
            ahead, behind = unit.issue + unit.latency, each.operations
        else:
            ahead = unit.issue + each.operations + (unit.drain if each.operations else 0)
        self.moved += size
        self.busy[queue] += ahead + math.ceil(size / self.port) + behind
        return _Active(each, clock, self.now + ahead, float(size), behind)

    def _advance(self) -> None:
        """Go on to the next time at which anything changes."""
        going = [each for each in self.active if each is not None]
        flowing = [each for each in going if each.left and each.until <= self.now + _ROUNDING]
        share = self.port / max(1, len(flowing))
        times = [each.until for each in going if each not in flowing]
        before, self.now = self.now, min([*times, *(self.now + x.left / share for x in flowing)])
        for each in flowing:
            each.left -= share * (self.now - before)
            if each.left < _ROUNDING:
                each.left, each.until = 0.0, self.now + each.behind
        for queue, active in enumerate(self.active):
            if active is not None and not active.left and active.until <= self.now + _ROUNDING:
                self._end(queue, active)

    def _end(self, queue: int, active: _Active) -> None:
        self.active[queue] = None
        for side, distance in NEIGHBOURS.items():
            if getattr(active.instruction, f"push_{side}"):
                if (queue, queue + distance) not in self.tokens:
                    raise StreamError(
                        f"{QUEUES[queue]} pushes a token to a queue that there is not"
                    )
                self.tokens[queue, queue + distance].append(active.clock)

    def _pops(self, queue: int) -> list[tuple[int, int]]:
        """Tokens that the next instruction of a queue needs: from where, to where."""
        each = self.stream.instructions[self.waiting[queue][0]]
        return [
            (queue + d, queue) for side, d in NEIGHBOURS.items() if getattr(each, f"pop_{side}")
        ]

    def _can_start(self, queue: int) -> bool:
        if not self.waiting[queue] or self.active[queue] is not None:
            return False
        return all(self.tokens.get(way) for way in self._pops(queue))

    def _clock(self, each: Instruction, queue: int, number: int) -> _Clock:
        """What has happened when an instruction begins, itself included; pops its tokens."""
        clocks = [self.clocks[queue]]
        for side, distance in NEIGHBOURS.items():
            if getattr(each, f"pop_{side}"):
                clocks.append(self.tokens[queue + distance, queue].popleft())
        clock = [max(times) for times in zip(*clocks, strict=True)]
        clock[queue] = number
        return tuple(clock)

    def _check(self, access: Access, queue: int, clock: _Clock) -> None:
        """Refuse rows outside of a buffer, rows without content, and hazards."""
        for rows_of, what in ((access.reads, "reads"), (access.writes, "writes")):
            for name, rows in rows_of.items():
                depth = len(self.memory.filled[name])
                if len(rows) and (rows.min() < 0 or rows.max() >= depth):
                    raise StreamError(f"{what} fragment {rows.max()} of {name}, which has {depth}")
        for name, rows in access.reads.items():
            if not self.memory.filled[name][rows].all():
                raise StreamError(f"reads fragments of {name} before they are written")
        for other in range(len(QUEUES)):
            if other == queue:
                continue
            for name, rows in access.reads.items():
                self._ordered(other, name, self.last[other, name][1, rows], clock, "written")
            for name, rows in access.writes.items():
                self._ordered(other, name, self.last[other, name][:, rows], clock, "used")

    def _ordered(self, other: int, name: str, last: np.ndarray, clock: _Clock, what: str) -> None:
        if last.size and (latest := int(last.max())) > clock[other]:
            raise StreamError(
                f"hazard: fragments of {name} are {what} by instruction {latest} of "
                f"{QUEUES[other]}, and no token says which comes first"
            )

    def _stuck(self) -> str:
        """What each queue waits for, in words."""
        said = []
        for queue, name in enumerate(QUEUES):
            if not self.waiting[queue]:
                continue
            lacking = [
                QUEUES[a] if 0 <= a < len(QUEUES) else "no queue"
                for a, b in self._pops(queue)
                if not self.tokens.get((a, b))
            ]
            said.append(
                f"instruction {self.waiting[queue][0]} of {name} for a token from "
                f"{' and '.join(lacking)}"
            )
        return "; ".join(said)
