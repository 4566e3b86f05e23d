"""Stores of results to other tensors than the accumulators', or to several of them.

Until this pass a kernel stores each accumulator at its own position of a buffer that represents the
results. Every such store is replaced by the stores of the finished results, where the operator puts
them. So a schedule is independent of their place, nothing is moved twice, and elements that the
operator does not reach are left alone.

Partial results of a reduction are stored separately for the lanes and the parallel steps that would
otherwise write the same element, and combined after the nest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from math import inf
from typing import Any

from amos._toolchain import s_tir, sym, tirx, tvm_ffi
from amos.codegen.tir.arrays import container_dtype, decode
from amos.codegen.tir.comparing import emit_extremum
from amos.codegen.tir.epilogue import apply_epilogue, finish
from amos.codegen.tir.program import Program
from amos.codegen.tir.statements import occurs
from amos.ir import Result, dtype
from amos.ir.store import Store


def redirect_results(function: Any, program: Program) -> Any:
    """Change a scheduled function to store results instead of accumulators."""
    return _Redirection(function, program).function() if program.redirects else function


@dataclass(frozen=True)
class _Sums:
    """The place of a reduction's elements in memory.

    Attributes:
        whole: the result itself, or the input of its last expression.
        buffer: the same, or one with further dimensions for loops whose steps would write the same
            element: parallel loops first, vectorized ones last.
        parallel: steps of the former.
        vector: steps of the latter.
    """

    whole: Any
    buffer: Any
    parallel: tuple[int, ...]
    vector: tuple[int, ...]

    def own(self, result: Any) -> list[Any]:
        """List the buffers that are not the result."""
        whole = [] if self.whole is result else [self.whole]
        return whole if self.buffer is self.whole else [*whole, self.buffer]

    def at(self, slots: Sequence[Any], where: Sequence[Any]) -> tuple[Any, ...]:
        """Locate an element by the loops' steps and its position in the result."""
        count = len(self.parallel)
        return (*slots[:count], *where, *slots[count:])


