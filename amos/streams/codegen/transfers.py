"""Loads and stores: rectangles of fragments between DRAM and a buffer."""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from amos.errors import StreamError
from amos.streams.codegen.instructions import QUEUES, Buffer, Instruction, Memory, Stream


@dataclass(frozen=True, kw_only=True)
class Transfer(Instruction):
    """A rectangle of fragments between DRAM and a buffer, where it is contiguous.

    Attributes:
        rows: of the rectangle, without padding.
        stride: fragments from row to row in DRAM.
        before: rows and columns of zeros before it; of loads.
        after: the same after it.
    """

    buffer: str
    sram: int
    dram: int
    rows: int
    columns: int
    stride: int
    before: tuple[int, int] = (0, 0)
    after: tuple[int, int] = (0, 0)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns on chip."""
        return (
            self.before[0] + self.rows + self.after[0],
            self.before[1] + self.columns + self.after[1],
        )

    @property
    def moved(self) -> int:
        """Fragments to or from DRAM."""
        return self.rows * self.columns

    def __str__(self) -> str:
        text = f"{type(self).__name__.lower()} {self.buffer}[{self.sram}] dram {self.dram}, "
        text += f"{self.rows} x {self.columns} stride {self.stride}"
        padded = any((*self.before, *self.after))
        return text + (f", zeros {self.before} {self.after}" if padded else "")


class Load(Transfer):
    """From DRAM, with zeros around."""

    def queue(self, buffers: MappingType[str, Buffer]) -> str:
        """Return the queue that fills its buffer."""
        return buffers[self.buffer].queue


class Store(Transfer):
    """To DRAM."""

    def queue(self, buffers: MappingType[str, Buffer]) -> str:
        """Return the store queue."""
        return "store"


class Transfers:
    """The loads and stores of a stream as columns, which are moved many at a time.

    Attributes:
        numbers: of each in the stream.
        sizes: fragments of each on chip.
        padding: of zeros.
        region: number of the region in DRAM; -1 where nothing moves.
        same: of each a number; those of equal ones move in one direction between one buffer
            and one region.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        names = {b.name: n for n, b in enumerate(stream.buffers)}
        table = np.array(
            [
                (n, names[x.buffer], isinstance(x, Store), x.sram, x.dram, x.rows, x.columns)
                + (x.stride, *x.before, *x.after)
                for n, x in enumerate(stream.instructions)
                if isinstance(x, Transfer)
            ],
            np.int64,
        ).reshape(-1, 12)
        self.numbers, self._buffer, self._stores = table.T[:3]
        self._sram, self._dram, self._rows, self._columns, self._stride = table.T[3:8]
        self._pad_top, self._pad_left, below, right = table.T[8:]
        self._width = self._pad_left + self._columns + right
        self.sizes = (self._pad_top + self._rows + below) * self._width
        self.moved = self._rows * self._columns
        self.padding = self.sizes - self.moved
        self.region = np.full(len(table), -1)
        last = self._dram + (self._rows - 1) * self._stride + self._columns - 1
        for n, region in enumerate(stream.regions):
            matches = (self._dram >= region.base) & (last < region.base + region.rows)
            matches &= (self._buffer == names[region.buffer]) & (self.moved > 0)
            self.region[matches] = n
        self._last = last
        self.same = (self.region + 1) * 2 * len(names) + self._buffer * 2 + self._stores

    @cached_property
    def bytes(self) -> np.ndarray:
        """Bytes to or from DRAM."""
        fragments = np.array([b.bytes for b in self._stream.buffers])
        return np.asarray(self.moved * fragments[self._buffer])

    def check(self) -> None:
        """Raise StreamError for transfers outside of their buffers or tensors."""
        depth = np.array([b.depth for b in self._stream.buffers])[self._buffer]
        over = (self.sizes > 0) & (self._sram + self.sizes > depth)
        for n in np.flatnonzero(over | ((self.moved > 0) & (self.region < 0)))[:1]:
            own, at = self._stream.buffers[self._buffer[n]], self._sram[n] + self.sizes[n] - 1
            name, verb = own.of or own.name, "reads" if self._stores[n] else "writes"
            what = f"{verb} fragment {at} of {name}, which has {depth[n]}"
            if not over[n]:
                there = f"{self._dram[n]} to {self._last[n]}"
                what = f"{own.name}: addresses {there} of DRAM are in no tensor of it"
            raise StreamError(f"{self._where(n)}: {what}")

    def _where(self, n: int) -> str:
        queue = QUEUES[self._stream.queues[self.numbers[n]]]
        return f"instruction {self.numbers[n]} of {queue}"

    def move(self, chosen: np.ndarray, memory: Memory) -> tuple[str, np.ndarray]:
        """Execute transfers that are the :attr:`same`, in order.

        Returns:
            the buffer, and its rows that they read or write, transfer after transfer.

        Raises:
            StreamError: they read fragments of DRAM that were never written.
        """
        sizes, first = self.sizes[chosen], chosen[0]
        own = self._stream.buffers[self._buffer[first]]
        name, stores = own.of or own.name, self._stores[first]
        transfer = np.repeat(chosen, sizes)
        place = np.arange(len(transfer)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows = self._sram[transfer] + place
        if self.region[first] < 0:
            if not stores:
                memory.chip[name][rows] = 0
            return name, rows
        region = self._stream.regions[self.region[first]]
        if region.name not in memory.dram:
            return name, rows
        y, x = np.divmod(place, self._width[transfer])
        y, x = y - self._pad_top[transfer], x - self._pad_left[transfer]
        in_bounds = (y >= 0) & (y < self._rows[transfer]) & (x >= 0) & (x < self._columns[transfer])
        there = self._dram[transfer] + y * self._stride[transfer] + x - region.base
        dram, written = memory.dram[region.name], memory.written[region.name]
        if stores:
            values = memory.chip[name][rows[in_bounds]]
            dram[there[in_bounds]], written[there[in_bounds]] = own.convert(values), True
            return name, rows
        there = np.where(in_bounds, there, region.rows)
        if not written[there].all():
            where = self._where(transfer[np.argmin(written[there])])
            raise StreamError(f"{where}: reads {region.name} before it is written")
        memory.chip[name][rows] = dram[there]
        return name, rows
