"""Executes streams: what they compute, how long it takes, and whether they are sound."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingType
from dataclasses import dataclass

import numpy as np

from amos.codegen.stream.instructions import Compute, Memory, Stream
from amos.codegen.stream.transfers import Load, Transfers
from amos.errors import StreamError
from amos.machine.stream_unit import StreamUnit
from amos.runtime.stream.hazards import Accesses
from amos.runtime.stream.queues import timeline

__all__ = ["Run", "simulate"]


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


def simulate(
    stream: Stream,
    dram: MappingType[str, np.ndarray] | None,
    unit: StreamUnit,
    port: float,
) -> Run:
    """Run a stream.

    Args:
        stream: the instructions.
        dram: tensors that are there before, one row a fragment; ``None`` to compute nothing,
            and see how long it takes and whether it is sound.
        unit: what the queues cost.
        port: bytes that DRAM moves in a cycle, for all queues together.

    Raises:
        StreamError: a hazard, a fragment that is read before it is written or outside of its
            buffer or tensor, queues that wait for each other, tokens that nobody pops.
    """
    transfers = Transfers(stream)
    transfers.check()
    line = timeline(stream, transfers, unit, port)
    memory = Memory(stream, dram)
    accesses = Accesses({name: len(rows) for name, rows in memory.chip.items()})
    for numbers, chosen in _runs(line.order, transfers):
        each = stream.instructions[numbers[0]]
        if isinstance(each, Compute):
            try:
                access = each.access(memory)
            except StreamError as error:
                raise StreamError(f"instruction {numbers[0]} of compute: {error}") from None
            for writes, touched in enumerate((access.reads, access.writes)):
                for name, rows in touched.items():
                    accesses.add(name, rows, numbers, np.array([len(rows)]), bool(writes))
            if dram is not None:
                each.execute(memory)
        else:
            name, rows = transfers.move(chosen, memory)
            accesses.add(name, rows, numbers, transfers.sizes[chosen], isinstance(each, Load))
    accesses.check(np.array(stream.queues), line.before)
    contents = {name: rows[:-1] for name, rows in memory.dram.items()}
    return Run(line.cycles, line.busy, int(transfers.bytes.sum()), contents)


def _runs(order: np.ndarray, transfers: Transfers) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Instructions in their order: one, or transfers that can be done together.

    Yields:
        their numbers, and which transfers they are.
    """
    which = np.full(len(order), -1)
    which[transfers.numbers] = np.arange(len(transfers.numbers))
    which = which[order]
    alone = which < 0
    kind = np.where(alone, -1, transfers.same[which] if len(transfers.same) else -1)
    cuts = np.flatnonzero((kind[1:] != kind[:-1]) | alone[1:]) + 1
    for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(order)], strict=True):
        yield order[begin:end], which[begin:end]
