"""Instructions of a unit with a load, a compute and a store queue, and their effect on memory.

Queues run at the same time, each in order. Only tokens order instructions of different
queues: an instruction pops tokens before it begins and pushes them when it is done, from
and to the queue before its own (``prev``) and the one after it (``next``).
Addresses count fragments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from amos.ir import dtype
from amos.streams.codegen.scaling import Scaling

QUEUES = ("load", "compute", "store")
#: Directions of tokens, and the distance of the queues that they lead to.
NEIGHBOURS = {"prev": -1, "next": 1}


@dataclass(frozen=True)
class Buffer:
    """A memory on chip.

    Attributes:
        depth: fragments that it holds.
        shape: of a fragment.
        queue: that fills it; ``""`` if loads do not.
        bits: of a fragment in DRAM, if that is not what its elements have.
        of: the buffer that it is a view of; the view truncates elements to its own dtype.
        scaling: of elements, instead of truncating them.
    """

    name: str
    depth: int
    shape: tuple[int, ...]
    dtype: str
    queue: str = ""
    bits: int = 0
    of: str = ""
    scaling: Scaling | None = None

    def convert(self, elements: np.ndarray) -> np.ndarray:
        """Convert elements to their stored form."""
        if self.scaling is not None:
            return self.scaling.apply(elements)
        return elements.astype(dtype(self.dtype).numpy)

    @property
    def bytes(self) -> int:
        """Bytes of a fragment in DRAM."""
        return (self.bits or prod(self.shape) * dtype(self.dtype).bits) // 8


@dataclass(frozen=True)
class Region:
    """A tensor in DRAM: a buffer's fragments, ``rows`` of them from ``base`` on."""

    name: str
    buffer: str
    base: int
    rows: int


class Memory:
    """The contents of buffers and of DRAM.

    Args:
        stream: runs on it.
        dram: what regions hold at first, one row a fragment; others are empty. Without it,
            contents are those of the stream's constants alone.

    Attributes:
        chip: contents of each buffer, one row a fragment.
        dram: of each region whose contents matter, and a row of zeros.
        written: which of their rows have contents; the last one has.
    """

    def __init__(self, stream: Stream, dram: MappingType[str, np.ndarray] | None) -> None:
        self.buffers = {b.name: b for b in stream.buffers}
        self.regions = stream.regions
        self.chip, self.dram = dict[str, np.ndarray](), dict[str, np.ndarray]()
        self.written = dict[str, np.ndarray]()
        contents = {**(dram or {}), **stream.constants}
        for b in stream.buffers:
            if not b.of:
                self.chip[b.name] = np.zeros((b.depth, *b.shape), dtype(b.dtype).numpy)
        for region in stream.regions:
            if dram is None and region.name not in contents:
                continue
            kind = self.buffers[region.buffer]
            rows = np.zeros((region.rows + 1, *kind.shape), dtype(kind.dtype).numpy)
            if region.name in contents:
                rows[:-1] = contents[region.name].reshape(-1, *kind.shape)
            self.dram[region.name] = rows
            self.written[region.name] = np.full(region.rows + 1, region.name in contents)
            self.written[region.name][-1] = True


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
        """Return the one of :data:`QUEUES` that runs it."""

    @property
    def tokens(self) -> str:
        """Its tokens in words."""
        names = ("pop_prev", "pop_next", "push_prev", "push_next")
        return " ".join(name for name in names if getattr(self, name))


class Compute(Instruction):
    """An instruction of the compute queue that moves nothing."""

    def queue(self, buffers: MappingType[str, Buffer]) -> str:
        """Return the compute queue."""
        return "compute"

    @property
    def operations(self) -> int:
        """Cycles of work on chip."""
        return 0

    @property
    def alike(self) -> Hashable:
        """Key of instructions that can be executed together; ``None`` if it goes alone."""
        return None

    @abstractmethod
    def access(self, memory: Memory, run: Sequence[Any]) -> Access:
        """List the fragments that instructions of one :attr:`alike` touch, itself the first one.

        Raises:
            StreamError: that is impossible in any order of instructions.
        """

    @abstractmethod
    def execute(self, memory: Memory, run: Sequence[Any]) -> None:
        """Execute instructions of one :attr:`alike`, itself the first one."""


@dataclass(frozen=True)
class Stream:
    """Instructions in the order that they are issued in, and the memory that they are for.

    Attributes:
        instructions: the last one finishes.
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
        """Yield the stream as text, a line an instruction."""
        for number, (at, instruction) in enumerate(
            zip(self.queues, self.instructions, strict=True)
        ):
            yield f"{number:6} {QUEUES[at]:8} {instruction!s:64} {instruction.tokens}".rstrip()

    def __str__(self) -> str:
        return "\n".join(self.lines())
