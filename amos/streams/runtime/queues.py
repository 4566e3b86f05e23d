"""Queues of a unit: the time of each instruction, and the instructions before it.

Instructions of one queue follow one another; those of different queues are ordered by tokens
alone. The n-th pop of a kind of token takes the n-th push, whatever the speed of the queues
is, so the order of events is a property of the stream. Concurrent transfers share
the port to DRAM evenly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from itertools import product

import numpy as np

from amos.errors import StreamError
from amos.machine.stream_unit import StreamUnit
from amos.streams.codegen.instructions import NEIGHBOURS, QUEUES, Compute, Stream
from amos.streams.codegen.transfers import Transfers

#: Cycles, or bytes, that are none.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Timeline:
    """When instructions run.

    Attributes:
        order: their numbers, as they begin.
        before: instructions × queues: the last one of each queue that is done when an
            instruction begins, -1 for none; of its own queue itself.
        cycles: until the last one is done.
        busy: cycles that each queue works, tokens and the port to DRAM not waited for.
    """

    order: np.ndarray
    before: np.ndarray
    cycles: int
    busy: MappingType[str, int]


def timeline(stream: Stream, transfers: Transfers, unit: StreamUnit, port: float) -> Timeline:
    """Run the queues of a stream.

    Raises:
        StreamError: queues wait for each other, or tokens are never popped.
    """
    costs = _costs(stream, transfers, unit)
    of = np.array(stream.queues)
    queues = [_Queue(stream, n, np.flatnonzero(of == n), costs, port) for n in range(len(QUEUES))]
    race = _Race(queues, port)
    order = race.run()
    busy = {name: q.busy for name, q in zip(QUEUES, queues, strict=True)}
    return Timeline(order, _before(queues), math.ceil(race.now - _ROUNDING), busy)


def _costs(stream: Stream, transfers: Transfers, unit: StreamUnit) -> np.ndarray:
    """Count each instruction's cycles before its data, bytes, and cycles after: 3 × instructions.

    One that moves nothing takes its cycles before.
    """
    operations = np.zeros(len(stream.instructions), np.int64)
    size = np.zeros(len(operations), np.int64)
    operations[transfers.numbers], size[transfers.numbers] = transfers.padding, transfers.bytes
    for n, instruction in enumerate(stream.instructions):
        if isinstance(instruction, Compute):
            operations[n] = instruction.operations
    alone = unit.issue + operations + np.where(operations > 0, unit.drain, 0)
    return np.stack(
        [
            np.where(size > 0, unit.issue + unit.latency, alone),
            size,
            np.where(size > 0, operations, 0),
        ]
    )


class _Queue:
    """The instructions of a queue.

    Attributes:
        ahead: cycles of each until data flows, or all if none does.
        drain: cycles after that.
        pops: queues that each takes tokens from.
        pushes: queues that each gives them to.
        ends: cycle at which each ends if the port is its own, no token is waited for and the
            first one begins at 0; behind a 0.
        calm: of each the next one, itself included, whose end others may wait for, or that is
            followed by one that waits.
    """

    def __init__(
        self, stream: Stream, queue: int, numbers: np.ndarray, costs: np.ndarray, port: float
    ) -> None:
        self.numbers: list[int] = numbers.tolist()
        own = [stream.instructions[n] for n in self.numbers]
        sides = [queue + distance for distance in NEIGHBOURS.values()]
        choices = {
            marks: tuple(neighbour for neighbour, mark in zip(sides, marks, strict=True) if mark)
            for marks in product((False, True), repeat=len(sides))
        }
        self.pops = [choices[each.pop_prev, each.pop_next] for each in own]
        self.pushes = [choices[each.push_prev, each.push_next] for each in own]
        ahead, size, drain = costs[:, numbers]
        self.busy = int((ahead + np.ceil(size / port) + drain).sum())
        self.ahead, self.bytes, self.drain = ahead.tolist(), size.tolist(), drain.tolist()
        self.ends = [0.0, *np.cumsum(ahead + size / port + drain).tolist()]
        stops = [bool(x) for x in self.pushes]
        stops = [a or bool(b) for a, b in zip(stops, [*self.pops[1:], True], strict=False)]
        at = np.where(stops, np.arange(len(own)), len(own))
        self.calm: list[int] = np.minimum.accumulate(at[::-1])[::-1].tolist()


class _Race:
    """Concurrent queues.

    Attributes:
        now: the cycle.
        next: of each queue the instruction that is to begin next.
        active: whether the one before it is still running.
        until: cycle of its next event: its data flows, or it is done.
        bytes_left: bytes of it that are still to flow.
        tokens: by the queue that they come from and the one they lead to.
    """

    def __init__(self, queues: list[_Queue], port: float) -> None:
        self.queues, self.port, self.now = queues, port, 0.0
        self.next, self.active = [0] * len(queues), [False] * len(queues)
        self.until, self.bytes_left = [0.0] * len(queues), [0.0] * len(queues)
        numbers = range(len(queues))
        self.tokens = {(a, a + d): 0 for a in numbers for d in (-1, 1) if a + d in numbers}
        self.order: list[int] = []

    def run(self) -> np.ndarray:
        """Run all instructions; return them in the order in which they begin."""
        while True:
            started = [n for n in range(len(self.queues)) if self._begins(n)]
            if not any(self.active):
                break
            if not any(self._skips(n) for n in started):
                self._advance()
        if len(self.order) < sum(len(q.numbers) for q in self.queues):
            raise StreamError(f"the queues wait for each other: {self._stuck()}")
        for (giver, taker), surplus in self.tokens.items():
            if surplus:
                raise StreamError(
                    f"{surplus} tokens from {QUEUES[giver]} to {QUEUES[taker]} are left over"
                )
        return np.array(self.order, np.int64)

    def _begins(self, n: int) -> bool:
        """Begin the next instruction of a queue, if there is one and its tokens are."""
        queue, at = self.queues[n], self.next[n]
        if self.active[n] or at == len(queue.numbers):
            return False
        pops = queue.pops[at]
        if not all(self.tokens.get((neighbour, n)) for neighbour in pops):
            return False
        for neighbour in pops:
            self.tokens[neighbour, n] -= 1
        self.order.append(queue.numbers[at])
        self.next[n], self.active[n] = at + 1, True
        self.until[n], self.bytes_left[n] = self.now + queue.ahead[at], queue.bytes[at]
        return True

    def _skips(self, n: int) -> bool:
        """Go on to the end of what a queue has just begun, and of what follows it.

        Up to the first one that others wait for, while no other queue has an earlier event.
        """
        queue, first = self.queues[n], self.next[n] - 1
        running = [m for m, going in enumerate(self.active) if going and m != n]
        if any(self.bytes_left[m] and self.until[m] <= self.now + _ROUNDING for m in running):
            return False
        ends = queue.ends
        latest = ends[first] + min([self.until[m] for m in running], default=math.inf) - self.now
        end = bisect_right(ends, latest, first + 1, queue.calm[first] + 2) - 1
        if end == first:
            return False
        self.order += queue.numbers[first + 1 : end]
        self.now += ends[end] - ends[first]
        self.next[n], self.bytes_left[n] = end, 0.0
        self._end(n)
        return True

    def _advance(self) -> None:
        """Go on to the next time at which anything changes."""
        going = [n for n, active in enumerate(self.active) if active]
        flowing = [n for n in going if self.bytes_left[n] and self.until[n] <= self.now + _ROUNDING]
        share = self.port / max(1, len(flowing))
        times = [self.until[n] for n in going if n not in flowing]
        before, self.now = (
            self.now,
            min([*times, *(self.now + self.bytes_left[n] / share for n in flowing)]),
        )
        for n in flowing:
            self.bytes_left[n] -= share * (self.now - before)
            if self.bytes_left[n] < _ROUNDING:
                self.bytes_left[n] = 0.0
                self.until[n] = self.now + self.queues[n].drain[self.next[n] - 1]
        for n in going:
            if not self.bytes_left[n] and self.until[n] <= self.now + _ROUNDING:
                self._end(n)

    def _end(self, n: int) -> None:
        self.active[n] = False
        for neighbour in self.queues[n].pushes[self.next[n] - 1]:
            if (n, neighbour) not in self.tokens:
                raise StreamError(f"{QUEUES[n]} pushes a token to a queue that there is not")
            self.tokens[n, neighbour] += 1

    def _stuck(self) -> str:
        """Describe the tokens that each queue waits for."""
        waits = []
        for n, queue in enumerate(self.queues):
            if self.next[n] == len(queue.numbers):
                continue
            lacking = [
                QUEUES[neighbour] if 0 <= neighbour < len(QUEUES) else "no queue"
                for neighbour in queue.pops[self.next[n]]
                if not self.tokens.get((neighbour, n))
            ]
            waits.append(
                f"instruction {queue.numbers[self.next[n]]} of {QUEUES[n]} for a token from "
                f"{' and '.join(lacking)}"
            )
        return "; ".join(waits)


def _before(queues: list[_Queue]) -> np.ndarray:
    """Find the last instruction of each queue that ends before an instruction begins.

    See :attr:`Timeline.before`. Tokens taken from a neighbouring queue tell the progress of that
    queue: no earlier instruction knows more. Progress of a farther queue is what the queue in
    between knew.
    """
    before = np.full((sum(len(q.numbers) for q in queues), len(queues)), -1)
    for n, queue in enumerate(queues):
        before[queue.numbers, n] = queue.numbers
    for distance in range(1, len(queues)):
        for n, queue in enumerate(queues):
            for peer in (n - distance, n + distance):
                if not 0 <= peer < len(queues):
                    continue
                near = n + (1 if peer > n else -1)
                pushed = [
                    number
                    for number, pushes in zip(
                        queues[near].numbers, queues[near].pushes, strict=True
                    )
                    if n in pushes
                ]
                popped = np.cumsum([near in pops for pops in queue.pops], dtype=np.int64)
                latest = np.array([-1, *pushed])[popped]
                before[queue.numbers, peer] = np.where(latest < 0, -1, before[latest, peer])
    return before
