"""Mapping → TensorIR for AMX: operands whose rows lie apart, and the second source in groups.

As :mod:`amos.codegen.tir.program`, but for two things. A source is read, and the output
written, in the tensor's own order wherever rows of 64 bytes can be told apart there.
And the second source lies as a tile holds it: elements that follow one another along
the reduction share a column of 32 bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from amos.codegen.tir.arrays import decoded
from amos.codegen.tir.epilogue import finished
from amos.codegen.tir.program import Argument, Program
from amos.errors import BuildError
from amos.intrinsics import Intrinsic, implementations
from amos.plan.padding import pad_operand
from amos.plan.strided import StridedOperand

__all__ = ["TileProgram", "tile_multiply"]


def tile_multiply(intrinsic: Intrinsic) -> str:
    """LLVM's name of the instruction that multiplies tiles.

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


@dataclass(frozen=True)
class TileProgram(Program):
    """The computation of a mapping onto tiles, before scheduling."""

    @property
    def crops(self) -> bool:
        """Whether a tile of accumulators becomes a part of the output in one copy."""
        changed = bool(self.plan.padded) or self.plan.mapping.operator.epilogue is not None
        strided = isinstance(self.plan.destination, StridedOperand)
        return strided and (changed or not self.plan.destination.in_place)

    @property
    def moves_output(self) -> bool:
        """Whether all accumulators are moved to the output after the last of them."""
        return not isinstance(self.plan.destination, StridedOperand)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Sources in the intrinsic's order, the epilogue's tensors, then the output."""
        *given, last = super().arguments
        if isinstance(self.plan.destination, StridedOperand):
            last = replace(last, shape=self.plan.destination.sizes)
        return (*given, last)

    def axes(self) -> list[tuple[str, ...]]:
        """Names of the loops that each dimension of the output stands for: tile, then lane."""
        found = []
        for dim in self.plan.destination.dims:
            names = sorted(dim.index.terms, key=lambda term: -term[1])
            found.append(tuple(name for name, _ in names))
        return found

    def _out(self, main: Any, tensors: MappingType[str, Any]) -> Any:
        from tvm import te

        op = self.plan.destination
        if not isinstance(op, StridedOperand):
            return super()._out(main, tensors)
        if not self.crops:
            return main
        groups = {group.lane: group for group in self.plan.nest.groups.values()}

        def body(*position: Any) -> Any:
            at: dict[str, Any] = {}
            for names, where in zip(self.axes(), position, strict=True):
                group = groups.get(names[-1])
                at |= group.decode(where) if group else {names[0]: where}
            return finished(self.plan.mapping.operator, main[position], at, tensors)

        return te.compute(op.sizes, body, name="unstage")

    def _main(self, staged: Sequence[Any]) -> Any:
        from tvm import sym, te, tirx

        loops = {loop.name: loop.extent for loop in self.plan.nest.loops}
        axes = {
            loop.name: te.reduce_axis((0, loop.extent), name=loop.name.replace(".", "_"))
            for loop in self.plan.nest.reduce
            if loop.extent > 1
        }
        groups = self.plan.nest.groups.values()
        lanes = {
            g.lane: te.reduce_axis((0, g.lanes), name=g.lane.replace(".", "_"))
            for g in groups
            if g.kind == "reduce"
        }
        width = {g.lane: g.lanes for g in groups}
        *kinds, kind = self.plan.mapping.intrinsic.dtypes
        simplify = sym.Analyzer().simplify

        def body(*position: Any) -> Any:
            at: dict[str, Any] = axes | lanes
            for names, where in zip(self.axes(), position, strict=True):
                if len(names) > 1:
                    size = width[names[1]]
                    at |= {names[0]: where // size, names[1]: where % size}
                else:
                    at[names[0]] = where
            inside = at | {n: tirx.min(at[n], loops[n] - 1) for n in self.plan.padded}
            product: Any = None
            for op, buffer, given in zip(self.plan.sources, staged, kinds, strict=True):
                values = defaultdict(int, inside if op.in_place else at)
                index = [simplify(tirx.convert(dim.at(values))) for dim in op.dims]
                value = decoded(buffer[tuple(index)], given, kind)
                product = value if product is None else product * value
            return te.sum(product, axis=[*axes.values(), *lanes.values()])

        return te.compute(
            pad_operand(self.plan.destination, self.plan.padded).shape, body, name="main"
        )
