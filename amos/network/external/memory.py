"""Where tensors lie in one piece of memory that they share: those at once apart from each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Bytes of which the place of each tensor is a multiple: those of a cache line.
ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class Span:
    """A tensor that is there for some steps.

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
        for begin, end, other in placed:
            if other.first > span.last or other.last < span.first:
                continue
            if begin - offset >= size:
                break
            offset = max(offset, end)
        offsets[number] = offset
        placed.append((offset, offset + size, span))
        placed.sort(key=lambda each: each[:2])
        total = max(total, offset + size)
    return offsets, total
