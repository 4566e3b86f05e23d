"""Tokens: instructions of neighbouring queues wait for each other where data requires it."""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amos.streams.codegen.instructions import QUEUES, Buffer, Instruction

#: Names of neighbouring queues, by the distance to them.
_CALLED = {-1: "prev", 1: "next"}


@dataclass
class Draft:
    """Instructions in program order, with the ranges that they touch; tokens are added last.

    An instruction has to wait for those before it, in other queues, that read or wrote what
    it writes, or wrote what it reads. Waiting for the latest of them in each queue suffices,
    since a queue is in order. So tokens between two queues are pushed and popped in order.
    """

    buffers: MappingType[str, Buffer]
    instructions: list[Instruction] = field(default_factory=list)
    _queues: list[int] = field(default_factory=list)
    _marks: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: By queue and buffer, the instruction of the queue that last read each row, or last wrote it.
    _read: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)
    _written: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)
    #: By queue, its last instruction.
    _latest: dict[int, int] = field(default_factory=dict)
    #: By queue and other queue, the last instruction of the other one that it has waited for.
    _waited: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(
        self,
        instructions: Sequence[Instruction],
        reads: MappingType[str, slice] = {},
        writes: MappingType[str, slice] = {},
    ) -> None:
        """Append instructions of one queue, each of which touches its share of these ranges."""
        begin, count = len(self.instructions), len(instructions)
        queue = QUEUES.index(instructions[0].queue(self.buffers))
        self.instructions += instructions
        self._queues += [queue] * count
        for neighbour in (queue - 1, queue + 1):
            if self._latest.get(neighbour, -1) <= self._waited.get((queue, neighbour), -1):
                continue
            last = [
                tables[neighbour, name][rows].reshape(count, -1).max(axis=1)
                for tables, ranges in (
                    (self._written, reads),
                    (self._written, writes),
                    (self._read, writes),
                )
                for name, rows in ranges.items()
                if (neighbour, name) in tables
            ]
            for n, number in enumerate(np.maximum.reduce(last).tolist() if last else ()):
                self.wait(begin + n, number)
        for tables, ranges in ((self._read, reads), (self._written, writes)):
            for name, rows in ranges.items():
                table = tables.get((queue, name))
                if table is None:
                    table = tables[queue, name] = np.full(self.buffers[name].depth, -1)
                if count == 1:
                    table[rows] = begin
                else:
                    shares = table[rows].reshape(count, -1)
                    shares[:] = np.arange(begin, begin + count)[:, None]
        self._latest[queue] = begin + count - 1

    def wait(self, number: int, awaited: int) -> None:
        """Let an instruction wait for one of a neighbouring queue, unless it has already."""
        if awaited < 0:
            return
        own, before = self._queues[number], self._queues[awaited]
        if awaited > self._waited.get((own, before), -1):
            self._waited[own, before] = awaited
            self._marks.setdefault(number, {})[f"pop_{_CALLED[before - own]}"] = True
            self._marks.setdefault(awaited, {})[f"push_{_CALLED[own - before]}"] = True

    def last_of(self, queue: str) -> int:
        """Return the last instruction of a queue, -1 if it has none."""
        return self._latest.get(QUEUES.index(queue), -1)

    def finish(self) -> tuple[Instruction, ...]:
        """Return the instructions with their tokens."""
        finished = self.instructions.copy()
        for n, marks in self._marks.items():
            # As `replace`, which calls the constructor and takes ten times as long.
            instruction = object.__new__(type(finished[n]))
            vars(instruction).update(vars(finished[n]), **marks)
            finished[n] = instruction
        return tuple(finished)