class _Redirection:
    """The change of one function."""

    def __init__(self, scheduled: Any, program: Program) -> None:
        self.scheduled, self.program = scheduled, program
        self.operator = program.plan.mapping.operator
        *self.sources, self.stand_in = scheduled.params
        names = [argument.tensor for argument in program.inputs]
        self.tensors = dict(zip(names, self.sources, strict=True))
        self.results = [
            tirx.decl_buffer(a.shape, container_dtype(a.dtype), f"{a.tensor}_{len(names) + n}")
            for n, a in enumerate(program.results)
        ]
        #: Sums of each reduction, by its number among the further results.
        self.sums: dict[int, _Sums] = {}
        self.loops: list[Any] = []  # enclosing the visited statement

    def function(self) -> Any:
        root = self.scheduled.body.block
        visits = [(tirx.For, self._loop), (s_tir.SBlockRealize, self._block)]
        nest = tvm_ffi.structural_mutate(root.body, visits)
        before = [self._clear(number, sums) for number, sums in self.sums.items()]
        after = [self._collect(number, sums) for number, sums in self.sums.items()]
        after = [each for each in after if each is not None]
        body = tirx.SeqStmt([*before, nest, *after]) if before else nest
        intermediates = [x for n, sums in self.sums.items() for x in sums.own(self.results[n + 1])]
        buffers = [*root.alloc_buffers, *intermediates]
        block = s_tir.SBlock(
            [], [], [], root.name_hint, body, None, buffers, annotations=root.annotations
        )
        params, old = [*self.sources, *self.results], self.scheduled
        realize = s_tir.SBlockRealize([], True, block)
        return tirx.PrimFunc(params, realize, old.ret_type, old.attrs)

    def _loop(self, loop: Any, mutator: Any) -> Any:
        self.loops.append(loop)
        changed = mutator.default_mutate(loop)
        self.loops.pop()
        return changed

    def _block(self, realize: Any, mutator: Any) -> Any:
        """Change a block that stores an accumulator to store the results."""
        block = realize.block
        store = block.body
        if type(store).__name__ != "BufferStore" or not store.buffer.same_as(self.stand_in):
            return mutator.default_mutate(realize)
        variables, values = list(block.iter_vars), list(realize.iter_values)
        at, guards = self._point(block)
        stores = [self._store(self.operator.stored, 0, self.operator, store.value, at)]
        for number, result in enumerate(self.operator.further):
            alone = self.operator.with_only(result)
            if not result.reduces:
                stores.append(self._store(result.store, number + 1, alone, store.value, at))
                continue
            loops = self._colliding_loops(realize, result)
            slots = [tirx.Var(f"v_{x.loop_var.name}", "int32") for x in loops]
            for loop, slot in zip(loops, slots, strict=True):
                variables.append(tirx.IterVar((0, loop.extent), slot, tirx.IterVar.DataPar))
                values.append(loop.loop_var)
            element = finish(alone, store.value, at, self.tensors)
            stores.append(self._accumulate(number, element, at, loops, slots))
        body = tirx.SeqStmt(stores) if len(stores) > 1 else stores[0]
        if guards:
            body = tirx.IfThenElse(tirx.all(*guards), body, None)
        buffers = [*self.sources, *self.results, *(sums.buffer for sums in self.sums.values())]
        buffers += self.scheduled.body.block.alloc_buffers
        bare = s_tir.SBlock(variables, [], [], block.name_hint, body)
        reads, writes = s_tir.analysis.get_sblock_read_write_region(
            bare, {buffer: buffer for buffer in buffers}
        )
        changed = s_tir.SBlock(variables, reads, writes, block.name_hint, body)
        return s_tir.SBlockRealize(values, realize.predicate, changed)

    def _point(self, block: Any) -> tuple[MappingType[str, Any], list[Any]]:
        """Return the iterations of a stored element, and the condition of its existence."""
        analyzer = sym.Analyzer()
        for variable in block.iter_vars:
            analyzer.bind(variable.var, variable.dom)
        point, guards = self.program.point(block.body.indices)
        simple = {name: analyzer.simplify(_expression(x)) for name, x in point.items()}
        return defaultdict(int, simple), guards

    def _store(
        self, store: Store, number: int, operator: Any, total: Any, at: MappingType[str, Any]
    ) -> Any:
        """Store one element of a result."""
        value = finish(operator, total, at, self.tensors)
        return tirx.BufferStore(self.results[number], value, _result_index(store, at))

    def _colliding_loops(self, realize: Any, result: Result) -> list[Any]:
        """List the loops around a block several steps of which write the same element."""
        indexing, parallel = result.store.names, tirx.ForKind.PARALLEL
        fused = self._tells_apart(self.program.plan.fused, indexing)
        loops = [] if fused else [x for x in self.loops if x.kind == parallel]
        for loop in (x for x in self.loops if x.kind == tirx.ForKind.VECTORIZED):
            dims = zip(self.program.dimensions, realize.iter_values, strict=True)
            moved = [names for names, value in dims if occurs(loop.loop_var, value)]
            if not all(self._tells_apart(names, indexing) for names in moved):
                loops.append(loop)
        return loops

    def _tells_apart(self, loops: Iterable[str], indexing: frozenset[str]) -> bool:
        """Return whether different steps of loops write different elements of a reduction."""
        groups = self.program.plan.nest.groups.values()
        members = {name: g.members for g in groups for name in (g.tile, g.lane)}
        return all({*members.get(name, (name,))} <= indexing for name in loops)

    def _accumulate(
        self, number: int, element: Any, at: Any, loops: list[Any], slots: list[Any]
    ) -> Any:
        """Combine an element with the others of a reduction."""
        result, target = self.operator.further[number], self.results[number + 1]
        if number not in self.sums:
            steps = [(x.kind == tirx.ForKind.PARALLEL, int(x.extent)) for x in loops]
            parallel = tuple(count for shared, count in steps if shared)
            vector = tuple(count for shared, count in steps if not shared)
            shape = [*parallel, *map(int, target.shape), *vector]
            wide = result.combination_dtype(str(self.operator.output.tensor.dtype))
            whole = target
            if result.last is not None:
                whole = tirx.decl_buffer(target.shape, wide, f"{target.name}_whole")
            buffer = tirx.decl_buffer(shape, wide, f"{target.name}_sums")
            self.sums[number] = _Sums(whole, buffer if loops else whole, parallel, vector)
        sums = self.sums[number]
        where = sums.at(slots, _result_index(result.store, at))
        kind, wide = str(self.operator.with_only(result).result_dtype), str(sums.buffer.dtype)
        combined = _combine(result, sums.buffer[where], decode(element, kind, wide), wide)
        return tirx.BufferStore(sums.buffer, combined, where)

    def _clear(self, number: int, sums: _Sums) -> Any:
        """Initialize sums to the neutral value, ahead of the nest."""
        result, kind = self.operator.further[number], str(sums.buffer.dtype)
        names, extents = self._stored_iterations(result)
        count = len(names)

        def body(variables: list[Any]) -> Any:
            at = dict(zip(names, variables, strict=False))
            where = sums.at(variables[count:], _result_index(result.store, defaultdict(int, at)))
            return tirx.BufferStore(sums.buffer, _neutral(result, kind), where)

        return _emit_loops([*extents, *sums.parallel, *sums.vector], body)

    def _collect(self, number: int, sums: _Sums) -> Any:
        """Combine partial results and finish them after the nest; ``None`` if there are none."""
        result, target = self.operator.further[number], self.results[number + 1]
        (names, extents), kind = self._stored_iterations(result), str(sums.whole.dtype)
        has_partials = sums.buffer is not sums.whole

        def body(variables: list[Any]) -> Any:
            at = defaultdict(int, zip(names, variables, strict=True))
            where = _result_index(result.store, at)

            def accumulate(slots: list[Any]) -> Any:
                element = sums.buffer[sums.at(slots, where)]
                combined = _combine(result, sums.whole[tuple(where)], element, kind)
                return tirx.BufferStore(sums.whole, combined, where)

            first = tirx.BufferStore(sums.whole, _neutral(result, kind), where)
            partials = [*sums.parallel, *sums.vector]
            steps = [first, _emit_loops(partials, accumulate)] if has_partials else []
            if result.last is not None:
                whole = sums.whole[tuple(where)]
                value = apply_epilogue(result.last, whole, kind, at, self.tensors)
                steps.append(tirx.BufferStore(target, value, where))
            return tirx.SeqStmt(steps) if len(steps) > 1 else steps[0]

        return _emit_loops(extents, body) if has_partials or result.last is not None else None

    def _stored_iterations(self, result: Result) -> tuple[list[str], list[int]]:
        """Return the names and the extents of the iterations that index a reduction."""
        iterations = [it for it in self.operator.spatial if it.name in result.store.names]
        return [it.name for it in iterations], [it.extent for it in iterations]


