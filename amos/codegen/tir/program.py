"""Mapping → TensorIR: stage the sources, multiply-add on fragments, write back.

The function has one block for each step, named ``stage_Src1`` …, ``main`` and ``unstage``; a step
that moves nothing is left out, and its buffer is the tensor itself under another shape. Loops that
a schedule's tiles do not divide are padded: staged operands hold zeros in the added steps, a tensor
used in place is read at its last step again, and ``unstage`` drops their results. Where the
reduction is split, ``main`` computes the sums of each part, and ``unstage`` adds them up. The same
holds for the other functions of :mod:`amos.ir.combining` and their neutral values.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

from amos._toolchain import sym, te, tirx
from amos.codegen.tir.arrays import constant, container_dtype, convert, decode
from amos.codegen.tir.combining import join, reduce_axes
from amos.codegen.tir.epilogue import compute_element, finish
from amos.codegen.tir.gathering import gather, select_value
from amos.errors import BuildError
from amos.plan.cpu_plan import CpuPlan
from amos.plan.packing import pad_operand
from amos.plan.split_reduction import PART
from amos.plan.staging import Guard, StagedOperand
from amos.plan.strided import StridedOperand

#: The block that takes results from accumulators, of a register tile or of all of them.
STORED = "unstage"
#: The loop over parts of a sum in the lanes of a call.
PARTIAL = "reduce.lane"
#: Names that an iteration of the operator must not have: TE's spatial variables, and the
#: loops that no user has named, dots as underscores.
OWN = re.compile(r"i\d+|\w+_(?:tile|lane|part)")


#: A kernel counts the elements of a buffer in 32 bits.
MOST_ELEMENTS = (1 << 31) - 1


@dataclass(frozen=True)
class Argument:
    """One argument of the compiled function.

    Attributes:
        shape: shape that the function takes.
        packed: the staged form to prepare ahead of the call, or ``None`` if the
            tensor itself, reshaped to ``shape``, is passed.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    packed: StagedOperand | None = None


