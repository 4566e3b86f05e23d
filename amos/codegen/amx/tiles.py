"""Scheduled TensorIR for AMX: accumulators stay in tile registers, which have numbers.

TVM cannot name a tile register, so a register tile is written out here: every fragment of a step
gets a register, which loads and multiplications name. The schedule still decides the enclosing
loops, the copies and their order.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
from dataclasses import dataclass
from functools import cache
from typing import Any

from amos._toolchain import ir, s_tir, sym, tirx, tvm, tvm_ffi
from amos.codegen.amx.row_copies import write_rows
from amos.codegen.tir.cpu import TiledNest, copy_output, stage_blocks, tile_nest, vectorize_tail
from amos.codegen.tir.program import STORED, Program
from amos.codegen.tir.redirecting import redirect_results
from amos.codegen.tir.statements import copy_loop, wrap_in_loops
from amos.codegen.tir.tails import part_tails
from amos.errors import BuildError
from amos.intrinsics import Intrinsic, implementations
from amos.intrinsics.amx import CONFIGURE, configuration
from amos.ir import dtype
from amos.plan.cpu_plan import CpuPlan
from amos.plan.nest import Nest
from amos.plan.staging import StagedOperand

#: Linux grants the registers of the tiles to a process that asks for them (the kernel's
#: Documentation/arch/x86/xstate.rst): ARCH_REQ_XCOMP_PERM of the state XFEATURE_XTILEDATA.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18

#: Tile registers of palette 1.
TILES = 8
#: Rows of a full tile.
ROWS = 16
#: Elements that one step of the copy to the output moves.
_LANES = 16


@cache
def ask_for_tiles() -> None:
    """Ask the system for tile registers, of this process and its children, or raise BuildError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        raise BuildError("AMX: the tile registers are asked for on Linux on x86-64 only")
    if libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA):
        why = os.strerror(ctypes.get_errno())
        raise BuildError(
            f"AMX: the system does not grant this process the tile registers: {why}; "
            "implementation 'generic' does without"
        )


def tile_multiply(intrinsic: Intrinsic) -> str:
    """Return LLVM's name of the instruction that multiplies tiles.

    Raises:
        BuildError: the intrinsic's implementation does not say it.
    """
    source = implementations(intrinsic.name).get("llvm")
    if source is None or not source.instruction:
        raise BuildError(
            f"{intrinsic.name}: its llvm implementation has no instruction, "
            "such as 'llvm.x86.tdpbusd', that kernels on tile registers could call"
        )
    return source.instruction


def schedule_tiles(program: Program) -> Any:
    """Schedule a program by its plan, with its register tiles as AMX instructions."""
    plan = program.plan
    sch = s_tir.Schedule(program.prim_func())
    nest = tile_nest(sch, program)
    if program.crops:
        _crop(sch, program, nest.surrounding)
    stage_blocks(sch, plan, nest.places)
    if program.moves:
        copy_output(sch, plan.output_width)
    ((name, function),) = sch.mod.functions.items()
    emitter = _Emitter(sch, nest, plan)
    body = tvm_ffi.structural_mutate(function.body, (tvm.tirx.For, emitter.emit))
    function = redirect_results(function.with_body(write_rows(body, plan)), program)
    return tvm.IRModule({name: part_tails(function, program)})


def _crop(sch: Any, program: Program, surrounding: list[Any]) -> None:
    """Crop the accumulators of a register tile to the output right after the tile is stored."""
    block = sch.get_sblock(STORED)
    if surrounding:
        sch.reverse_compute_at(block, surrounding[-1])
    destination = program.plan.destination
    if destination.dims[-1].extent == destination.load.tensor.shape[-1]:
        vectorize_tail(sch, block, 1, _LANES)


