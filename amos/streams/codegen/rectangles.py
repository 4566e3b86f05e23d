"""Tiles of operands as rectangles, the shape that one load or store moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from amos.streams.operand import StreamOperand
from amos.streams.plan import Span

#: The longest way from row to row (16 bits).
_STRIDE = 2**16 - 1


@dataclass(frozen=True)
class Line:
    """Fragments of a tile along one dimension.

    Attributes:
        stride: from one to the next in DRAM.
        before: zeros before them.
        after: zeros after them.
    """

    start: int
    size: int
    stride: int
    before: int = 0
    after: int = 0

    @property
    def length(self) -> int:
        """Fragments on chip."""
        return self.before + self.size + self.after

    @property
    def plain(self) -> bool:
        """Whether nothing is padded."""
        return not (self.before or self.after)


@dataclass(frozen=True)
class Rectangle:
    """Transfer of one instruction; see :class:`amos.streams.codegen.transfers.Transfer`."""

    sram: int
    dram: int
    rows: int
    columns: int
    stride: int
    before: tuple[int, int]
    after: tuple[int, int]


@dataclass(frozen=True)
class Tile:
    """A tile of an operand, row-major on chip.

    Attributes:
        lines: its dimensions.
        steps: for each loop the fragments on chip from one step to the next.
        first: the fragment of the first step of all loops.
    """

    lines: tuple[Line, ...]
    steps: MappingType[str, int]
    first: int

    @cached_property
    def fragments(self) -> int:
        """Fragments on chip."""
        return prod(line.length for line in self.lines)

    def rectangles(self, slot: int = 0, base: int = 0) -> Iterator[Rectangle]:
        """Yield the tile's transfers between its slot on chip and the tensor's base in DRAM."""
        start = sum(line.start * line.stride for line in self.lines)
        merged: list[Line] = []
        for line in reversed([x for x in self.lines if x.length != 1 or not x.plain]):
            inner = merged[-1] if merged else None
            mergeable = inner is not None and inner.plain and line.plain
            if inner is not None and mergeable and line.stride == inner.size * inner.stride:
                merged[-1] = replace(inner, size=inner.size * line.size)
            else:
                merged.append(line)
        if not merged or merged[0].stride != 1:
            merged.insert(0, Line(0, 1, 1))
        far = len(merged) > 1 and merged[1].plain and merged[1].stride > _STRIDE
        if len(merged) == 1 or far:
            merged.insert(1, Line(0, 1, merged[0].size))
        x, y, *outer = merged
        starts = [start]
        for line in reversed(outer):
            starts = [at + n * line.stride for at in starts for n in range(line.size)]
        for number, at in enumerate(starts):
            yield Rectangle(
                sram=slot + number * x.length * y.length,
                dram=base + at,
                rows=y.size,
                columns=x.size,
                stride=y.stride,
                before=(y.before, x.before),
                after=(y.after, x.after),
            )


def tile_of(operand: StreamOperand, spans: MappingType[str, Span]) -> Tile:
    """Return the tile of an operand that spans of loops need."""
    lines, coefficients, origin = [], list[MappingType[str, int]](), []
    stride = 1
    strides: list[int] = []
    for dim in reversed(operand.dims):
        strides.insert(0, stride)
        stride *= dim.extent
    for dim, stride in zip(operand.dims, strides, strict=True):
        terms = [(n, c, spans[n]) for n, c in dim.index.terms if n in spans]
        first = dim.index.constant + sum(c * span.start for _, c, span in terms)
        low = first + sum(min(0, c * (span.length - 1)) for _, c, span in terms)
        length = 1 + sum(abs(c) * (span.length - 1) for _, c, span in terms)
        lines.append(_clip(low, length, dim.extent, stride))
        coefficients.append({n: c for n, c, _ in terms})
        origin.append(first - low)
    steps: dict[str, int] = {}
    at = 0
    for _, terms_of, where, row_stride in zip(
        lines, coefficients, origin, _row_major([line.length for line in lines]), strict=True
    ):
        at += where * row_stride
        for name, step in terms_of.items():
            steps[name] = steps.get(name, 0) + step * row_stride
    return Tile(tuple(lines), steps, at)


def _clip(low: int, length: int, extent: int, stride: int) -> Line:
    """Split a range into its part in DRAM and zeros before and after."""
    before = min(length, max(0, -low))
    after = min(length - before, max(0, low + length - extent))
    # A tensor that is all padding is not in DRAM.
    start = max(0, min(low, extent - 1))
    return Line(start, length - before - after, stride, before, after)


def _row_major(lengths: Sequence[int]) -> list[int]:
    return [prod(lengths[n + 1 :]) for n in range(len(lengths))]
