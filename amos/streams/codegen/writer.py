"""A plan as a stream: the part that all units share, whatever their compute instructions are."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingType
from math import lcm, prod
from typing import NamedTuple

import numpy as np

from amos.errors import BuildError
from amos.ir import Operator
from amos.streams.codegen.instructions import Buffer, Region, Stream
from amos.streams.codegen.rectangles import Tile, tile_of
from amos.streams.codegen.tokens import Draft
from amos.streams.codegen.transfers import Load, Store
from amos.streams.operand import StreamOperand
from amos.streams.plan import Span, StreamPlan

#: Alignment of tensors in DRAM, in bytes.
_PAGE = 4096


class Step(NamedTuple):
    """A loop over fragments; a step moves the index of the destination, then of each source."""

    length: int
    moves: tuple[int, ...]

    @property
    def sums(self) -> bool:
        """Whether it stays at one accumulator."""
        return not self.moves[0]


class Writer(ABC):
    """Writes the stream of a plan: loads of tiles that are not on chip, their sums, stores.

    Args:
        buffers: memories on chip; that of an operand has :attr:`StreamOperand.buffer` as name.
        leaving: the buffer whose fragments results are in DRAM; by default the destination's.
    """

    def __init__(self, plan: StreamPlan, buffers: Iterable[Buffer], leaving: str = "") -> None:
        self.plan = plan
        self.buffers = {b.name: b for b in buffers}
        self.draft = Draft(self.buffers)
        self._leaving = leaving or plan.destination.buffer
        self.bases, self.end = self._bases()
        #: Of each source the tiles on chip, by the spans that they are for, oldest first.
        self.resident = {op.name: dict[tuple[Span, ...], int]() for op in plan.sources}
        names = {x.name for x in (*plan.spatial, *plan.reduce_loops)}
        #: Of each operand the loops that move along it.
        self._moving = {
            op.name: sorted(names & {name for dim in op.dims for name in dim.index.names})
            for op in plan.tiles.operands
        }
        # Tiles and the instructions that load them recur: they are most of a stream.
        self._tiles = dict[tuple[str, tuple[Span, ...]], Tile]()
        self._loads = dict[tuple[str, tuple[Span, ...], int], list[Load]]()
        #: By the lengths of spans, the loops around calls, which nothing else changes.
        self._loops = dict[tuple[int, ...], tuple[Step, ...]]()

    @abstractmethod
    def multiply(
        self, loops: tuple[Step, ...], tiles: Sequence[Tile], bases: Sequence[int], first: bool
    ) -> None:
        """Write the calls of one tile.

        Args:
            tiles: of the destination, then of each source.
            bases: fragment on chip of the first step of all loops, of the same.
            first: whether accumulators have no sum yet.
        """

    @abstractmethod
    def finish(self, result: Tile, slot: int) -> None:
        """Write what follows the last sum of a tile, which is in a slot."""

    def emit_end(self) -> dict[str, np.ndarray]:
        """Write what ends the stream.

        Returns:
            tensors in DRAM that the stream itself brings, one row a fragment, by the names of
            their buffers with an ``s``.
        """
        return {}

    def stream(self) -> Stream:
        """Write the whole stream; raise BuildError if it is too long."""
        plan, limit = self.plan, self.plan.unit.instructions
        slots = itertools.cycle(plan.slots[plan.destination.name])
        for spatial, slot in zip(plan.output_tiles(), slots, strict=False):
            self._output(spatial, slot)
            if len(self.draft.instructions) >= limit:
                raise BuildError(
                    f"{plan.mapping.name}: more than {limit} instructions; take larger tiles"
                )
        constants = self.emit_end()
        regions = [
            Region(plan.regions[op.name], self._dram_buffer(op), self.bases[op.name], _rows(op))
            for op in plan.tiles.operands
        ]
        for name, rows in constants.items():
            kind = name.removesuffix("s")
            regions.append(Region(name, kind, self.end // self.buffers[kind].bytes, len(rows)))
        return Stream(self.draft.finish(), tuple(self.buffers.values()), tuple(regions), constants)

    def _output(self, spatial: MappingType[str, Span], slot: int) -> None:
        """Emit everything for one tile of the output."""
        operands = (self.plan.destination, *self.plan.sources)
        first = True
        for reduction in self.plan.reduction_tiles():
            spans = {**spatial, **reduction}
            keys = [tuple([spans[name] for name in self._moving[op.name]]) for op in operands]
            tiles = [self._tile(op, key, spans) for op, key in zip(operands, keys, strict=True)]
            result = tiles[0]
            bases = [slot + result.first, *self._load_sources(keys[1:], tiles[1:])]
            self.multiply(self._tile_loops(spans, tiles), tiles, bases, first)
            first = False
        self.finish(result, slot)
        self._store(result, slot)

    def _tile(
        self, op: StreamOperand, key: tuple[Span, ...], spans: MappingType[str, Span]
    ) -> Tile:
        """Return the tile of an operand for the spans of a key."""
        tile = self._tiles.get((op.name, key))
        if tile is None:
            tile = self._tiles[op.name, key] = tile_of(op, spans)
        return tile

    def _tile_loops(self, spans: MappingType[str, Span], tiles: Sequence[Tile]) -> tuple[Step, ...]:
        """Return the loops of a tile around its calls."""
        key = tuple([span.length for span in spans.values()])
        if key not in self._loops:
            self._loops[key] = tuple(
                Step(span.length, tuple(tile.steps.get(name, 0) for tile in tiles))
                for name, span in spans.items()
            )
        return self._loops[key]

    def rows_of_tiles(self, tiles: Sequence[Tile], bases: Sequence[int]) -> dict[str, slice]:
        """Return the rows of each buffer that calls of one tile may touch."""
        operands = [self.plan.destination, *self.plan.sources]
        return {
            op.buffer: slice(base - tile.first, base - tile.first + tile.fragments)
            for op, base, tile in zip(operands, bases, tiles, strict=True)
        }

    def _load_sources(self, keys: Sequence[tuple[Span, ...]], tiles: Sequence[Tile]) -> list[int]:
        """Load the tiles of sources; return the fragments on chip of the loops' first steps."""
        sources = list(zip(self.plan.sources, keys, tiles, strict=True))
        # Sources with a second buffer come first: they do not wait for products in the first one.
        sources.sort(key=lambda source: -len(self.plan.slots[source[0].name]))
        first = {op.name: self._load(op, key, tile) + tile.first for op, key, tile in sources}
        return [first[op.name] for op in self.plan.sources]

    def _load(self, op: StreamOperand, key: tuple[Span, ...], tile: Tile) -> int:
        """Load a tile unless it is on chip; return its first fragment there."""
        resident, slots = self.resident[op.name], self.plan.slots[op.name]
        if key in resident:
            resident[key] = resident.pop(key)  # the one in use is the newest
            return resident[key]
        free = [slot for slot in slots if slot not in resident.values()]
        resident[key] = slot = free[0] if free else resident.pop(next(iter(resident)))
        loads = self._loads.get((op.name, key, slot))
        if loads is None:
            loads = self._loads[op.name, key, slot] = self._loads_of(op, tile, slot)
        self.draft.add(loads, writes={op.buffer: slice(slot, slot + tile.fragments)})
        return slot

    def _loads_of(self, op: StreamOperand, tile: Tile, slot: int) -> list[Load]:
        rectangles = tile.rectangles(slot, self.bases[op.name])
        return [Load(buffer=op.buffer, **vars(each)) for each in rectangles]

    def _store(self, result: Tile, slot: int) -> None:
        rectangles = result.rectangles(slot, self.bases[self.plan.destination.name])
        stores = [Store(buffer=self._leaving, **vars(each)) for each in rectangles]
        read = slice(slot, slot + result.fragments)
        self.draft.add(stores, {self.plan.destination.buffer: read})

    def _dram_buffer(self, op: StreamOperand) -> str:
        """Return the name of the buffer whose fragments an operand has in DRAM."""
        return self._leaving if op is self.plan.destination else op.buffer

    def _bases(self) -> tuple[dict[str, int], int]:
        """Return the first fragment of each operand in DRAM, in order, and the bytes of all."""
        aligned = {m.operand: m.alignment for m in self.plan.mapping.intrinsic.memory}
        at, bases = 0, {}
        for op in self.plan.tiles.operands:
            size = self.buffers[self._dram_buffer(op)].bytes
            unit = lcm(size, aligned[op.name])
            at = -(-at // unit) * unit
            bases[op.name] = at // size
            at += -(-_rows(op) * size // _PAGE) * _PAGE
        return bases, at


def refuse_extras(op: Operator, unit: str) -> None:
    """Raise BuildError for prologues, several results, and elements that are stored elsewhere."""
    if op.prologues:
        raise BuildError(
            f"{unit} loads sources as they are: nothing computes {op.prologues[0]} there"
        )
    if op.store is not None:
        raise BuildError(f"{unit} stores whole fragments of the output, not {op.store}")
    if op.further:
        raise BuildError(f"{unit} stores one result, not also {op.further[0]}")


def _rows(op: StreamOperand) -> int:
    return prod(dim.extent for dim in op.dims)