class _Emitter:
    """Replaces the scalar statement and the loops of its register tile by instructions."""

    def __init__(self, sch: Any, nest: TiledNest, plan: CpuPlan) -> None:
        self.plan = plan
        inner = [sch.get(loop) for loop in nest.inner]
        #: Variables of the register tile's loops, and of those over lanes.
        self.inner = [loop.loop_var for loop in inner]
        self.lanes = [sch.get(loop).loop_var for loop in nest.lanes]
        self.places = list(itertools.product(*(range(int(loop.extent)) for loop in inner)))
        #: Of the outermost loop inside which accumulators live.
        self.first = sch.get([*nest.steps, *nest.inner, *nest.lanes][0]).loop_var
        #: Of the loop that configures the tile registers in each step.
        setup = next(iter(nest.places.values()), None)
        self.setup_loop = self.first if setup is None else sch.get(setup).loop_var
        #: Rows of each tile register.
        self.rows = (ROWS,) * TILES

    def emit(self, loop: Any, mutator: Any) -> Any:
        """Write out the register tile inside a loop."""
        first = loop.loop_var.same_as(self.first)
        emitted = self._tile(loop) if first else mutator.default_mutate(loop)
        if not loop.loop_var.same_as(self.setup_loop):
            return emitted
        body = emitted if first else emitted.body
        body = tirx.SeqStmt([_begin(self.rows), body, _call("llvm.x86.tilerelease")])
        return body if first else copy_loop(loop, body=body)

    def _tile(self, stmt: Any) -> Any:
        """Zero the accumulators, run the reduction, store them."""
        steps = []
        while type(stmt).__name__ == "For":
            if not any(stmt.loop_var.same_as(x) for x in (*self.inner, *self.lanes)):
                steps.append(stmt)
            stmt = stmt.body
        loads: list[Any] = []
        tvm_ffi.structural_walk(stmt.block.body, (ir.TensorLoad, loads.append), order="pre")
        out, *sources = (
            _Operand(op, load, self.plan.nest)
            for op, load in zip((self.plan.destination, *self.plan.sources), loads, strict=True)
        )
        at = [self._analyzer(stmt, place) for place in self.places]
        zero = [_call("llvm.x86.tilezero", _number(n)) for n in range(len(at))]
        body = wrap_in_loops(steps, tirx.SeqStmt(self._step(sources, at)))
        store = [out.move("llvm.x86.tilestored64", n, each) for n, each in enumerate(at)]
        return tirx.SeqStmt([*zero, body, *store])

    def _analyzer(self, realize: Any, place: tuple[int, ...]) -> Any:
        """Return an analyzer of a block's variables at a place of the tile, with lanes at zero."""
        analyzer = sym.Analyzer()
        for variable, n in zip(
            (*self.inner, *self.lanes), (*place, *[0] * len(self.lanes)), strict=True
        ):
            analyzer.bind(variable, tirx.const(n, "int32"))
        values = [analyzer.simplify(value) for value in realize.iter_values]
        for variable, value in zip(realize.block.iter_vars, values, strict=True):
            analyzer.bind(variable.var, value)
        return analyzer

    def _step(self, sources: list[_Operand], at: list[Any]) -> list[Any]:
        """List the loads and multiplications of one step of the reduction.

        The fragments of one source are resident for the whole step; those of the other take turns
        in the remaining registers.
        """
        keys = [[str(source.begin(each)) for each in at] for source in sources]
        counts = [len(set(each)) for each in keys]
        resident = self.plan.resident_source
        streamed = 1 - resident
        base = len(at) + counts[resident]
        if base >= TILES:
            raise BuildError(
                f"{len(at)} accumulators and {counts[resident]} fragments leave none of "
                f"{TILES} tile registers"
            )
        # Accumulators have the rows of the first source; the second is as deep as a tile.
        rows = (self.plan.nest.groups[sources[0].op.fragment[0]].lanes, ROWS)
        self.rows = (
            *[rows[0]] * len(at),
            *[rows[resident]] * counts[resident],
            *[rows[streamed]] * (TILES - base),
        )
        multiply = tile_multiply(self.plan.mapping.intrinsic)
        load = "llvm.x86.tileloadd64"
        registers: dict[str, int] = {}
        calls: list[Any] = []
        for turn, key in enumerate(dict.fromkeys(keys[streamed])):
            number = base + turn % (TILES - base)
            using = [n for n, each in enumerate(keys[streamed]) if each == key]
            calls.append(sources[streamed].move(load, number, at[using[0]]))
            for n in using:
                if keys[resident][n] not in registers:
                    registers[keys[resident][n]] = len(at) + len(registers)
                    register = registers[keys[resident][n]]
                    calls.append(sources[resident].move(load, register, at[n]))
                pair = [0, 0]
                pair[streamed], pair[resident] = number, registers[keys[resident][n]]
                calls.append(_call(multiply, *map(_number, (n, *pair))))
        return calls


@dataclass(frozen=True)
class _Operand:
    """Fragments of an operand in its buffer, and how the scalar statement loads them."""

    op: StagedOperand
    load: Any
    nest: Nest

    def begin(self, analyzer: Any) -> list[Any]:
        """Return the index at which a fragment begins in the buffer."""
        return [analyzer.simplify(index) for index in self.load.indices]

    def move(self, instruction: str, number: int, analyzer: Any) -> Any:
        op, buffer, begin = self.op, self.load.source, self.begin(analyzer)
        groups = {group.lane: group for group in self.nest.groups.values()}
        row = self.nest.groups[op.fragment[0]].lane
        lengths, distances = [], []
        for dim in op.dims:
            reach = sum(c * (groups[n].lanes - 1) for n, c in dim.index.terms if n in groups)
            lengths.append(dim.modulo or reach // dim.divide + 1)
            wraps = dim.modulo and row in dim.index.names
            distances.append(0 if wraps else dim.index.coefficient(row))
        strides = [tirx.Var(f"{op.name}_{n}", "int32") for n in range(len(begin))]
        tile = tirx.decl_buffer(
            lengths, buffer.dtype, f"tile_{number}", strides=strides,
            elem_offset=tirx.Var(f"{op.name}_at", "int32"), offset_factor=1,
        )  # fmt: skip
        ranges = [ir.Range.from_min_extent(*each) for each in zip(begin, lengths, strict=True)]
        whole = tirx.BufferRegion(buffer, ranges)
        rows = next(s * step for s, step in zip(strides, distances, strict=True) if step)
        size = dtype(str(buffer.dtype)).bits // 8
        start = tirx.address_of(tile[tuple([0] * len(begin))])
        body = _call(instruction, _number(number), start, (rows * size).astype("int64"))
        loads = instruction.endswith("loadd64")
        block = s_tir.SBlock(
            [], [whole] if loads else [], [] if loads else [whole], "move", body,
            match_buffers=[s_tir.MatchBufferRegion(tile, whole)],
        )  # fmt: skip
        return s_tir.SBlockRealize([], True, block)


def _number(number: int) -> Any:
    return tirx.const(number, "int8")


def _call(instruction: str, *arguments: Any) -> Any:
    return tirx.Evaluate(tirx.call_llvm_intrin("int32", instruction, *arguments))


def _begin(rows: tuple[int, ...]) -> Any:
    body = tirx.Evaluate(tirx.call_extern("int32", CONFIGURE))
    text = ir.StringImm(configuration(rows))
    return tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, body)
