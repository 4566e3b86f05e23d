"""VTA's compute instructions: micro-operations in two loops, and what they do.

``for i in range(outer): for j in range(inner): for uop in uops[begin:end]`` with indices
``uop.dst + i * dst[0] + j * dst[1]``, and so for the sources (VTA's ``hw_spec.h``).
"""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from amos.codegen.stream.instructions import Access, Buffer, Instruction, Memory
from amos.errors import StreamError

__all__ = ["ALU_OPCODES", "Alu", "Finish", "Gemm", "Looped"]

#: Operations of the ALU, by their opcodes.
ALU_OPCODES = ("min", "max", "add", "shr", "mul")
#: Cycles of the ALU for a micro-operation: it has one port to read accumulators.
_ALU_CYCLES = 2
#: The GEMM core reads a result back so many micro-operations later at the earliest.
_WRITE_INTERVAL = 3


@dataclass(frozen=True, kw_only=True)
class Looped(Instruction):
    """Micro-operations in two loops.

    Attributes:
        begin: first micro-operation, in their buffer.
        end: behind the last one.
        outer: steps of the outer loop.
        inner: steps of the inner loop.
        dst: what each adds to the index of the destination.
        src: the same for the source.
    """

    begin: int
    end: int
    outer: int
    inner: int
    dst: tuple[int, int]
    src: tuple[int, int]

    def queue(self, buffers: MappingType[str, Buffer]) -> str:
        """The compute queue."""
        return "compute"

    @property
    def operations(self) -> int:
        """Cycles: one for each micro-operation."""
        return self.outer * self.inner * (self.end - self.begin)

    def indices(self, memory: Memory, factors: tuple[tuple[int, int], ...]) -> list[np.ndarray]:
        """Index of each operand for each micro-operation, in the order of execution.

        Raises:
            StreamError: there are none, or one is outside of its buffer.
        """
        uops = memory.chip["uop"][self.begin : self.end]
        if not (0 <= self.begin < self.end <= len(memory.chip["uop"]) and self.operations):
            raise StreamError(f"{self}: expected micro-operations of the buffer, and steps")
        if not memory.filled["uop"][self.begin : self.end].all():
            raise StreamError(f"{self}: micro-operations are executed before they are loaded")
        return _walked(uops.tobytes(), self.outer, self.inner, factors)

    def checked(self, memory: Memory, buffer: str, rows: np.ndarray) -> np.ndarray:
        """The rows of a buffer without repetition.

        Raises:
            StreamError: one is outside of it.
        """
        depth = len(memory.chip[buffer])
        if rows.max() >= depth:
            raise StreamError(f"{self}: index {rows.max()} of {buffer}, which has {depth}")
        return _distinct(rows.tobytes())

    def loops(self) -> str:
        """Loops and micro-operations as text."""
        return f"{self.outer} x {self.inner} x uop[{self.begin}:{self.end}]"


@dataclass(frozen=True, kw_only=True)
class Gemm(Looped):
    """``acc[dst] += inp[src] @ wgt[wgt].T``, or zeros to ``acc[dst]``.

    Attributes:
        wgt: what loops add to the index of the weights.
        reset: whether it writes zeros.
    """

    wgt: tuple[int, int]
    reset: bool = False

    def access(self, memory: Memory) -> Access:
        """Reads micro-operations, sources and accumulators, which it writes."""
        dst, src, wgt = self.indices(memory, (self.dst, self.src, self.wgt))
        uops = np.arange(self.begin, self.end)
        written = {"acc": self.checked(memory, "acc", dst)}
        if self.reset:
            return Access({"uop": uops}, written)
        if _too_soon(dst.tobytes()):
            raise StreamError(
                f"{self}: an accumulator is written again before {_WRITE_INTERVAL} cycles passed"
            )
        sources = {"inp": self.checked(memory, "inp", src), "wgt": self.checked(memory, "wgt", wgt)}
        return Access({"uop": uops, **sources, **written}, written)

    def execute(self, memory: Memory) -> None:
        """Add the products, or write zeros."""
        dst, src, wgt = self.indices(memory, (self.dst, self.src, self.wgt))
        chip = memory.chip
        if self.reset:
            chip["acc"][dst] = 0
            return
        for at, rows, block in _groups(dst.tobytes(), src.tobytes(), wgt.tobytes()):
            # Sums of products of bytes are whole numbers that a float64 holds exactly.
            batch = chip["inp"].shape[1]
            left = chip["inp"][rows].transpose(0, 2, 1, 3).reshape(len(rows) * batch, -1)
            right = chip["wgt"][block].transpose(0, 2, 1).reshape(left.shape[1], -1)
            added = (left.astype(np.float64) @ right.astype(np.float64)).astype(np.int64)
            chip["acc"][at] = (chip["acc"][at] + added.reshape(len(rows), batch, -1)).astype(
                np.int32
            )

    def __str__(self) -> str:
        factors = f"dst {self.dst}, src {self.src}, wgt {self.wgt}"
        return f"{'reset' if self.reset else 'gemm'} {self.loops()} {factors}"


