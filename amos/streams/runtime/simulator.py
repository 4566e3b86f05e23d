"""Execution of streams: results, cycles, and checks of their soundness."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from typing import Any

import numpy as np

from amos.errors import StreamError
from amos.machine.stream_unit import StreamUnit
from amos.streams.codegen.instructions import Compute, Memory, Stream
from amos.streams.codegen.transfers import Load, Transfers
from amos.streams.runtime.hazards import Accesses
from amos.streams.runtime.queues import timeline


@dataclass(frozen=True)
class Run:
    """Result of a stream.

    Attributes:
        cycles: until the last instruction is done.
        busy: cycles that each queue works, tokens and the port to DRAM not waited for.
        dram: contents of each tensor in DRAM.
    """

    cycles: int
    busy: MappingType[str, int]
    moved: int
    dram: MappingType[str, np.ndarray]


def simulate(
    stream: Stream, dram: MappingType[str, np.ndarray] | None, unit: StreamUnit, port: float
) -> Run:
    """Run a stream.

    Args:
        dram: tensors that are there before, one row a fragment; ``None`` to compute nothing,
            and see how long it takes and whether it is sound.
        unit: costs of the queues.
        port: bytes that DRAM moves in a cycle, for all queues together.

    Raises:
        StreamError: a hazard, a fragment that is read before it is written or outside of its
            buffer or tensor, queues that wait for each other, tokens that are never popped.
    """
    transfers = Transfers(stream)
    transfers.check()
    line = timeline(stream, transfers, unit, port)
    memory = Memory(stream, dram)
    accesses = Accesses({name: len(rows) for name, rows in memory.chip.items()})
    for numbers in _runs(stream, transfers, line.order):
        head = stream.instructions[numbers[0]]
        if isinstance(head, Compute):
            _compute(
                [stream.instructions[n] for n in numbers],
                numbers[-1:],
                memory,
                accesses,
                dram is not None,
            )
        else:
            chosen = np.searchsorted(transfers.numbers, numbers)
            name, rows = transfers.move(chosen, memory)
            accesses.add(name, rows, numbers, transfers.sizes[chosen], isinstance(head, Load))
    accesses.check(np.array(stream.queues), line.before)
    contents = {name: rows[:-1] for name, rows in memory.dram.items()}
    return Run(line.cycles, line.busy, int(transfers.bytes.sum()), contents)


def _compute(
    run: list[Any], number: np.ndarray, memory: Memory, accesses: Accesses, values: bool
) -> None:
    """Compute instructions that are executed together, under the last one's number."""
    try:
        access = run[0].access(memory, run)
    except StreamError as error:
        raise StreamError(f"instruction {number[0]} of compute: {error}") from None
    for writes, touched in enumerate((access.reads, access.writes)):
        for name, rows in touched.items():
            accesses.add(name, rows, number, np.array([len(rows)]), bool(writes))
    if values:
        run[0].execute(memory, run)


def _runs(stream: Stream, transfers: Transfers, order: np.ndarray) -> list[np.ndarray]:
    """Group instructions, in their order, that can be executed together.

    Those are transfers of one kind, and alike compute instructions with neither others nor tokens
    between them.
    """
    kinds: dict[Hashable, int] = {}
    kind = np.full(len(order), -1)
    kind[transfers.numbers] = transfers.same
    whole = kind < 0
    for n in np.flatnonzero(whole):
        instruction = stream.instructions[n]
        if isinstance(instruction, Compute) and (alike := instruction.alike) is not None:
            kind[n] = -2 - kinds.setdefault(alike, len(kinds))
    instructions = stream.instructions
    pops = np.array([each.pop_prev or each.pop_next for each in instructions])
    pushes = np.array([each.push_prev or each.push_next for each in instructions])
    kind, tied = kind[order], whole[order]
    cuts = (kind[1:] != kind[:-1]) | (kind[1:] == -1)
    cuts |= tied[1:] & (pops[order[1:]] | pushes[order[:-1]])
    return np.split(order, np.flatnonzero(cuts) + 1)
