"""Scheduled TensorIR for AMX: accumulators stay in tile registers, which have numbers.

TVM cannot name a tile register, so a register tile is written out here: every
fragment of a step is given a register, loads and multiplications name them, and the
loops around, the copies and the order of everything stay the schedule's.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
from functools import cache
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.amx.program import TileProgram, tile_multiply
from amos.codegen.amx.row_copies import write_rows
from amos.codegen.tir.cpu import (
    copy_block,
    parallelize,
    split_step,
    stage_blocks,
    tile_loops,
    vectorize_tail,
)
from amos.codegen.tir.rewriting import rebuilt, with_body
from amos.errors import BuildError
from amos.intrinsics.amx import CONFIGURE, configuration
from amos.ir import dtype
from amos.plan.staging import StagedOperand

__all__ = ["ask_for_tiles", "schedule_tiles"]

#: Linux grants the registers of the tiles to a process that asks for them (the kernel's
#: Documentation/arch/x86/xstate.rst): ARCH_REQ_XCOMP_PERM of the state XFEATURE_XTILEDATA.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18
_Operand = tuple[StagedOperand, Any]

#: Tile registers of palette 1.
_TILES = 8
#: Rows of a full tile.
_ROWS = 16
#: Elements that one step of the copy to the output moves.
_LANES = 16


@cache
def ask_for_tiles() -> None:
    """Have the system save this process's tile registers, and those of its children.

    Raises:
        BuildError: it does not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        raise BuildError("AMX: the tile registers are asked for on Linux on x86-64 only")
    if libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA):
        why = os.strerror(ctypes.get_errno())
        raise BuildError(
            f"AMX: the system does not grant this process the tile registers: {why}; "
            "implementation 'generic' does without"
        )


def schedule_tiles(program: TileProgram) -> Any:
    """Do to a program what its plan says, and write its register tiles out as AMX instructions.

    Args:
        program: the unscheduled computation.

    Returns:
        A module that is ready to compile.
    """
    load_tvm()
    from tvm import s_tir

    plan = program.plan
    sch = s_tir.Schedule(program.prim_func())
    main = sch.get_sblock("main")
    loops = _named_loops(sch, main, program)
    steps = [loops[name] for name in plan.reduce]
    outer, blocks, inner = tile_loops(sch, plan, loops)
    lanes = [loops[g.lane] for g in plan.nest.groups.values()]
    single = [loops[x.name] for x in plan.nest.spatial if x.extent == 1 and x.name in loops]
    sch.reorder(*single, *outer, *blocks, *steps, *inner, *lanes)
    places, outer = parallelize(sch, plan, outer)
    if program.crops:
        _crop(sch, program, [*outer, *blocks])
    stage_blocks(sch, plan, places)
    split_step(sch, steps, plan.unrolled)
    if program.moves_output:
        copy_block(sch, sch.get_sblock("unstage"), 1, plan.copy_width)
    nest = [sch.get(loop) for loop in sch.get_loops(main)]
    names = [x.loop_var for x in nest[len(nest) - len(lanes) - len(inner) :]]
    first = sch.get(steps[0]).loop_var if steps else names[0]
    around = sch.get(next(iter(places.values()))).loop_var if places else first
    emitter = _Emitter(program, names[: len(inner)], names[len(inner) :], first, around)
    return write_rows(emitter.module(sch.mod), plan)


def _named_loops(sch: Any, block: Any, program: TileProgram) -> dict[str, Any]:
    """Loops of the main block by the nest's names; fused dimensions are split into lanes."""
    given = iter(sch.get_loops(block))
    width = {g.lane: g.lanes for g in program.plan.nest.groups.values()}
    found: dict[str, Any] = {}
    for names in program.axes():
        loop = next(given)
        if len(names) > 1:
            loop, found[names[1]] = sch.split(loop, [None, width[names[1]]])
        found[names[0]] = loop
    rest = [loop.name for loop in program.plan.nest.reduce if loop.extent > 1]
    rest += [g.lane for g in program.plan.nest.groups.values() if g.kind == "reduce"]
    return found | dict(zip(rest, given, strict=True))


def _crop(sch: Any, program: TileProgram, surrounding: list[Any]) -> None:
    """Turn the accumulators of a register tile into output where they have just been stored."""
    block = sch.get_sblock("unstage")
    if surrounding:
        sch.reverse_compute_at(block, surrounding[-1])
    destination = program.plan.destination
    if destination.dims[-1].extent == destination.load.tensor.shape[-1]:
        vectorize_tail(sch, block, 1, _LANES)


