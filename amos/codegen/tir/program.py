"""Mapping → TensorIR: stage the sources, multiply-add on fragments, write back.

The function has one block a step, named ``stage_Src1`` …, ``main`` and
``unstage``; a step that moves nothing is left out, and its buffer is the tensor
itself under another shape. Loops that a schedule's tiles do not divide are made
longer: what is staged holds zeros for the steps beyond, a tensor used in place is
read at its last step again, and ``unstage`` leaves their results out. Where the
reduction is split, ``main`` makes the sums of each part, and ``unstage`` adds them up.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from functools import cached_property, reduce
from math import prod
from operator import add
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.tir.arrays import decoded, held
from amos.codegen.tir.epilogue import finished
from amos.errors import BuildError
from amos.ir import Affine
from amos.plan.cpu_plan import CpuPlan
from amos.plan.padding import pad_operand
from amos.plan.split_reduction import PART
from amos.plan.staging import Guard, StagedOperand

__all__ = ["MAIN", "OWN", "Argument", "Program", "spatial_variable", "stage", "step_variable"]

#: The block of the calls, after tensorization.
MAIN = "main_update_o"
#: The loop over parts of a sum in the lanes of a call.
PARTIAL = "reduce.lane"
#: What an iteration of the operator must not be called: TE's spatial variables, and the
#: loops that no user has named, dots as underscores.
OWN = re.compile(r"i\d+|\w+_(?:tile|lane|part)")


#: A kernel counts the elements of a buffer in 32 bits.
_MOST_ELEMENTS = (1 << 31) - 1


@dataclass(frozen=True)
class Argument:
    """One argument of the compiled function.

    Attributes:
        tensor: name of the operator's tensor.
        dtype: canonical dtype.
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
    """The computation of a mapping before scheduling.

    Attributes:
        plan: what was decided about the kernel.
    """

    plan: CpuPlan

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The loops that move along the accumulators, one for each of their dimensions."""
        own = tuple(dim.index.names[0] for dim in self.plan.destination.dims)
        own = own if self.plan.partial == 1 else (*own, PARTIAL)
        return own if self.plan.split is None else (PART, *own)

    @property
    def lanes(self) -> tuple[str, ...]:
        """The loops inside a call, in the order of its iterations, parts before the rest."""
        lanes = [
            self.plan.nest.groups[it.name].lane for it in self.plan.mapping.intrinsic.iterations
        ]
        return (*lanes,) if self.plan.partial == 1 else (*lanes[:-1], PARTIAL, lanes[-1])

    @property
    def crops(self) -> bool:
        """Whether a tile of accumulators becomes a part of the output in one copy.

        It does where the destination is the output but for the steps that were
        added, and for the epilogue. Parts of a reduction are added up after all tiles.
        """
        changed = bool(self.plan.padded) or self.plan.mapping.operator.epilogue is not None
        return self.plan.destination.in_place and changed and self.plan.split is None

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Sources in the intrinsic's order, the epilogue's tensors, then the output."""
        made = []
        for op, kind in zip(self.plan.sources, self.plan.mapping.intrinsic.dtypes, strict=False):
            tensor = op.load.tensor
            if tensor.name in self.plan.mapping.operator.constants and not op.in_place:
                made.append(Argument(tensor.name, kind, op.shape, op))
            else:
                shape = op.shape if op.in_place else op.source_shape
                made.append(Argument(tensor.name, kind, shape))
        operator, out = self.plan.mapping.operator, self.plan.destination
        extra = operator.epilogue.loads if operator.epilogue is not None else ()
        for tensor in {load.tensor.name: load.tensor for load in extra}.values():
            made.append(Argument(tensor.name, str(tensor.dtype), tensor.shape))
        shape = out.shape if out.in_place else out.load.tensor.shape
        made.append(Argument(out.load.tensor.name, str(operator.result_dtype), shape))
        return tuple(made)

    def check_sizes(self) -> None:
        """Raise unless positions in every buffer are within 32 bits, as TVM counts them.

        Raises:
            BuildError: a buffer has too many elements.
        """
        staged = [
            (op.load.tensor.name, op.shape) for op in (*self.plan.sources, self.plan.destination)
        ]
        for name, shape in [(a.tensor, a.shape) for a in self.arguments] + staged:
            if prod(shape) > _MOST_ELEMENTS:
                raise BuildError(
                    f"tensor {name!r} has {prod(shape):,} elements in the kernel's form, at most "
                    f"{_MOST_ELEMENTS:,} can be counted"
                )

    def prim_func(self) -> Any:
        """The TensorIR function, unscheduled."""
        load_tvm()
        from tvm import te

        given = [
            te.placeholder(a.shape, held(a.dtype), name=f"{a.tensor}_{n}")
            for n, a in enumerate(self.arguments[:-1])
        ]
        staged = [
            buffer
            if tuple(int(s) for s in buffer.shape) == op.shape and not _moves(op, a)
            else stage(op, buffer)
            for op, buffer, a in zip(self.plan.sources, given, self.arguments, strict=False)
        ]
        main = self._folded(self._main(staged))
        extra = {
            a.tensor: buffer
            for a, buffer in list(zip(self.arguments, given, strict=False))[
                len(self.plan.sources) :
            ]
        }
        return te.create_prim_func([*given, self._out(main, extra)])

    def _folded(self, main: Any) -> Any:
        """The accumulators with what lanes hold of each added up."""
        from tvm import te

        if self.plan.partial == 1:
            return main
        lane = te.reduce_axis((0, self.plan.partial), name=_identifier(PARTIAL))
        shape = main.shape[:-1]
        return te.compute(shape, lambda *at: te.sum(main[(*at, lane)], axis=lane), name="fold")

    def _out(self, main: Any, tensors: MappingType[str, Any]) -> Any:
        """The output: the accumulators as they are, cropped, or moved; and finished."""
        from tvm import te

        op, operator = self.plan.destination, self.plan.mapping.operator

        def total(position: tuple[Any, ...]) -> Any:
            if self.plan.split is None:
                return main[position]
            return reduce(add, (main[(n, *position)] for n in range(self.plan.split.count)))

        if not op.in_place:
            return _unstage(op, total, lambda value, at: finished(operator, value, at, tensors))
        if not self.crops and self.plan.split is None:
            return main

        def body(*position: Any) -> Any:
            at = {d.index.names[0]: x for d, x in zip(op.dims, position, strict=True)}
            for group in op.nest.groups.values():
                if group.kind == "spatial":
                    lane = at[group.lane]
                    tile = at[group.tile] * group.lanes if group.tiles > 1 else 0
                    at |= group.decode(tile + lane)
            return finished(operator, total(position), at, tensors)

        return te.compute(op.shape, body, name="unstage")

    def _main(self, staged: Sequence[Any]) -> Any:
        from tvm import te, tirx

        loops = {loop.name: loop.extent for loop in self.plan.nest.loops}
        steps = {loop.name: loop.extent for loop in self.plan.nest.reduce if loop.extent > 1}
        parts = self.plan.split
        if parts is not None:
            steps[parts.loop] = parts.steps
        axes = {
            name: te.reduce_axis((0, extent), name=_identifier(name))
            for name, extent in steps.items()
        }
        lanes = {
            g.lane: te.reduce_axis((0, g.lanes // self.plan.partial), name=_identifier(g.lane))
            for g in self.plan.nest.groups.values()
            if g.kind == "reduce"
        }
        names = self.dimensions
        *kinds, kind = self.plan.mapping.intrinsic.dtypes
        accumulate = self.plan.mapping.operator.compute.accumulate

        def body(*position: Any) -> Any:
            at = dict(zip(names, position, strict=True)) | axes | lanes
            if parts is not None:
                at[parts.loop] = parts.at(at[PART], axes[parts.loop])
            if self.plan.partial > 1:
                ((summed, low),) = lanes.items()
                at[summed] = at[PARTIAL] * int(low.dom.extent) + low
            # Where tiles are cropped, none reads beyond the end: see :mod:`amos.codegen.tir.edges`.
            beyond = () if self.crops else self.plan.padded
            inside = at | {n: tirx.min(at[n], loops[n] - 1) for n in beyond}
            product: Any = None
            for op, buffer, given in zip(self.plan.sources, staged, kinds, strict=True):
                values = defaultdict(int, inside if op.in_place else at)
                index = [dim.at(values) for dim in op.dims]
                value = decoded(buffer[tuple(index)], given, kind)
                product = value if product is None else product * value
            if not accumulate:
                return product
            return te.sum(product, axis=[*axes.values(), *lanes.values()])

        shape = pad_operand(self.plan.destination, self.plan.padded).shape
        if self.plan.partial > 1:
            shape = (*shape, self.plan.partial)
        if parts is not None:
            shape = (parts.count, *shape)
        return te.compute(shape, body, name="main")


def _moves(op: StagedOperand, argument: Argument) -> bool:
    return not op.in_place and argument.packed is None


def _at(index: Affine, values: dict[str, Any]) -> Any:
    """Evaluate an index; loops of extent 1 have no variable and stand at zero."""
    return index.evaluate({name: values.get(name, 0) for name in index.names})


def stage(op: StagedOperand, tensor: Any) -> Any:
    """The staged form of a TE tensor."""
    from tvm import te, tirx

    def body(*position: Any) -> Any:
        indices, guards = op.locate(position)
        value = tensor[tuple(indices)]
        return _guarded(guards, value, tirx.const(0, tensor.dtype))

    return te.compute(op.shape, body, name=f"stage_{op.name}")


def _guarded(guards: Sequence[Guard], value: Any, otherwise: Any) -> Any:
    from tvm import tirx

    live = [c for at, bound in guards for c in (at >= 0, at < bound)]
    if not live:
        return value
    return tirx.if_then_else(tirx.all(*live) if len(live) > 1 else live[0], value, otherwise)


def _unstage(
    op: StagedOperand,
    total: Callable[[tuple[Any, ...]], Any],
    finish: Callable[[Any, MappingType[str, Any]], Any],
) -> Any:
    """The output tensor from the staged destination.

    Args:
        op: the staged destination.
        total: the sum at a position of it.
        finish: makes what is stored of an accumulator and its iterations.
    """
    from tvm import te, tirx

    groups = op.nest.groups
    extents = op.nest.mapping.operator.extents

    def body(*position: Any) -> Any:
        at: dict[str, Any] = {}
        guards: list[Any] = []
        for index, where in zip(op.load.indices, position, strict=True):
            values, live = invert(index, where, extents)
            at |= values
            guards += live
        for group in groups.values():
            if group.kind != "spatial":
                continue
            fused: Any = 0
            for name, radix in zip(group.members, group.radices, strict=True):
                fused = fused * radix + at[name]
            at[group.tile] = fused // group.lanes if group.tiles > 1 else 0
            at[group.lane] = fused % group.lanes if group.tiles > 1 else fused
        value = finish(total(tuple(_at(dim.index, at) for dim in op.dims)), at)
        if not guards:
            return value
        zero = tirx.const(0, held(str(op.nest.mapping.operator.result_dtype)))
        return tirx.if_then_else(tirx.all(*guards) if len(guards) > 1 else guards[0], value, zero)

    return te.compute(op.load.tensor.shape, body, name="unstage")


def invert(index: Affine, where: Any, extents: dict[str, int]) -> tuple[dict[str, Any], list[Any]]:
    """Iterations that write an output element, and when it is written at all.

    Args:
        index: an index of the output: no coefficient is negative, and iterations of more
            than one step are digits of a mixed radix (checked by the operator).
        where: the element's coordinate.
        extents: extents of the iterations.
    """
    together = len(index.terms) > 1
    values: dict[str, Any] = {n: 0 for n in index.names if together and extents[n] == 1}
    guards: list[Any] = []
    moving = (term for term in index.terms if term[0] not in values)
    terms = sorted(moving, key=lambda term: -term[1])
    rest = where - index.constant if index.constant else where
    if index.constant:
        guards.append(rest >= 0)
    for number, (name, c) in enumerate(terms):
        values[name] = rest // c if c > 1 else rest
        reach = sum(k * (extents[n] - 1) for n, k in terms[number + 1 :])
        if c > 1:
            rest = rest % c
            if number + 1 == len(terms) or reach < c - 1:
                guards.append(rest <= reach)
        guards.append(values[name] < extents[name])
    if not terms:
        guards.append(where <= index.constant)
    return values, guards


def spatial_variable(dimension: int) -> str:
    """The variable of the block ``MAIN`` for a dimension of the accumulators."""
    return f"v_i{dimension}_o"


def step_variable(loop: str) -> str:
    """The variable of the block ``MAIN`` for a reduction loop."""
    return f"v_{_identifier(loop)}_o"


def _identifier(name: str) -> str:
    return name.replace(".", "_")
