"""VTA's compute instructions: micro-operations in two loops, and their effects.

``for i in range(outer): for j in range(inner): for uop in uops[begin:end]`` with indices
``uop.dst + i * dst[0] + j * dst[1]``, and so for the sources (VTA's ``hw_spec.h``).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from amos.errors import StreamError
from amos.streams.codegen.instructions import Access, Compute, Memory

#: Operations of the ALU, by their opcodes.
ALU_OPCODES = ("min", "max", "add", "shr", "mul")
#: Cycles of the ALU for a micro-operation: it has one port to read accumulators.
_ALU_CYCLES = 2
#: Least number of micro-operations until the GEMM core can read a result back.
_WRITE_INTERVAL = 3


@dataclass(frozen=True, kw_only=True)
class Looped(Compute):
    """Micro-operations in two loops.

    Attributes:
        begin: first micro-operation, in their buffer.
        end: one past the last one.
        dst: what each adds to the index of the destination.
        src: the same for the source.
    """

    begin: int
    end: int
    outer: int
    inner: int
    dst: tuple[int, int]
    src: tuple[int, int]

    @property
    def operations(self) -> int:
        """Cycles: one for each micro-operation."""
        return self.outer * self.inner * (self.end - self.begin)

    def walk(self, memory: Memory, run: Sequence[Any]) -> tuple[_Walk, np.ndarray]:
        """Return how indices of a run move, and where they begin: destination, source, weight."""
        whole = memory.chip["uop"]
        for instruction in run:
            if not (
                0 <= instruction.begin < instruction.end <= len(whole) and instruction.operations
            ):
                raise StreamError(
                    f"{instruction}: expected micro-operations of the buffer, and steps"
                )
        uops = np.concatenate([whole[instruction.begin : instruction.end] for instruction in run])
        key = (uops - uops[0]).tobytes(), len(run), self.outer, self.inner, self._factors
        return _walk(*key), uops[0]

    @property
    def _factors(self) -> tuple[tuple[int, int], ...]:
        return self.dst, self.src

    def check(self, memory: Memory, buffer: str, rows: np.ndarray) -> np.ndarray:
        """Return rows of a buffer, in rising order; raise StreamError if one is outside of it."""
        depth = len(memory.chip[buffer])
        if rows[-1] >= depth:
            raise StreamError(f"{self}: index {rows[-1]} of {buffer}, which has {depth}")
        return rows

    def loops(self) -> str:
        """Print loops and micro-operations."""
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

    @property
    def alike(self) -> Hashable:
        """Its loops: those with the same ones are one with more micro-operations."""
        alone = (self.outer, self.inner, self.end - self.begin, self._factors)
        return None if self.reset else alone

    @property
    def _factors(self) -> tuple[tuple[int, int], ...]:
        return self.dst, self.src, self.wgt

    def access(self, memory: Memory, run: Sequence[Any]) -> Access:
        """List the micro-operations, sources and accumulators that it reads and writes."""
        walk, start = self.walk(memory, run)
        uops = np.concatenate([np.arange(each.begin, each.end) for each in run])
        acc, inp, wgt = (rows + at for rows, at in zip(walk.distinct, start, strict=True))
        written = {"acc": self.check(memory, "acc", acc)}
        if self.reset:
            return Access({"uop": uops}, written)
        if walk.accumulator_interval < _WRITE_INTERVAL:
            raise StreamError(
                f"{self}: an accumulator is written again before {_WRITE_INTERVAL} cycles passed"
            )
        sources = {"inp": self.check(memory, "inp", inp), "wgt": self.check(memory, "wgt", wgt)}
        return Access({"uop": uops, **sources, **written}, written)

    def execute(self, memory: Memory, run: Sequence[Any]) -> None:
        """Add the products, or write zeros."""
        walk, (dst, src, wgt) = self.walk(memory, run)
        chip = memory.chip
        if self.reset:
            chip["acc"][walk.distinct[0] + dst] = 0
            return
        for at, rows, block in walk.groups:
            # Sums of products of bytes are whole numbers that a float64 holds exactly.
            batch = chip["inp"].shape[1]
            inputs = chip["inp"][rows + src].transpose(0, 2, 1, 3).reshape(len(rows) * batch, -1)
            weights = chip["wgt"][block + wgt].transpose(0, 2, 1).reshape(inputs.shape[1], -1)
            added = (inputs.astype(np.float64) @ weights.astype(np.float64)).astype(np.int64)
            chip["acc"][at + dst] = (
                chip["acc"][at + dst] + added.reshape(len(rows), batch, -1)
            ).astype(np.int32)

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

    def access(self, memory: Memory, run: Sequence[Any]) -> Access:
        """List the micro-operations and accumulators that it reads, and those it writes."""
        walk, start = self.walk(memory, run)
        if len(walk.distinct[0]) < self.outer * self.inner * (self.end - self.begin):
            raise StreamError(f"{self}: an accumulator is written twice")
        read = written = self.check(memory, "acc", walk.distinct[0] + start[0])
        if self.immediate is None:
            source = self.check(memory, "acc", walk.distinct[1] + start[1])
            read = np.union1d(written, source)
        return Access({"uop": np.arange(self.begin, self.end), "acc": read}, {"acc": written})

    def execute(self, memory: Memory, run: Sequence[Any]) -> None:
        """Replace the accumulators."""
        walk, start = self.walk(memory, run)
        dst, src = (rows + at for rows, at in zip(walk.indices, start, strict=False))
        acc = memory.chip["acc"]
        rhs: Any = np.int64(self.immediate) if self.immediate is not None else acc[src]
        lhs = acc[dst].astype(np.int64)
        if self.opcode == "shr":
            result = np.where(rhs >= 0, lhs >> np.maximum(rhs, 0), lhs << np.maximum(-rhs, 0))
        else:
            by = {"min": np.minimum, "max": np.maximum, "add": np.add, "mul": np.multiply}
            result = by[self.opcode](lhs, rhs)
        acc[dst] = result.astype(np.int32)

    def __str__(self) -> str:
        by = f"src {self.src}" if self.immediate is None else f"{self.immediate}"
        return f"alu {self.opcode} {by} {self.loops()} dst {self.dst}"


@dataclass(frozen=True, kw_only=True)
class Finish(Compute):
    """Tells the host that everything before it is done."""

    def access(self, memory: Memory, run: Sequence[Any]) -> Access:
        """Return no access."""
        return Access()

    def execute(self, memory: Memory, run: Sequence[Any]) -> None:
        """Leave memory as it is."""

    def __str__(self) -> str:
        return "finish"


class _Walk:
    """Indices of operands, counted from the first one of each: steps × instructions × uops."""

    def __init__(self, indices: list[np.ndarray], steps: int, instructions: int) -> None:
        self.indices, self._steps, self._instructions = indices, steps, instructions

    @cached_property
    def distinct(self) -> list[np.ndarray]:
        return [np.unique(rows) for rows in self.indices]

    @cached_property
    def accumulator_interval(self) -> int:
        """Operations between two on one accumulator, at most the write interval."""
        steps = self.indices[0].reshape(self._steps, self._instructions, -1)
        at = steps.swapaxes(0, 1).reshape(self._instructions, -1)
        near = (n for n in range(1, _WRITE_INTERVAL) if (at[:, n:] == at[:, :-n]).any())
        return next(near, _WRITE_INTERVAL)

    @cached_property
    def groups(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Micro-operations as products of matrices.

        Each has accumulators that are multiplied with the same weights in sequence;
        rows of inputs of each, accumulators × weights; the weights.
        """
        order = np.argsort(self.indices[0], kind="stable")
        at, rows, blocks = (each[order] for each in self.indices)
        # Number of earlier writes of each accumulator, so that any number of writes is possible.
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


@lru_cache(maxsize=256)
def _walk(
    uops: bytes, instructions: int, outer: int, inner: int, factors: tuple[tuple[int, int], ...]
) -> _Walk:
    own = np.frombuffer(uops, np.int32).reshape(-1, 3)
    i, j = np.arange(outer)[:, None, None], np.arange(inner)[None, :, None]
    columns = ((own[:, n], step, small) for n, (step, small) in enumerate(factors))
    indices = [(uop + i * step + j * small).reshape(-1) for uop, step, small in columns]
    return _Walk(indices, outer * inner, instructions)
