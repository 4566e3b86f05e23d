"""A chain as one function: each core goes from tile to tile.

Each product of a tile is scheduled TensorIR of its own, for one core; assignments are vectors
between them (:mod:`amos.chains.loops`). What lies between statements stands in buffers of a core.
Steps and packing that do not depend on inner loops run when an outer one moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import prod
from typing import Any

from amos._toolchain import load_tvm
from amos.chains.boxes import Box, offset_box
from amos.chains.candidate import ChainCandidate, ProductSlot, external_shapes, shapes_of
from amos.chains.loops import LocalAssignment, assignment_of, sequence, write_assignments
from amos.chains.rolling import RollingRows
from amos.chains.row_copies import declare_flat, fill_rows, move_rows
from amos.chains.tiling import TiledStep
from amos.chains.transforms import write_transform
from amos.codegen.scheduling import schedule_candidate
from amos.codegen.tir.arrays import constant, container_dtype
from amos.codegen.tir.cpu import vectorize_tail
from amos.codegen.tir.lowering import compact_buffers
from amos.codegen.tir.program import Argument, Program, stage
from amos.codegen.tir.statements import serialize
from amos.ir import Operator
from amos.ir.chain import result_of
from amos.ir.transforms import Transform
from amos.machine.limits import CpuLimits
from amos.plan.staging import StagedOperand

#: Elements of a vector of a copy.
_COPIED = 16


@dataclass(frozen=True)
class TileProduct:
    """A product of a tile with its loops in order.

    Attributes:
        slot: which one.
        program: its arguments.
        function: its TensorIR.
    """

    slot: ProductSlot
    program: Program
    function: Any

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Buffers of the function by the names of the chain's tensors."""
        tensors = {own: tensor for tensor, own in self.slot.names.items()}
        names = [tensors[each.tensor] for each in self.program.arguments]
        return dict(zip(names, self.function.params, strict=True))

    @cached_property
    def packed(self) -> dict[str, Argument]:
        """The arguments that are packed, by the names of the chain's tensors."""
        pairs = zip(self.parameters, self.program.arguments, strict=True)
        return {name: argument for name, argument in pairs if argument.packed is not None}


def schedule_products(
    candidate: ChainCandidate, kinds: Mapping[str, str], limits: CpuLimits | None = None
) -> list[TileProduct]:
    """Schedule the products of a candidate.

    Args:
        kinds: ``"native"``, ``"c"`` or ``"generic"`` for each.
        limits: of the CPU that the code is for; by default of this one.

    Raises:
        BuildError: TVM refuses one.
        ScheduleError: a schedule is not one of its mapping's space.
    """
    products, limits = [], limits or CpuLimits.here()
    limits = limits if candidate.cooperative else limits.core
    for slot in candidate.slots:
        if slot.tensor not in candidate.products:
            continue  # no instruction computes it
        chosen = candidate.products[slot.tensor]
        program, module = schedule_candidate(chosen, kinds[slot.tensor], limits)
        ((_, function),) = module.functions.items()
        products.append(TileProduct(slot, program, function))
    return products


def write_chain(
    candidate: ChainCandidate, products: Sequence[TileProduct], cores: int
) -> tuple[tuple[Argument, ...], Any]:
    """Write the function of a chain.

    Args:
        cores: how many share the tiles.

    Returns:
        Its arguments, the chain's inputs in order and then its result, and the function.
    """
    load_tvm()
    writer = _Writer(candidate, products, cores)
    return writer.arguments, writer.function()