class _Emitter:
    """Replaces the scalar statement and the loops of its register tile by instructions.

    Args:
        program: what was scheduled.
        inner: variables of the loops of the register tile.
        lanes: variables of the loops over lanes.
        first: variable of the outermost loop inside which accumulators live.
        around: variable of the loop each step of which sets the tile registers up.
    """

    def __init__(
        self, program: TileProgram, inner: list[Any], lanes: list[Any], first: Any, around: Any
    ) -> None:
        from tvm import sym

        self.program, self.first, self.around = program, first, around
        self.inner, self.lanes = inner, lanes
        #: Rows of each tile register.
        self.rows = (_ROWS,) * _TILES
        self.simplify = sym.Analyzer().simplify
        kinds = program.plan.mapping.intrinsic.dtypes
        operands = (*program.plan.sources, program.plan.destination)
        self.bytes = {op.name: dtype(k).bits // 8 for op, k in zip(operands, kinds, strict=True)}

    def module(self, module: Any) -> Any:
        """The module with its only function rewritten."""
        import tvm

        (name,) = module.functions
        function = module[name]
        return tvm.IRModule({name: function.with_body(self._rewritten(function.body))})

    def _rewritten(self, stmt: Any) -> Any:
        from tvm import tirx

        if type(stmt).__name__ != "For":
            return rebuilt(stmt, self._rewritten)
        first = stmt.loop_var.same_as(self.first)
        body = self._tile(stmt) if first else with_body(stmt, self._rewritten(stmt.body))
        if not stmt.loop_var.same_as(self.around):
            return body
        if first:
            return tirx.SeqStmt([_begin(self.rows), body, _call("llvm.x86.tilerelease")])
        inside = tirx.SeqStmt([_begin(self.rows), body.body, _call("llvm.x86.tilerelease")])
        return with_body(stmt, inside)

    def _tile(self, stmt: Any) -> Any:
        """Zero the accumulators, run the reduction, store them."""
        from tvm import tirx

        steps, extents = [], []
        while type(stmt).__name__ == "For":
            if any(stmt.loop_var.same_as(x) for x in self.inner):
                extents.append(int(stmt.extent))
            elif not any(stmt.loop_var.same_as(x) for x in self.lanes):
                steps.append(stmt)
            stmt = stmt.body
        values = self._values(stmt)
        places = list(itertools.product(*map(range, extents)))
        sources, out = self._operands(stmt.block)
        zero = [_call("llvm.x86.tilezero", _number(n)) for n in range(len(places))]
        body = tirx.SeqStmt(self._step(sources, values, places))
        for loop in reversed(steps):
            body = with_body(loop, body)
        store = [
            self._move("llvm.x86.tilestored64", n, *out, self._at(values, place))
            for n, place in enumerate(places)
        ]
        return tirx.SeqStmt([*zero, body, *store])

    def _operands(self, block: Any) -> tuple[list[_Operand], _Operand]:
        """Each operand with its buffer: the sources in order, and the destination."""
        reads = {region.source.name: region.source for region in block.reads}
        sources = []
        for number, (op, argument) in enumerate(
            zip(self.program.plan.sources, self.program.arguments, strict=False)
        ):
            given = op.in_place or argument.packed is not None
            name = f"{argument.tensor}_{number}" if given else f"stage_{op.name}"
            sources.append((op, reads[name]))
        return sources, (self.program.plan.destination, block.writes[0].source)

    def _values(self, realize: Any) -> dict[str, Any]:
        """The position of each loop of the nest, its lanes at zero."""
        from tvm import tirx

        program, lanes = (
            self.program,
            {g.lane: g.lanes for g in self.program.plan.nest.groups.values()},
        )
        zero = dict.fromkeys(self.lanes, 0)
        given = (_with(value, zero) for value in realize.iter_values)
        found: dict[str, Any] = dict.fromkeys(lanes, 0)
        for names in program.axes():
            value = next(given)
            if len(names) > 1:
                value = self.simplify(tirx.floordiv(value, lanes[names[1]]))
            if names[0] not in lanes:
                found[names[0]] = value
        rest = [loop.name for loop in program.plan.nest.reduce if loop.extent > 1]
        return found | dict(zip(rest, given, strict=False))

    def _at(self, values: dict[str, Any], place: tuple[int, ...]) -> dict[str, Any]:
        """The same in one place of the register tile."""
        where = dict(zip(self.inner, place, strict=True))
        return {n: v if isinstance(v, int) else _with(v, where) for n, v in values.items()}

    def _step(
        self, sources: list[_Operand], values: dict[str, Any], places: list[tuple[int, ...]]
    ) -> list[Any]:
        """Loads and multiplications of one step of the reduction.

        The fragments of one source stay in registers for the whole step; those of the
        other take turns in what registers are left.
        """
        keys = [[self._key(op, self._at(values, place)) for place in places] for op, _ in sources]
        counts = [len(set(each)) for each in keys]
        kept = counts.index(min(counts))
        turns = 1 - kept
        base = len(places) + counts[kept]
        if base >= _TILES:
            raise BuildError(
                f"{len(places)} accumulators and {counts[kept]} fragments leave none of "
                f"{_TILES} tile registers"
            )
        # Accumulators have the rows of the first source; the second is as deep as a tile.
        given = (self.program.plan.nest.groups[sources[0][0].fragment[0]].lanes, _ROWS)
        self.rows = (
            *[given[0]] * len(places),
            *[given[kept]] * counts[kept],
            *[given[turns]] * (_TILES - base),
        )
        multiply = tile_multiply(self.program.plan.mapping.intrinsic)
        registers: dict[Any, int] = {}
        made: list[Any] = []

        def load(which: int, n: int, number: int) -> None:
            at = self._at(values, places[n])
            made.append(self._move("llvm.x86.tileloadd64", number, *sources[which], at))

        for turn, key in enumerate(dict.fromkeys(keys[turns])):
            number = base + turn % (_TILES - base)
            using = [n for n, each in enumerate(keys[turns]) if each == key]
            load(turns, using[0], number)
            for n in using:
                if keys[kept][n] not in registers:
                    registers[keys[kept][n]] = len(places) + len(registers)
                    load(kept, n, registers[keys[kept][n]])
                pair = [0, 0]
                pair[turns], pair[kept] = number, registers[keys[kept][n]]
                made.append(_call(multiply, *map(_number, (n, *pair))))
        return made

    def _key(self, op: StagedOperand, values: dict[str, Any]) -> str:
        """What tells a fragment from others of its operand."""
        return str([str(begin) for begin, _, _ in self._region(op, values)])

    def _region(self, op: StagedOperand, values: dict[str, Any]) -> list[tuple[Any, int, int]]:
        """First position, length, and distance of rows, along each dimension of a buffer."""
        from tvm import tirx

        groups = {g.lane: g for g in self.program.plan.nest.groups.values()}
        row = self.program.plan.nest.groups[op.fragment[0]].lane
        if op.in_place and op is not self.program.plan.destination:
            loops = {loop.name: loop.extent for loop in self.program.plan.nest.loops}
            clamped = {n: tirx.min(values[n], loops[n] - 1) for n in self.program.plan.padded}
            values = values | clamped
        found = []
        for dim in op.dims:
            begin = self.simplify(tirx.convert(dim.at(_Zero(values))))
            reach = sum(c * (groups[n].lanes - 1) for n, c in dim.index.terms if n in groups)
            length = dim.modulo or reach // dim.divide + 1
            inside = dim.modulo and row in dim.index.names
            found.append((begin, length, 0 if inside else dim.index.coefficient(row)))
        return found

    def _move(
        self, instruction: str, number: int, op: StagedOperand, buffer: Any, values: dict[str, Any]
    ) -> Any:
        """Load or store of a tile register."""
        from tvm import s_tir, tirx

        region = self._region(op, values)
        strides = [tirx.Var(f"{op.name}_{n}", "int32") for n in range(len(region))]
        part = tirx.decl_buffer(
            [length for _, length, _ in region], buffer.dtype, f"tile_{number}", strides=strides,
            elem_offset=tirx.Var(f"{op.name}_at", "int32"), offset_factor=1,
        )  # fmt: skip
        ranges = [_range(begin, length) for begin, length, _ in region]
        whole = tirx.BufferRegion(buffer, ranges)
        rows = next(s * step for s, (_, _, step) in zip(strides, region, strict=True) if step)
        start = tirx.address_of(part[tuple([0] * len(region))])
        distance = (rows * self.bytes[op.name]).astype("int64")
        body = _call(instruction, _number(number), start, distance)
        loads = instruction.endswith("loadd64")
        block = s_tir.SBlock(
            [], [whole] if loads else [], [] if loads else [whole], "move", body,
            match_buffers=[s_tir.MatchBufferRegion(part, whole)],
        )  # fmt: skip
        return s_tir.SBlockRealize([], True, block)


class _Zero(dict[str, Any]):
    """Loops of a single step, which have no variable, stand at zero."""

    def __missing__(self, name: str) -> int:
        return 0


def _range(begin: Any, length: int) -> Any:
    import tvm

    return tvm.ir.Range.from_min_extent(begin, length)


def _with(value: Any, known: dict[Any, int]) -> Any:
    """An expression in which some variables are known."""
    from tvm import sym, tirx

    analyzer = sym.Analyzer()
    for variable, number in known.items():
        analyzer.bind(variable, tirx.const(number, "int32"))
    return analyzer.simplify(value)


def _number(number: int) -> Any:
    from tvm import tirx

    return tirx.const(number, "int8")


def _call(instruction: str, *arguments: Any) -> Any:
    from tvm import tirx

    return tirx.Evaluate(tirx.call_llvm_intrin("int32", instruction, *arguments))


def _begin(rows: tuple[int, ...]) -> Any:
    """Set the tile registers up."""
    from tvm import ir, tirx

    body = tirx.Evaluate(tirx.call_extern("int32", CONFIGURE))
    text = ir.StringImm(configuration(rows))
    return tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, body)
