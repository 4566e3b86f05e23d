"""Tokens: instructions of neighbouring queues wait for each other where data says so."""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from amos.codegen.stream.instructions import QUEUES, Buffer, Instruction

__all__ = ["Draft"]

#: How queues call each other, by the distance between them.
_CALLED = {-1: "prev", 1: "next"}


@dataclass
class Draft:
    """Instructions in program order, with ranges of what they touch; tokens come last.

    An instruction has to wait for those before it, in other queues, that read or wrote what
    it writes, or wrote what it reads. In each queue the latest of them stands for all, and
    who has waited for an instruction has waited for those before it as well. So tokens
    between two queues are pushed and popped in the same order.
    """

    buffers: MappingType[str, Buffer]
    instructions: list[Instruction] = field(default_factory=list)
    _queues: list[int] = field(default_factory=list)
    _marks: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: By queue and buffer, which instruction of the queue last read and last wrote each row.
    _last: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)
    #: By queue and other queue, up to which instruction of the other one it has waited.
    _waited: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(
        self,
        instruction: Instruction,
        reads: MappingType[str, slice] = {},
        writes: MappingType[str, slice] = {},
    ) -> None:
        """Append an instruction that touches these ranges."""
        number, queue = len(self.instructions), QUEUES.index(instruction.queue(self.buffers))
        self.instructions.append(instruction)
        self._queues.append(queue)
        for other in (queue - 1, queue + 1):
            if 0 <= other < len(QUEUES):
                last = max(
                    [
                        *(self._table(other, name)[1, rows].max() for name, rows in reads.items()),
                        *(self._table(other, name)[:, rows].max() for name, rows in writes.items()),
                    ],
                    default=-1,
                )
                self.wait(number, int(last))
        for kind, ranges in enumerate((reads, writes)):
            for name, rows in ranges.items():
                self._table(queue, name)[kind, rows] = number

    def wait(self, number: int, other: int) -> None:
        """Let an instruction wait for one of a neighbouring queue, unless it has already."""
        if other < 0:
            return
        own, before = self._queues[number], self._queues[other]
        if other > self._waited.get((own, before), -1):
            self._waited[own, before] = other
            self._marks.setdefault(number, {})[f"pop_{_CALLED[before - own]}"] = True
            self._marks.setdefault(other, {})[f"push_{_CALLED[own - before]}"] = True

    def last_of(self, queue: str) -> int:
        """The last instruction of a queue, -1 if it has none."""
        at = QUEUES.index(queue)
        return max((n for n, each in enumerate(self._queues) if each == at), default=-1)

    def finished(self) -> tuple[Instruction, ...]:
        """The instructions with their tokens."""
        return tuple(
            replace(each, **self._marks[n]) if n in self._marks else each
            for n, each in enumerate(self.instructions)
        )

    def _table(self, queue: int, name: str) -> np.ndarray:
        if (queue, name) not in self._last:
            depth = self.buffers[name].depth
            self._last[queue, name] = np.full((2, depth), -1, dtype=np.int64)
        return self._last[queue, name]
