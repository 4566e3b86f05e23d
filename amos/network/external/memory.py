"""Offsets of tensors in memory that they share: those that live at once do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Offsets are multiples of a cache line.
ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class Span:
    """The lifetime of a tensor.

    Attributes:
        size: in bytes.
        first: step that writes it.
        last: the last step that reads it.
    """

    size: int
    first: int
    last: int


def plan_offsets(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Return the offset of each tensor, and how much memory all of them take.

    The largest come first, each to the lowest gap that is free for all of its steps.
    """
    offsets, total = [0] * len(spans), 0
    placed: list[tuple[int, int, Span]] = []  # offset, end, span; by offset
    order = sorted(range(len(spans)), key=lambda number: (-spans[number].size, number))
    for number in order:
        span = spans[number]
        size = -(-span.size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        offset = 0
        for begin, end, neighbour in placed:
            if neighbour.first > span.last or neighbour.last < span.first:
                continue
            if begin - offset >= size:
                break
            offset = max(offset, end)
        offsets[number] = offset
        placed.append((offset, offset + size, span))
        placed.sort(key=lambda entry: entry[:2])
        total = max(total, offset + size)
    return offsets, total
