"""A plan as a stream of VTA's instructions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingType
from math import prod
from typing import Any

import numpy as np

from amos.codegen.stream.instructions import Buffer, Load, Region, Store, Stream
from amos.codegen.stream.rectangles import Tile, tile_of
from amos.codegen.stream.tokens import Draft
from amos.codegen.vta.epilogue import AluStep, alu_steps
from amos.codegen.vta.instructions import Alu, Finish, Gemm
from amos.codegen.vta.loops import Arranged, Step, arranged
from amos.errors import BuildError
from amos.plan.stream_operand import StreamOperand
from amos.plan.stream_plan import Span, StreamPlan

__all__ = ["program"]

#: Buffers of the intrinsic's operands, in its order.
_BUFFERS = ("inp", "wgt", "acc")
_UOP_BITS = 32
#: DRAM is laid out in steps that fragments of all buffers divide.
_PAGE = 4096


def program(plan: StreamPlan) -> Stream:
    """The stream of a plan.

    Raises:
        BuildError: the intrinsic is no GEMM of VTA, its ALU has no such epilogue, or the
            stream is too long.
    """
    return _Program(plan).stream()


class _Program:
    def __init__(self, plan: StreamPlan) -> None:
        self.plan = plan
        _check(plan)
        self.steps, kind = alu_steps(plan.mapping.operator)
        self.buffers = {b.name: b for b in _buffers(plan, kind)}
        self.draft = Draft(self.buffers)
        self.interval = max(m.write_interval for m in plan.mapping.intrinsic.memory)
        self.bases = _bases(plan, self.buffers)
        self.uops = _MicroOps(self.draft, self.bases["uop"], plan.unit.micro_ops)
        #: Of each source the tiles on chip, by the spans that they are for, oldest first.
        self.resident = {op.name: dict[tuple[Span, ...], int]() for op in plan.sources}

    def stream(self) -> Stream:
        plan, limit = self.plan, self.plan.unit.instructions
        slots = itertools.cycle(plan.slots[plan.destination.name])
        for spatial, slot in zip(plan.output_tiles(), slots, strict=False):
            self._output(spatial, slot)
            if len(self.draft.instructions) >= limit:
                raise BuildError(
                    f"{plan.mapping.name}: more than {limit} instructions; take larger tiles"
                )
        self.draft.add(Finish())
        last = len(self.draft.instructions) - 1
        for queue in ("load", "store"):
            self.draft.wait(last, self.draft.last_of(queue))
        regions = [
            Region(op.staged.load.tensor.name, _stored(op), self.bases[op.name], _rows(op))
            for op in plan.tiles.operands
        ]
        uops = self.uops.all()
        regions.append(Region("uops", "uop", self.bases["uop"], len(uops)))
        return Stream(
            self.draft.finished(), tuple(self.buffers.values()), tuple(regions), {"uops": uops}
        )

    def _output(self, spatial: MappingType[str, Span], slot: int) -> None:
        """Everything for one tile of the output."""
        result = tile_of(self.plan.destination, spatial)
        whole = slice(slot, slot + result.fragments)
        first = True
        for reduction in self.plan.reduction_tiles():
            spans = {**spatial, **reduction}
            sources = [tile_of(op, spans) for op in self.plan.sources]
            bases = [slot + result.first, *self._loaded(spans, sources)]
            if first:
                self._clear(result, slot, whole)
            first = False
            self._multiply(spans, (result, *sources), bases)
        for step in self.steps:
            self._alu(step, result, slot, whole)
        self._store(result, slot)

    def _loaded(self, spans: MappingType[str, Span], tiles: Sequence[Tile]) -> list[int]:
        """Where the first steps of all loops are in tiles of the sources, which are loaded."""
        pairs = list(zip(self.plan.sources, tiles, strict=True))
        # What has a second buffer need not wait for the products that use the first.
        pairs.sort(key=lambda pair: -len(self.plan.slots[pair[0].name]))
        first = {op.name: self._load(op, spans, tile) + tile.first for op, tile in pairs}
        return [first[op.name] for op in self.plan.sources]

    def _load(self, op: StreamOperand, spans: MappingType[str, Span], tile: Tile) -> int:
        """First fragment on chip of a tile, which is loaded unless it is there."""
        key = tuple(spans[name] for name in sorted(tile.steps))
        resident, slots = self.resident[op.name], self.plan.slots[op.name]
        if key in resident:
            resident[key] = resident.pop(key)  # the one in use is the newest
            return resident[key]
        free = [slot for slot in slots if slot not in resident.values()]
        resident[key] = slot = free[0] if free else resident.pop(next(iter(resident)))
        for part in tile.rectangles():
            load = Load(
                buffer=op.buffer,
                sram=slot + part.sram,
                dram=self.bases[op.name] + part.dram,
                rows=part.rows,
                columns=part.columns,
                stride=part.stride,
                before=part.before,
                after=part.after,
            )
            self.draft.add(load, writes={op.buffer: slice(load.sram, load.sram + prod(load.shape))})
        return slot

    def _multiply(
        self, spans: MappingType[str, Span], tiles: Sequence[Tile], bases: Sequence[int]
    ) -> None:
        """The products of one tile."""
        loops = tuple(
            Step(span.length, _moves([tile.steps.get(name, 0) for tile in tiles]))
            for name, span in spans.items()
        )
        names = [self.plan.destination.buffer, *(op.buffer for op in self.plan.sources)]
        touched = {
            name: slice(base - tile.first, base - tile.first + tile.fragments)
            for name, base, tile in zip(names, bases, tiles, strict=True)
        }
        for way, start in _instructions(loops, self.plan.unit.micro_ops, self.interval):
            begin, end = self.uops.place(way.uops + np.array(bases) + start)
            gemm = Gemm(begin=begin, end=end, **_factors(way))
            written = {"acc": touched["acc"]}
            self.draft.add(gemm, {**touched, "uop": slice(begin, end)}, written)

    def _clear(self, result: Tile, slot: int, whole: slice) -> None:
        """Zeros for the accumulators of a tile."""
        way, begin, end = self._over(result, slot)
        gemm = Gemm(begin=begin, end=end, reset=True, **_factors(way))
        self.draft.add(gemm, {"uop": slice(begin, end)}, {"acc": whole})

    def _alu(self, step: AluStep, result: Tile, slot: int, whole: slice) -> None:
        """One operation of the epilogue on the accumulators of a tile."""
        way, begin, end = self._over(result, slot)
        factors = _factors(way)
        alu = Alu(
            begin=begin,
            end=end,
            outer=factors["outer"],
            inner=factors["inner"],
            dst=factors["dst"],
            src=factors["dst"],
            opcode=step.opcode,
            immediate=step.immediate,
        )
        self.draft.add(alu, {"uop": slice(begin, end), "acc": whole}, {"acc": whole})

    def _over(self, result: Tile, slot: int) -> tuple[Arranged, int, int]:
        """Loops and micro-operations over all accumulators of a tile."""
        way = arranged((Step(result.fragments, (1, 0, 0)),), 1, 0)
        assert way is not None
        return way, *self.uops.place(way.uops + np.array([slot, 0, 0]))

    def _store(self, result: Tile, slot: int) -> None:
        for part in result.rectangles():
            store = Store(
                buffer="out",
                sram=slot + part.sram,
                dram=self.bases[self.plan.destination.name] + part.dram,
                rows=part.rows,
                columns=part.columns,
                stride=part.stride,
            )
            self.draft.add(store, {"acc": slice(store.sram, store.sram + store.moved)})


class _MicroOps:
    """The buffer of micro-operations: kernels stay until their room is needed."""

    def __init__(self, draft: Draft, base: int, depth: int) -> None:
        self._draft, self._base, self._depth = draft, base, depth
        self._kernels = dict[bytes, int]()
        self._content = list[np.ndarray]()
        self._resident = dict[bytes, slice]()
        self._length, self._free = 0, 0

    def place(self, uops: np.ndarray) -> tuple[int, int]:
        """Where a kernel is, loading it if it is not there."""
        uops = uops.astype(np.int32)
        key, count = uops.tobytes(), len(uops)
        if key not in self._kernels:
            self._kernels[key], self._length = self._length, self._length + count
            self._content.append(uops)
        if key not in self._resident:
            begin = self._free if self._free + count <= self._depth else 0
            self._free = begin + count
            room = slice(begin, begin + count)
            self._resident = {
                k: r
                for k, r in self._resident.items()
                if r.stop <= room.start or room.stop <= r.start
            } | {key: room}
            load = Load(
                buffer="uop",
                sram=begin,
                dram=self._base + self._kernels[key],
                rows=1,
                columns=count,
                stride=count,
            )
            self._draft.add(load, writes={"uop": room})
        room = self._resident[key]
        return room.start, room.stop

    def all(self) -> np.ndarray:
        """Every kernel, as they lie in DRAM."""
        return np.concatenate(self._content)


def _instructions(
    loops: tuple[Step, ...], most: int, interval: int
) -> Iterator[tuple[Arranged, np.ndarray]]:
    """Instructions for a nest of loops, each with where its indices begin.

    Where accumulators are too few to wait for one another, each step of the sums has its own.
    """
    way = arranged(loops, most, interval)
    if way is not None:
        yield way, np.zeros(3, np.int64)
        return
    sums = [step for step in loops if step.sums]
    alone = arranged(tuple(step for step in loops if not step.sums), most, interval)
    if alone is None:
        raise BuildError(f"a tile takes more than the {most} micro-operations that have room")
    for place in itertools.product(*(range(step.length) for step in sums)):
        moved = [n * np.array(step.moves) for n, step in zip(place, sums, strict=True)]
        yield alone, np.sum([np.zeros(3, np.int64), *moved], axis=0)


def _moves(steps: Sequence[int]) -> tuple[int, int, int]:
    dst, src, wgt = steps
    return dst, src, wgt


def _factors(way: Arranged) -> dict[str, Any]:
    """Loops of an instruction, and what they add to indices."""
    columns = zip(("dst", "src", "wgt"), way.outer.moves, way.inner.moves, strict=True)
    moves = {name: (outer, inner) for name, outer, inner in columns}
    return {"outer": way.outer.length, "inner": way.inner.length, **moves}


def _check(plan: StreamPlan) -> None:
    """Refuse what is no GEMM of VTA."""
    op = plan.mapping.operator
    if op.prologues:
        raise BuildError(f"VTA loads sources as they are: nothing computes {op.prologues[0]} there")
    if op.store is not None:
        raise BuildError(f"VTA stores whole fragments of the output, not {op.store}")
    unit = plan.mapping.intrinsic
    names = tuple(op.buffer for op in plan.tiles.operands)
    (m, n, k), text = unit.shape, str(unit.compute)
    if names != _BUFFERS or text != "Dst[i1, i2] += Src1[i1, r1] * Src2[i2, r1]":
        raise BuildError(
            f"{unit.name}: expected Dst[i1, i2] += Src1[i1, r1] * Src2[i2, r1] in buffers "
            f"{', '.join(_BUFFERS)}, got {text} in {', '.join(names)}"
        )
    if unit.staged_dtypes != ("int8", "int8", "int32"):
        raise BuildError(f"{unit.name}: VTA multiplies s8 by s8 to s32")
    assert (m, n, k) == (*plan.destination.fragment, plan.sources[0].fragment[1])


def _buffers(plan: StreamPlan, kind: str) -> Iterator[Buffer]:
    """VTA's memories; results leave as ``kind``."""
    inp, wgt, acc = plan.tiles.operands
    yield Buffer("inp", inp.depth, inp.fragment, "int8", "load")
    yield Buffer("wgt", wgt.depth, wgt.fragment, "int8", "load")
    yield Buffer("acc", acc.depth, acc.fragment, "int32", "compute")
    yield Buffer("out", acc.depth, acc.fragment, kind, of="acc")
    yield Buffer("uop", plan.unit.micro_ops, (3,), "int32", "compute", bits=_UOP_BITS)


def _stored(op: StreamOperand) -> str:
    """Name of the buffer whose fragments an operand consists of in DRAM."""
    return "out" if op.buffer == "acc" else op.buffer


def _rows(op: StreamOperand) -> int:
    return prod(dim.extent for dim in op.dims)


def _bases(plan: StreamPlan, buffers: MappingType[str, Buffer]) -> dict[str, int]:
    """First fragment of each operand in DRAM, one after the other; micro-operations last."""
    at, bases = 0, {}
    for op in plan.tiles.operands:
        size = buffers[_stored(op)].bytes
        bases[op.name] = at // size
        at += -(-_rows(op) * size // _PAGE) * _PAGE
    bases["uop"] = at // buffers["uop"].bytes
    return bases