@dataclass(frozen=True)
class Program:
    """The computation of a mapping before scheduling."""

    plan: CpuPlan

    @property
    def dimensions(self) -> tuple[tuple[str, ...], ...]:
        """The loops along each dimension of the output, a tile before its lane."""
        dims = [sorted(dim.index.terms, key=_step) for dim in self.plan.destination.dims]
        return tuple(tuple(name for name, _ in terms) for terms in dims)

    @property
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """The loops along each dimension of the accumulators, including parts of a sum."""
        parts = [] if self.plan.split is None else [(PART,)]
        return (*parts, *self.dimensions, *([] if self.plan.partial == 1 else [(PARTIAL,)]))

    @property
    def lanes(self) -> tuple[str, ...]:
        """The loops inside a call, in the order of its iterations, parts before the rest."""
        groups = self.plan.nest.groups
        lanes = [groups[it.name].lane for it in self.plan.mapping.intrinsic.ordered.iterations]
        return (*lanes,) if self.plan.partial == 1 else (*lanes[:-1], PARTIAL, lanes[-1])

    @property
    def main(self) -> str:
        """Name of the block of the calls, after tensorization."""
        return "main_update_o" if self.plan.mapping.operator.compute.accumulates else "main_o"

    @property
    def crops(self) -> bool:
        """Whether a tile of accumulators becomes a part of the output in one copy.

        It does where the destination is the output except for padding and the epilogue. Parts of a
        reduction are added up after all tiles.
        """
        out = self.plan.destination
        if self.redirects:
            return self.plan.split is None
        changed = bool(self.plan.padded) or self.plan.mapping.operator.epilogue is not None
        if isinstance(out, StridedOperand):
            return changed or not out.in_place
        return out.in_place and changed and self.plan.split is None

    @property
    def moves(self) -> bool:
        """Whether accumulators are gathered to the output after the last of them."""
        return self.plan.counts.forms.moves_output

    @property
    def redirects(self) -> bool:
        """Whether accumulators are stored by :mod:`amos.codegen.tir.redirecting` in the end.

        Until then each becomes an element of ``unstage``, at its own position.
        """
        return self.plan.mapping.operator.redirected

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Sources in the intrinsic's order, what others are computed of, then the results.

        The tensors of prologues come before those of epilogues.
        """
        operator, out = self.plan.mapping.operator, self.plan.destination
        arguments = []
        extra = [load.tensor for load in operator.epilogue_loads]
        for op in reversed(self.plan.sources):
            extra[:0] = op.prologue.tensors if op.computed and op.prologue else ()
        for op in self.plan.sources:
            if op.computed:
                continue
            packed = op if op.constant else None
            shape = op.shape if packed or op.in_place else op.source_shape
            kind = op.kind if packed else op.tensor_kind
            arguments.append(Argument(op.load.tensor.name, kind, shape, packed))
        for tensor in dict.fromkeys(extra):
            arguments.append(Argument(tensor.name, str(tensor.dtype), tensor.shape))
        shape = out.shape if out.in_place else out.source_shape
        if self.redirects:
            shape = operator.result.shape
        arguments.append(Argument(operator.result.name, str(operator.result_dtype), shape))
        further = (Argument(x.name, str(x.dtype), x.shape) for x in operator.results[1:])
        return (*arguments, *further)

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """The arguments that are read."""
        return self.arguments[: -len(self.results)]

    @property
    def results(self) -> tuple[Argument, ...]:
        """The arguments that are written."""
        return self.arguments[-len(self.plan.mapping.operator.results) :]

    def check_sizes(self) -> None:
        """Raise BuildError unless positions in every buffer are within 32 bits, as TVM counts."""
        staged = (*self.plan.sources, self.plan.destination)
        shapes = [(a.tensor, a.shape) for a in self.arguments]
        for name, shape in shapes + [(op.load.tensor.name, op.shape) for op in staged]:
            if prod(shape) > MOST_ELEMENTS:
                raise BuildError(
                    f"tensor {name!r} has {prod(shape):,} elements in the kernel's form, at most "
                    f"{MOST_ELEMENTS:,} can be counted"
                )

    def prim_func(self) -> Any:
        """Build the TensorIR function, unscheduled."""
        buffers = [
            te.placeholder(a.shape, container_dtype(a.dtype), name=f"{a.tensor}_{n}")
            for n, a in enumerate(self.inputs)
        ]
        first = sum(not op.computed for op in self.plan.sources)
        extra = {a.tensor: t for a, t in zip(self.inputs[first:], buffers[first:], strict=True)}
        inputs, staged = iter(zip(self.arguments, buffers, strict=False)), []
        for op in self.plan.sources:
            if op.computed:
                staged.append(stage(op, extra))
                continue
            argument, buffer = next(inputs)
            there = op.in_place or argument.packed is not None
            staged.append(buffer if there else stage(op, {argument.tensor: buffer}))
        main = self._fold(self._main(staged))
        return te.create_prim_func([*buffers, self._unstage(main, extra)])

    def _main(self, staged: Sequence[Any]) -> Any:
        """Write the accumulators: multiply-adds of staged sources, or the products alone."""
        nest, parts, compute = self.plan.nest, self.plan.split, self.plan.mapping.operator.compute
        loops = {loop.name: loop.extent for loop in nest.loops}
        width = {group.lane: group.lanes for group in nest.groups.values()}
        steps = {loop.name: loop.extent for loop in nest.reduce if loop.extent > 1}
        if parts is not None:
            steps[parts.loop] = parts.steps
        summed = [group.lane for group in nest.groups.values() if group.kind == "reduce"]
        steps |= {lane: width[lane] // self.plan.partial for lane in summed}
        axes = {name: te.reduce_axis((0, n), name=_identifier(name)) for name, n in steps.items()}
        kind = self.plan.mapping.intrinsic.dtypes[-1]
        simplify = sym.Analyzer().simplify if self.plan.tiled else None
        # Where tiles are cropped, none reads beyond the end: see :mod:`amos.codegen.tir.edges`.
        beyond = () if self.crops and not self.plan.tiled else self.plan.padded

        def body(*position: Any) -> Any:
            at: dict[str, Any] = dict(axes)
            for names, where in zip(self.axes, position, strict=True):
                if len(names) > 1:
                    size = width[names[1]]
                    at |= {names[0]: where // size, names[1]: where % size}
                else:
                    at[names[0]] = where
            if parts is not None:
                at[parts.loop] = parts.at(at[PART], axes[parts.loop])
            if self.plan.partial > 1:
                (lane,) = summed
                at[lane] = at[PARTIAL] * steps[lane] + axes[lane]
            clipped = at | {n: tirx.min(at[n], loops[n] - 1) for n in beyond}
            factors = []
            for op, buffer in zip(self.plan.sources, staged, strict=True):
                values = defaultdict(int, clipped if op.in_place else at)
                index = [dim.at(values) for dim in op.dims]
                if simplify is not None:
                    # A dimension is divided into tiles and lanes, and merged again.
                    index = [simplify(tirx.convert(each)) for each in index]
                factors.append(decode(buffer[tuple(index)], op.kind, kind))
            value, over = join(compute.join, factors), list(axes.values())
            return reduce_axes(compute.combiner, value, over) if compute.accumulates else value

        shape = pad_operand(self.plan.destination, self.plan.padded).shape
        if self.plan.partial > 1:
            shape = (*shape, self.plan.partial)
        if parts is not None:
            shape = (parts.count, *shape)
        return te.compute(shape, body, name="main")

    def _fold(self, main: Any) -> Any:
        """Add up the partial sums of lanes."""
        if self.plan.partial == 1:
            return main
        lane = te.reduce_axis((0, self.plan.partial), name=_identifier(PARTIAL))
        shape = main.shape[:-1]
        combiner = self.plan.mapping.operator.compute.combiner
        return te.compute(
            shape, lambda *at: reduce_axes(combiner, main[(*at, lane)], [lane]), name="fold"
        )

    def _unstage(self, main: Any, tensors: MappingType[str, Any]) -> Any:
        """Write the output: the accumulators themselves, or cropped or moved and finished."""
        operator, split = self.plan.mapping.operator, self.plan.split
        if not (self.moves or self.crops or split):
            return main

        def total(where: Sequence[Any]) -> Any:
            """Sum the parts at a position of the accumulators."""
            parts = [()] if split is None else [(n,) for n in range(split.count)]
            return join(operator.compute.combiner or "+", [main[(*p, *where)] for p in parts])

        def finish_sum(where: Sequence[Any], at: MappingType[str, Any]) -> Any:
            """Return the value to store for the sum at a position of the accumulators."""
            return finish(operator, total(where), at, tensors)

        def crop(*position: Any) -> Any:
            return finish_sum(position, self.point(position)[0])

        if self.redirects:
            shape = self.plan.counts.forms.stored_shape
            return te.compute(shape, lambda *position: total(position), name=STORED)
        body = partial(gather, self.plan.destination, finish_sum) if self.moves else crop
        return te.compute(self.results[0].shape, body, name=STORED)

    def point(self, position: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
        """Return the iterations at a position of the accumulators, and conditions on them."""
        at = {names[-1]: x for names, x in zip(self.dimensions, position, strict=True)}
        strided = isinstance(self.plan.destination, StridedOperand)
        guards = []
        for group in self.plan.nest.groups.values():
            if group.kind == "spatial":
                tile = at[group.tile] * group.lanes if group.tile in at else 0
                fused = tile + at[group.lane]
                if group.is_padded and not strided:
                    guards.append(fused < group.size)
                at |= group.decode(fused)
        return at, guards


def _step(term: tuple[str, int]) -> int:
    return -term[1]


def stage(op: StagedOperand, tensors: MappingType[str, Any]) -> Any:
    """Stage a TE tensor, or a computed source, by name."""

    def element(indices: Sequence[Any]) -> Any:
        if op.prologue is None:
            return tensors[op.load.tensor.name][tuple(indices)]
        at = zip(op.prologue.dimensions, op.coordinates(indices), strict=True)
        return compute_element(op.prologue, dict(at), tensors)

    def body(*position: Any) -> Any:
        indices, guards = op.locate(position)
        value = convert(element(indices), op.tensor_kind, op.kind)
        if op.load.padding != op.empty:
            in_bounds = [c for guard in guards if guard.pads for c in _conditions_of(guard)]
            value = select_value(in_bounds, value, constant(op.load.padding, op.kind))
            guards = [guard for guard in guards if not guard.pads]
        filled = [c for guard in guards for c in _conditions_of(guard)]
        return select_value(filled, value, constant(op.empty, op.kind))

    return te.compute(op.shape, body, name=f"stage_{op.name}")


def _conditions_of(guard: Guard) -> tuple[Any, Any]:
    return guard.at >= 0, guard.at < guard.bound


def spatial_variable(dimension: int) -> str:
    """Return the calls' block variable for a dimension of the accumulators."""
    return f"v_i{dimension}_o"


def step_variable(loop: str) -> str:
    """Return the calls' block variable for a reduction loop."""
    return f"v_{_identifier(loop)}_o"


def _identifier(name: str) -> str:
    return name.replace(".", "_")
