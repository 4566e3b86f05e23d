"""Instructions of a unit with a load, a compute and a store queue, and what they do to memory.

Queues run at the same time, each in order. What one may take for granted of another is
what tokens say: an instruction pops tokens before it begins and pushes them when it is
done, to and from the queue before its own (``prev``) and the one behind it (``next``).
Addresses count fragments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from amos.errors import StreamError
from amos.ir import dtype

__all__ = [
    "NEIGHBOURS",
    "QUEUES",
    "Access",
    "Buffer",
    "Instruction",
    "Load",
    "Memory",
    "Region",
    "Store",
    "Stream",
    "Transfer",
]

QUEUES = ("load", "compute", "store")
#: A direction of tokens, and how far the queue is that it leads to.
NEIGHBOURS = {"prev": -1, "next": 1}


@dataclass(frozen=True)
class Buffer:
    """A memory on chip.

    Attributes:
        name: ``"inp"``, ``"acc"``, …
        depth: fragments that it holds.
        shape: of a fragment.
        dtype: canonical dtype of an element.
        queue: that fills it; ``""`` if loads do not.
        bits: of a fragment in DRAM, if that is not what its elements have.
        of: the buffer that it is a view of, whose elements are cut to its own dtype.
    """

    name: str
    depth: int
    shape: tuple[int, ...]
    dtype: str
    queue: str = ""
    bits: int = 0
    of: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of a fragment in DRAM."""
        return (self.bits or prod(self.shape) * dtype(self.dtype).bits) // 8


@dataclass(frozen=True)
class Region:
    """A tensor in DRAM.

    Attributes:
        name: of the tensor.
        buffer: whose fragments it consists of.
        base: its first fragment.
        rows: fragments.
    """

    name: str
    buffer: str
    base: int
    rows: int


class Memory:
    """The contents of buffers and of DRAM, and which fragments have any.

    Args:
        stream: what runs on it.
        dram: what regions hold at first, one row a fragment; others are empty.
    """

    def __init__(self, stream: Stream, dram: MappingType[str, np.ndarray]) -> None:
        self.buffers = {b.name: b for b in stream.buffers}
        self.chip, self.filled = dict[str, np.ndarray](), dict[str, np.ndarray]()
        self.regions = stream.regions
        self.dram = dict[str, np.ndarray]()
        self.written = dict[str, np.ndarray]()
        for b in stream.buffers:
            if not b.of:
                self.chip[b.name] = np.zeros((b.depth, *b.shape), dtype(b.dtype).numpy)
                self.filled[b.name] = np.zeros(b.depth, dtype=bool)
        for region in stream.regions:
            held, kind = dram.get(region.name), self.buffers[region.buffer]
            shape = (region.rows, *kind.shape)
            empty = held is None
            self.dram[region.name] = (
                np.zeros(shape, dtype(kind.dtype).numpy) if held is None else held.reshape(shape)
            )
            self.written[region.name] = np.full(region.rows, not empty)

    def locate(self, buffer: str, rows: np.ndarray) -> tuple[str, np.ndarray]:
        """The region that fragments at addresses in DRAM are in, and their rows there.

        Raises:
            StreamError: they are in none, or in several.
        """
        for region in self.regions:
            inside = (rows >= region.base) & (rows < region.base + region.rows)
            if region.buffer == buffer and inside.all():
                return region.name, rows - region.base
        raise StreamError(
            f"{buffer}: addresses {rows.min()} to {rows.max()} of DRAM are in no tensor of it"
        )