class _Writer:
    """Writes the function; one method for each of its parts."""

    def __init__(
        self, candidate: ChainCandidate, products: Sequence[TileProduct], cores: int
    ) -> None:
        from tvm import tirx

        self.tiling, self.cooperative = candidate.tiling, candidate.cooperative
        self.products = {each.slot.tensor: each for each in products}
        chain = self.tiling.chain
        self.shapes = external_shapes(self.tiling)
        total = self.tiling.count
        self.cores = 1 if self.cooperative else min(cores, total)
        self.core, self.step = tirx.Var("core", "int32"), tirx.Var("done", "int32")
        first, end = (each * total // self.cores for each in (self.core, self.core + 1))
        #: The number of a tile, and how many a core has.
        self.tile, self.own = first + self.step, end - first
        self.cut = tirx.Var("part", "int32")
        #: Constants that are packed ahead of calls.
        self.constants = {
            name: replace(argument, tensor=name)
            for each in self.products.values()
            for name, argument in each.packed.items()
            if name not in each.slot.packed
        }
        self.arguments = tuple(
            self.constants.get(x.name, Argument(x.name, str(x.dtype), x.shape or (1,)))
            for x in (*chain.inputs, chain.result)
        )
        self.whole = {x.tensor: _declare(x.tensor, x.dtype, x.shape) for x in self.arguments}
        self.memory = {
            x.name: _declare(x.name, str(x.dtype), self.tiling.size(x.name) or (1,), "_tile")
            for x in self.tiling.temporaries
        }
        #: What a tile sees of tensors in whole memory, as declared once for each tile.
        self.views = {
            x.tensor: _declare(x.tensor, x.dtype, self.shapes[x.tensor], "_view")
            for x in self.arguments
            if x.tensor in self.shapes and x.packed is None
        }
        self.packed = {
            (name, source): _like(each.parameters[source], f"{source}_packed")
            for name, each in self.products.items()
            for source in each.slot.packed
        }
        #: Memory of rows that roll, as vectors.
        self.flat = {name: declare_flat(self.memory[name]) for name in self.tiling.layout.rolling}
        #: The unit that a step is at, counted from the first that a tile lacks; by what it writes.
        self.units = {name: tirx.Var("unit", "int32") for name in self.tiling.layout.rolling}

    def function(self) -> Any:
        """Write the whole function."""
        from tvm import tirx

        memory, views = dict(self.memory), list[Any]()
        steps = [step for step in self.tiling.steps if step.rows is not None]
        # Temporaries that steps whose rows roll write, and read from an element on.
        names = dict.fromkeys(x for step in steps for x in step.boxes if x in self.memory)
        for name in names:
            # LLVM is told that memory and its views differ, so that all accesses are to views; but
            # TVM drops memory that is only viewed, so that an element behind all is stored to.
            own = self.memory[name]
            count, kind = prod(map(int, own.shape)), str(own.dtype)
            memory[name] = tirx.decl_buffer((count + 1,), kind, f"{own.name}_memory")
            views.append(tirx.BufferStore(memory[name], tirx.const(0, kind), [count]))
            views.append(_view(own, memory[name], [0]))
            if name in self.flat:
                views.append(_view(self.flat[name], memory[name], [0]))
        tile = sequence([*self._tile()])
        loop = tirx.For(self.step, 0, self.own, tirx.ForKind.SERIAL, tile)
        allocated = map(tirx.AllocBuffer, (*memory.values(), *self.packed.values()))
        body = sequence([*allocated, *views, loop])
        kind = tirx.ForKind.SERIAL if self.cooperative else tirx.ForKind.PARALLEL
        body = tirx.For(self.core, 0, self.cores, kind, body)
        function = tirx.PrimFunc([*self.whole.values()], body)
        # Only rows that roll are written by one view of memory and read by another.
        return function.with_attr({"s_tir": True, "tirx.noalias": not self.tiling.rolls})

    def _origins(self) -> dict[str, Any]:
        """Return the positions of shared loops by the number of a tile."""
        from tvm import tirx

        origins, outer = {}, self.tile
        for loop in reversed(self.tiling.loops):
            number = outer % loop.count
            outer = outer // loop.count
            at = number * loop.tile
            if loop.extent % loop.tile:
                at = tirx.min(at, loop.extent - loop.tile)
            origins[loop.name] = at
        if self.tiling.cut is not None:
            origins[self.tiling.cut.name] = self.cut * self.tiling.cut.tile
        for name, rows in self.tiling.layout.rolling.items():
            origins[rows.counter(name)] = self._count_skipped(rows) + self.units[name]
        return origins

    def _starts(self, box: Box) -> list[Any]:
        return [place.start.evaluate(self._origins()) for place in box] or [0]

    def _tile(self) -> Iterator[Any]:
        """Write what a core computes for a tile."""
        from tvm import tirx

        cut = self.tiling.cut
        moving = {
            name
            for name in self.views
            if cut and any(cut.name in place.start.names for place in self.tiling.boxes[name])
        }
        yield from self._declare_views(self.views.keys() - moving)
        if self.tiling.rolls:
            halos = [(name, rows) for name, rows in self.tiling.layout.rolling.items() if rows.halo]
            moves = [x for name, rows in halos for x in move_rows(self.flat[name], rows)]
            if moves:
                yield tirx.IfThenElse(tirx.Not(self._is_first()), sequence(moves), None)
        for phase in ("before", "body", "after"):
            steps = [step for step in self.tiling.steps if step.phase == phase]
            written = [*self._steps(steps)]
            if cut is not None and phase == "body":
                inner = sequence([*self._declare_views(moving), *written])
                yield tirx.For(self.cut, 0, cut.count, tirx.ForKind.SERIAL, inner)
            else:
                yield from written

    def _declare_views(self, names: Any) -> Iterator[Any]:
        for name in sorted(names):
            starts = self._starts(self.tiling.boxes[name])
            yield _view(self.views[name], self.whole[name], starts)

    def _steps(self, steps: Sequence[TiledStep]) -> Iterator[Any]:
        """Write steps in order; consecutive assignments of one depth share loops."""
        for (is_plain, depth), run in groupby(steps, lambda x: (self._is_plain(x), x.depth)):
            if is_plain:
                written = write_assignments([*map(self._local, run)], self._buffers)
                yield from self._guard([*written], depth)
                continue
            for tiled in run:
                if isinstance(tiled.step, Transform):
                    own = tiled.step, self._local(tiled), self.whole, self.memory
                    transform = write_transform(*own, parallel=self.cooperative)
                    yield from self._guard([transform], tiled.depth)
                elif tiled.rows is not None:
                    yield self._units(tiled)
                else:
                    yield from self._product(tiled, self._buffers)

    def _is_first(self) -> Any:
        """Return whether a tile has no rows of the previous one."""
        from tvm import tirx

        loop = self.tiling.loops[-1]
        number = self.tile % loop.count
        is_first = tirx.any(self.step.equal(0), number.equal(0))
        if loop.extent % loop.tile:
            is_first = tirx.any(is_first, number.equal(loop.count - 1))
        return is_first

    def _count_skipped(self, rows: RollingRows) -> Any:
        """Count the units of a tile that the previous one has computed."""
        from tvm import tirx

        return tirx.if_then_else(self._is_first(), 0, rows.halo // rows.unit)

    def _units(self, tiled: TiledStep) -> Any:
        """Write a step whose rows roll: the units that a tile lacks, one by one."""
        from tvm import tirx

        rows, name = tiled.rows, tiled.step.output.tensor.name
        assert rows is not None
        inputs, origins, buffers = self.whole.keys(), self._origins(), dict[str, Any]()
        shapes, views = shapes_of(self.tiling, tiled), list[Any]()
        for tensor, box in tiled.boxes.items():
            if tensor in self.constants:
                continue
            whole = self.whole[tensor] if tensor in inputs else self.memory[tensor]
            inner = box if tensor in inputs else offset_box(box, self.tiling.boxes[tensor])
            own = tirx.decl_buffer(shapes[tensor], str(whole.dtype), f"{whole.name}_unit")
            starts = [place.start.evaluate(origins) for place in inner] or [0]
            buffers[tensor] = own
            views.append(_view(own, whole, starts))
        if self._assigns(tiled):
            written = [*write_assignments([self._local(tiled)], buffers)]
        else:
            written = [*self._product(tiled, buffers)]
        body = sequence([*views, *written])
        if rows.padding is not None:
            first = tiled.boxes[name][rows.dimension].start.evaluate(origins)
            place = origins[rows.counter(name)] * rows.unit
            value = constant(rows.padding, str(result_of(tiled.step).dtype))
            fill = sequence([*fill_rows(self.flat[name], rows, place, value)])
            body = tirx.IfThenElse(tirx.all(first >= 0, first < rows.rows), body, fill)
        count = rows.count - self._count_skipped(rows)
        return tirx.For(self.units[name], 0, count, tirx.ForKind.SERIAL, body)

    def _local(self, tiled: TiledStep) -> LocalAssignment:
        local = self.tiling.localize(tiled, shapes_of(self.tiling, tiled))
        origins = self._origins()
        starts = {name: run.start.evaluate(origins) for name, run in tiled.ranges.items()}
        if isinstance(local, Operator):
            return LocalAssignment(assignment_of(local), starts, local.epilogue)
        return LocalAssignment(local, starts)

    def _assigns(self, tiled: TiledStep) -> bool:
        """Return whether a step is loops, not an instruction's product."""
        return tiled.step.output.tensor.name not in self.products

    def _is_plain(self, tiled: TiledStep) -> bool:
        """Return whether a step is loops over a whole tile."""
        return self._assigns(tiled) and not (tiled.rows or isinstance(tiled.step, Transform))

    @cached_property
    def _buffers(self) -> dict[str, Any]:
        return self.memory | self.views

    def _guard(self, body: Sequence[Any], depth: int) -> Iterator[Any]:
        """Guard statements: they run when an outer loop moves, or a core begins."""
        from tvm import tirx

        inner = prod(loop.count for loop in self.tiling.loops[depth:])
        if inner == 1:
            yield from body
            return
        due = tirx.any(self.step.equal(0), (self.tile % inner).equal(0))
        yield tirx.IfThenElse(due, sequence([*body]), None)

    def _product(self, tiled: TiledStep, buffers: Mapping[str, Any]) -> Iterator[Any]:
        """Write a product of a tile, behind the packing that tiles share."""
        name = tiled.step.output.tensor.name
        product = self.products[name]
        for source, depth in product.slot.packed.items():
            operand = product.packed[source].packed
            assert operand is not None
            function = pack_function(operand, buffers[source].shape)
            read, written = function.params
            views = _view(read, buffers[source]), _view(written, self.packed[name, source])
            yield from self._guard([*views, serialize(function.body)], depth)
        body = []
        for tensor, own in product.parameters.items():
            ahead = self.whole if tensor in self.constants else buffers
            body.append(_view(own, self.packed.get((name, tensor), ahead[tensor])))
        computed = compact_buffers(product.function).body
        body.append(computed if self.cooperative else serialize(computed))
        yield from self._guard(body, tiled.depth)


def _declare(tensor: str, kind: str, shape: Sequence[int], suffix: str = "") -> Any:
    from tvm import tirx

    return tirx.decl_buffer(tuple(shape), container_dtype(kind), tensor.replace(".", "_") + suffix)


def _like(buffer: Any, name: str) -> Any:
    from tvm import tirx

    return tirx.decl_buffer(tuple(buffer.shape), str(buffer.dtype), name.replace(".", "_"))


def _view(own: Any, whole: Any, start: Sequence[Any] | None = None) -> Any:
    """Declare a buffer to be another one, or that from an element on."""
    from tvm import tirx

    if start is None:
        # TVM drops memory that is only reached by the address of an element.
        return tirx.DeclBuffer(own, data=whole.data)
    return tirx.DeclBuffer(own, data=tirx.address_of(tirx.BufferLoad(whole, [*start])))


def pack_function(operand: StagedOperand, shape: Sequence[int]) -> Any:
    """Write a function that stages a source: of the tensor in memory, and its staged form.

    Args:
        operand: of a product.
        shape: of the tensor in memory, whose first elements in each dimension are the source.
    """
    from tvm import s_tir, te

    source = te.placeholder(shape, container_dtype(operand.tensor_kind), name="source")
    box = te.compute(operand.source_shape, lambda *at: source(*at), name="box")
    schedule = s_tir.Schedule(
        te.create_prim_func([source, stage(operand, {operand.load.tensor.name: box})])
    )
    schedule.compute_inline(schedule.get_sblock("box"))
    block = schedule.get_sblock(f"stage_{operand.name}")
    vectorize_tail(schedule, block, len(operand.shape), _COPIED)
    ((_, function),) = schedule.mod.functions.items()
    return function