@dataclass(frozen=True, kw_only=True)
class Alu(Looped):
    """``acc[dst] = opcode(acc[dst], immediate or acc[src])``.

    Attributes:
        opcode: one of :data:`ALU_OPCODES`.
        immediate: a number of 16 bits; ``None`` for ``acc[src]``.
    """

    opcode: str
    immediate: int | None = None

    @property
    def operations(self) -> int:
        """Cycles of the ALU."""
        return _ALU_CYCLES * self.outer * self.inner * (self.end - self.begin)

    def access(self, memory: Memory) -> Access:
        """Reads micro-operations and accumulators, which it writes."""
        dst, src, _ = self.indices(memory, (self.dst, self.src, (0, 0)))
        written = self.checked(memory, "acc", dst)
        if len(written) < len(dst):
            raise StreamError(f"{self}: an accumulator is written twice")
        read = written
        if self.immediate is None:
            read = np.union1d(written, self.checked(memory, "acc", src))
        return Access({"uop": np.arange(self.begin, self.end), "acc": read}, {"acc": written})

    def execute(self, memory: Memory) -> None:
        """Replace the accumulators."""
        dst, src, _ = self.indices(memory, (self.dst, self.src, (0, 0)))
        acc = memory.chip["acc"]
        right: Any = np.int64(self.immediate) if self.immediate is not None else acc[src]
        left = acc[dst].astype(np.int64)
        if self.opcode == "shr":
            result = np.where(
                right >= 0, left >> np.maximum(right, 0), left << np.maximum(-right, 0)
            )
        else:
            by = {"min": np.minimum, "max": np.maximum, "add": np.add, "mul": np.multiply}
            result = by[self.opcode](left, right)
        acc[dst] = result.astype(np.int32)

    def __str__(self) -> str:
        by = f"src {self.src}" if self.immediate is None else f"{self.immediate}"
        return f"alu {self.opcode} {by} {self.loops()} dst {self.dst}"


@dataclass(frozen=True, kw_only=True)
class Finish(Instruction):
    """Tells the host that everything before it is done."""

    def queue(self, buffers: MappingType[str, Buffer]) -> str:
        """The compute queue."""
        return "compute"

    def access(self, memory: Memory) -> Access:
        """Touches nothing."""
        return Access()

    def execute(self, memory: Memory) -> None:
        """Does nothing to memory."""

    def __str__(self) -> str:
        return "finish"


@lru_cache(maxsize=256)
def _walked(
    uops: bytes, outer: int, inner: int, factors: tuple[tuple[int, int], ...]
) -> list[np.ndarray]:
    own = np.frombuffer(uops, np.int32).reshape(-1, 3).astype(np.int64)
    i, j = np.arange(outer)[:, None, None], np.arange(inner)[None, :, None]
    return [
        (own[:, n] + i * step + j * small).reshape(-1) for n, (step, small) in enumerate(factors)
    ]


@lru_cache(maxsize=1024)
def _distinct(rows: bytes) -> np.ndarray:
    return np.unique(np.frombuffer(rows, np.int64))


@lru_cache(maxsize=256)
def _too_soon(rows: bytes) -> bool:
    at = np.frombuffer(rows, np.int64)
    return any(bool((at[n:] == at[:-n]).any()) for n in range(1, _WRITE_INTERVAL) if len(at) > n)


@lru_cache(maxsize=256)
def _groups(dst: bytes, src: bytes, wgt: bytes) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Micro-operations as products of matrices.

    Returns:
        accumulators that are multiplied with the same weights one after the other; rows of
        inputs of each, accumulators × weights; the weights.
    """
    at, rows, blocks = (np.frombuffer(each, np.int64) for each in (dst, src, wgt))
    order = np.argsort(at, kind="stable")
    at, rows, blocks = at[order], rows[order], blocks[order]
    # How often each accumulator was written before, so that any number of times will do.
    first = np.flatnonzero(np.r_[True, at[1:] != at[:-1]])
    counts = np.diff(np.r_[first, len(at)])
    groups = []
    for count in np.unique(counts):
        own = first[counts == count, None] + np.arange(count)
        kinds, which = np.unique(blocks[own], axis=0, return_inverse=True)
        for n, block in enumerate(kinds):
            mine = own[which.reshape(-1) == n]
            groups.append((at[mine[:, 0]], rows[mine], block))
    return groups