@dataclass(frozen=True)
class Access:
    """Fragments that an instruction reads and writes on chip, by buffer."""

    reads: MappingType[str, np.ndarray] = field(default_factory=dict)
    writes: MappingType[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Instruction(ABC):
    """One instruction with its tokens."""

    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False

    @abstractmethod
    def queue(self, buffers: MappingType[str, Buffer]) -> str:
        """Which one of :data:`QUEUES` runs it."""

    @abstractmethod
    def access(self, memory: Memory) -> Access:
        """What it touches.

        Raises:
            StreamError: that is impossible whatever the order of instructions is.
        """

    @abstractmethod
    def execute(self, memory: Memory) -> None:
        """Do it."""

    @property
    def moved(self) -> int:
        """Fragments to or from DRAM."""
        return 0

    @property
    def operations(self) -> int:
        """Cycles of work on chip."""
        return 0

    @property
    def tokens(self) -> str:
        """Its tokens in words."""
        names = ("pop_prev", "pop_next", "push_prev", "push_next")
        return " ".join(name for name in names if getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Transfer(Instruction):
    """A rectangle of fragments between DRAM and a buffer, where it is contiguous.

    Attributes:
        buffer: the buffer.
        sram: its first fragment there.
        dram: its first fragment in DRAM.
        rows: of the rectangle, without padding.
        columns: the same.
        stride: fragments from row to row in DRAM.
        before: rows and columns of zeros before it; of loads.
        after: the same behind it.
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

    @property
    def operations(self) -> int:
        """Cycles in which zeros are written."""
        return prod(self.shape) - self.moved

    @cached_property
    def _rows(self) -> np.ndarray:
        return np.arange(self.sram, self.sram + prod(self.shape))

    @cached_property
    def _addresses(self) -> np.ndarray:
        return (
            self.dram + np.arange(self.rows)[:, None] * self.stride + np.arange(self.columns)
        ).reshape(-1)

    def __str__(self) -> str:
        text = f"{type(self).__name__.lower()} {self.buffer}[{self.sram}] dram {self.dram}, "
        text += f"{self.rows} x {self.columns} stride {self.stride}"
        padded = any((*self.before, *self.after))
        return text + (f", zeros {self.before} {self.after}" if padded else "")


class Load(Transfer):
    """From DRAM, with zeros around."""

    def queue(self, buffers: MappingType[str, Buffer]) -> str:
        """The queue that fills its buffer."""
        return buffers[self.buffer].queue

    def access(self, memory: Memory) -> Access:
        """Writes its rectangle."""
        if self.moved:
            name, rows = memory.locate(self.buffer, self._addresses)
            if not memory.written[name][rows].all():
                raise StreamError(f"{self}: reads {name} before it is written")
        return Access(writes={self.buffer: self._rows})

    def execute(self, memory: Memory) -> None:
        """Copy it to the buffer."""
        held = memory.chip[self.buffer]
        block = np.zeros((*self.shape, *held.shape[1:]), held.dtype)
        if self.moved:
            name, rows = memory.locate(self.buffer, self._addresses)
            (y, x), inside = self.before, memory.dram[name][rows]
            block[y : y + self.rows, x : x + self.columns] = inside.reshape(
                self.rows, self.columns, *held.shape[1:]
            )
        held[self._rows] = block.reshape(-1, *held.shape[1:])


class Store(Transfer):
    """To DRAM."""

    def queue(self, buffers: MappingType[str, Buffer]) -> str:
        """The store queue."""
        return "store"

    def access(self, memory: Memory) -> Access:
        """Reads its rectangle."""
        memory.locate(self.buffer, self._addresses)
        kind = memory.buffers[self.buffer]
        return Access(reads={kind.of or kind.name: self._rows})

    def execute(self, memory: Memory) -> None:
        """Copy it to DRAM."""
        kind = memory.buffers[self.buffer]
        name, rows = memory.locate(self.buffer, self._addresses)
        values = memory.chip[kind.of or kind.name][self._rows]
        memory.dram[name][rows] = values.astype(dtype(kind.dtype).numpy)
        memory.written[name][rows] = True


@dataclass(frozen=True)
class Stream:
    """Instructions in the order that they are issued in, and the memory that they are for.

    Attributes:
        instructions: the last one finishes.
        buffers: memories on chip.
        regions: tensors in DRAM.
        constants: what regions hold that belong to the stream, one row a fragment.
    """

    instructions: tuple[Instruction, ...]
    buffers: tuple[Buffer, ...]
    regions: tuple[Region, ...]
    constants: MappingType[str, np.ndarray]

    @cached_property
    def queues(self) -> tuple[int, ...]:
        """Number of the queue of each instruction."""
        buffers = {b.name: b for b in self.buffers}
        return tuple(QUEUES.index(each.queue(buffers)) for each in self.instructions)

    def lines(self) -> Iterator[str]:
        """The stream as text."""
        for number, (at, each) in enumerate(zip(self.queues, self.instructions, strict=True)):
            yield f"{number:6} {QUEUES[at]:8} {each!s:64} {each.tokens}".rstrip()

    def __str__(self) -> str:
        return "\n".join(self.lines())