def _emit_loops(extents: Sequence[int], body: Callable[[list[Any]], Any]) -> Any:
    """Wrap the statement that ``body`` makes of loop variables in loops of these extents."""
    variables = [tirx.Var(f"result_{n}", "int32") for n in range(len(extents))]
    stmt = body(variables)
    for variable, extent in reversed(list(zip(variables, extents, strict=True))):
        stmt = tirx.For(variable, 0, extent, tirx.ForKind.SERIAL, stmt)
    return stmt


def _combine(result: Result, first: Any, second: Any, kind: str) -> Any:
    """Combine two elements of a reduction, in a dtype."""
    if result.combination != "+=":
        return emit_extremum(result.combination.rstrip("="), first, second)
    if kind != "int32":
        return first + second
    # TVM takes an int32 not to overflow.
    wide = first.astype("int64") + second.astype("int64")
    return tirx.reinterpret("int32", wide.astype("uint32"))


def _neutral(result: Result, kind: str) -> Any:
    low, high = dtype(kind).limits if dtype(kind).is_integer else (-inf, inf)
    return tirx.const({"+=": 0, "max=": low, "min=": high}[result.combination], kind)


def _result_index(store: Store, at: MappingType[str, Any]) -> list[Any]:
    """Return the index of a result's element, simplified."""
    simplify = sym.Analyzer().simplify
    return [simplify(_expression(index)) for index in store.at(at)]


def _expression(value: Any) -> Any:
    return tirx.const(value, "int32") if isinstance(value, int) else value
