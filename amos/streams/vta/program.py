"""A plan as a stream of VTA's instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from amos.errors import BuildError
from amos.ir import Operator
from amos.streams.codegen.instructions import Buffer, Stream
from amos.streams.codegen.rectangles import Tile
from amos.streams.codegen.tokens import Draft
from amos.streams.codegen.transfers import Load
from amos.streams.codegen.writer import Step, Writer, refuse_extras
from amos.streams.plan import MICRO_OPS, StreamPlan
from amos.streams.vta.epilogue import AluStep, alu_steps
from amos.streams.vta.instructions import Alu, Finish, Gemm
from amos.streams.vta.loops import Arranged, arrange_loops

#: Buffers of the intrinsic's operands, in its order.
_BUFFERS = ("inp", "wgt", "acc")
_UOP_BITS = 32


def check(op: Operator) -> None:
    """Raise BuildError for operations on operands, besides the product, that VTA cannot do."""
    refuse_extras(op, "VTA")
    alu_steps(op)


def program(plan: StreamPlan) -> Stream:
    """Write the stream of a plan.

    Raises:
        BuildError: the intrinsic is no GEMM of VTA, its ALU has no such epilogue, or the
            stream is too long.
    """
    return _Program(plan).stream()


class _Program(Writer):
    def __init__(self, plan: StreamPlan) -> None:
        _check(plan)
        self.steps, kind = alu_steps(plan.mapping.operator)
        super().__init__(plan, _buffers(plan, kind), leaving="out")
        self.interval = max(m.write_interval for m in plan.mapping.intrinsic.memory)
        self.uops = _MicroOps(
            self.draft, self.end // self.buffers["uop"].bytes, plan.unit.micro_ops
        )

    def emit_end(self) -> dict[str, np.ndarray]:
        """Emit the last instruction, which waits for all others."""
        self.draft.add([Finish()])
        last = len(self.draft.instructions) - 1
        for queue in ("load", "store"):
            self.draft.wait(last, self.draft.last_of(queue))
        return {MICRO_OPS: self.uops.all()}

    def multiply(
        self, loops: tuple[Step, ...], tiles: Sequence[Tile], bases: Sequence[int], first: bool
    ) -> None:
        """Emit GEMM instructions for a tile, after one for zeros."""
        if first:
            self._clear(tiles[0], bases[0] - tiles[0].first)
        touched, origin = self.rows_of_tiles(tiles, bases), np.array(bases)
        for arrangement, start in _instructions(loops, self.plan.unit.micro_ops, self.interval):
            begin, end = self.uops.place(arrangement.uops + (origin + start))
            gemm = Gemm(begin=begin, end=end, **_factors(arrangement))
            written = {"acc": touched["acc"]}
            self.draft.add([gemm], {**touched, "uop": slice(begin, end)}, written)

    def finish(self, result: Tile, slot: int) -> None:
        for step in self.steps:
            self._alu(step, result, slot)

    def _clear(self, result: Tile, slot: int) -> None:
        arrangement, begin, end = self._over(result, slot)
        gemm = Gemm(begin=begin, end=end, reset=True, **_factors(arrangement))
        written = {"acc": slice(slot, slot + result.fragments)}
        self.draft.add([gemm], {"uop": slice(begin, end)}, written)

    def _alu(self, step: AluStep, result: Tile, slot: int) -> None:
        """Emit one operation of the epilogue on the accumulators of a tile."""
        whole = slice(slot, slot + result.fragments)
        arrangement, begin, end = self._over(result, slot)
        factors = _factors(arrangement)
        factors["src"] = factors["dst"]
        del factors["wgt"]
        alu = Alu(begin=begin, end=end, **vars(step), **factors)
        self.draft.add([alu], {"uop": slice(begin, end), "acc": whole}, {"acc": whole})

    def _over(self, result: Tile, slot: int) -> tuple[Arranged, int, int]:
        """Return loops and micro-operations over all accumulators of a tile."""
        arrangement = arrange_loops((Step(result.fragments, (1, 0, 0)),), 1, 0)
        assert arrangement is not None
        return arrangement, *self.uops.place(arrangement.uops + np.array([slot, 0, 0]))


class _MicroOps:
    """The buffer of micro-operations: kernels are resident until they are overwritten."""

    def __init__(self, draft: Draft, base: int, depth: int) -> None:
        self._draft, self._base, self._depth = draft, base, depth
        self._kernels = dict[bytes, int]()
        self._content = list[np.ndarray]()
        self._resident = dict[bytes, slice]()
        self._length, self._free = 0, 0

    def place(self, uops: np.ndarray) -> tuple[int, int]:
        """Return the range of a kernel in the buffer; load it if it is not there."""
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
            self._draft.add([load], writes={"uop": room})
        room = self._resident[key]
        return room.start, room.stop

    def all(self) -> np.ndarray:
        return np.concatenate(self._content)


def _instructions(
    loops: tuple[Step, ...], most: int, interval: int
) -> Iterator[tuple[Arranged, np.ndarray]]:
    """Yield instructions for a nest of loops, each with the start of its indices.

    Where accumulators are too few for the write interval, each step of the sums has its own.
    """
    arrangement = arrange_loops(loops, most, interval)
    if arrangement is not None:
        yield arrangement, np.zeros(3, np.int64)
        return
    sums = [step for step in loops if step.sums]
    alone = arrange_loops(tuple(step for step in loops if not step.sums), most, interval)
    if alone is None:
        raise BuildError(f"a tile takes more than the {most} micro-operations that have room")
    starts = np.zeros((1, 3), np.int64)
    for step in sums:
        moved = np.arange(step.length)[:, None] * np.array(step.moves)
        starts = (starts[:, None] + moved).reshape(-1, 3)
    for start in starts:
        yield alone, start


def _factors(arrangement: Arranged) -> dict[str, Any]:
    """Return the loops of an instruction, and their increments of indices."""
    columns = zip(
        ("dst", "src", "wgt"), arrangement.outer.moves, arrangement.inner.moves, strict=True
    )
    moves = {name: (outer, inner) for name, outer, inner in columns}
    return {"outer": arrangement.outer.length, "inner": arrangement.inner.length, **moves}


def _check(plan: StreamPlan) -> None:
    """Refuse an intrinsic that is no GEMM of VTA."""
    check(plan.mapping.operator)
    unit = plan.mapping.intrinsic
    names = tuple(op.buffer for op in plan.tiles.operands)
    (m, n, k), text = unit.shape, str(unit.ordered.compute)
    if names != _BUFFERS or text != "Dst[i1, i2] += Src1[i1, r1] * Src2[i2, r1]":
        raise BuildError(
            f"{unit.name}: expected Dst[i1, i2] += Src1[i1, r1] * Src2[i2, r1] in buffers "
            f"{', '.join(_BUFFERS)}, got {text} in {', '.join(names)}"
        )
    if unit.staged_dtypes != ("int8", "int8", "int32"):
        raise BuildError(f"{unit.name}: VTA multiplies s8 by s8 to s32")
    assert (m, n, k) == (*plan.destination.fragment, plan.sources[0].fragment[1])


def _buffers(plan: StreamPlan, kind: str) -> Iterator[Buffer]:
    """Yield VTA's memories; results leave as ``kind``."""
    inp, wgt, acc = plan.tiles.operands
    yield Buffer("inp", inp.depth, inp.fragment, "int8", "load")
    yield Buffer("wgt", wgt.depth, wgt.fragment, "int8", "load")
    yield Buffer("acc", acc.depth, acc.fragment, "int32", "compute")
    yield Buffer("out", acc.depth, acc.fragment, kind, of="acc")
    yield Buffer("uop", plan.unit.micro_ops, (3,), "int32", "compute", bits=_UOP_BITS)
