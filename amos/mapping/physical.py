"""Compute and memory mapping of the software iterations (Figure 3 e to h)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from amos._display import Shown
from amos.validate.buffers import nest_addresses

if TYPE_CHECKING:
    from amos.ir import BufferLoad
    from amos.mapping.mapping import Mapping


@dataclass(frozen=True)
class Layout:
    """A staged operand: a flat buffer of fragments, each one contiguous.

    Outermost come the unmatched iterations that index the operand, in loop
    order; then the tiles along each dimension of the fragment; then the fragment
    itself, as the intrinsic's memory statement lays it out. Strides and sizes are in elements.

    Attributes:
        operand: the intrinsic's name for it (``"Src1"``).
        load: the operator's access that is staged.
        outer: (software iteration, extent, stride).
        tiles: (intrinsic iteration, number of tiles, stride), one per dimension.
        fragment: shape of a fragment.
        strides: strides within a fragment.
        step: elements from one fragment to the next, gaps for strides and alignment included.
    """

    operand: str
    load: BufferLoad
    outer: tuple[tuple[str, int, int], ...]
    tiles: tuple[tuple[str, int, int], ...]
    fragment: tuple[int, ...]
    strides: tuple[int, ...]
    step: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the outer iterations, then tiles, then the fragment."""
        return (*(e for _, e, _ in self.outer), *(c for _, c, _ in self.tiles), *self.fragment)

    @property
    def elements(self) -> int:
        """Size of the buffer."""
        return prod(self.shape[: len(self.outer) + len(self.tiles)]) * self.step

    @cached_property
    def places(self) -> np.ndarray:
        """Address of each element: int64 array of :attr:`shape`."""
        strides = [*(s for _, _, s in (*self.outer, *self.tiles)), *self.strides]
        return nest_addresses(zip(self.shape, strides, strict=True)).reshape(self.shape)

    @staticmethod
    def of(mapping: Mapping, m: int, sizes: dict[str, int]) -> Layout:
        """Lay out operand ``m`` when a call covers ``sizes`` of each fused index.

        Where these are not the intrinsic's own, its statement decides the order alone.
        """
        operand, load = mapping.intrinsic.operands[m], mapping.pairing.loads[m]
        extents, fused = mapping.operator.extents, mapping.fused_extents
        axes = [index.names[0] for index in operand.indices]
        outer = [n for n in mapping.outer if n in load.names]
        counts = [-(-fused[t] // sizes[t]) for t in axes]
        fragment = tuple(sizes[t] for t in axes)
        placement = mapping.intrinsic.placements[operand.tensor.name]
        placement = placement if fragment == placement.shape else placement.resize(fragment)
        lengths = [*(extents[n] for n in outer), *counts]
        strides = [prod(lengths[i + 1 :]) * placement.step for i in range(len(lengths))]
        k = len(outer)
        return Layout(
            operand.tensor.name,
            load,
            tuple((n, extents[n], s) for n, s in zip(outer, strides[:k], strict=True)),
            tuple(zip(axes, counts, strides[k:], strict=True)),
            fragment,
            placement.strides,
            placement.step,
        )


@dataclass(frozen=True)
class VirtualMapping(Shown):
    """A mapping onto one call engine that holds every fused index as a whole."""

    mapping: Mapping

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Range of each fused index that one call covers."""
        return self.mapping.fused_extents

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """Layout of each operand by the intrinsic's name for it, destination last."""
        return {
            operand.tensor.name: Layout.of(self.mapping, m, self.sizes)
            for m, operand in enumerate(self.mapping.intrinsic.operands)
        }

    @cached_property
    def compute(self) -> dict[str, Any]:
        """For each intrinsic iteration its value, a sympy expression of software ones."""
        return {t: self._fused_expression(t) for t in self.sizes}

    @cached_property
    def memory(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        """For each operand the base address (a sympy expression) and the strides.

        Element ``(x, y, …)`` of the fragment is at ``address + x*strides[0] + …``
        of the staged operand, in elements.
        """
        import sympy

        result = {}
        for name, layout in self.layouts.items():
            address = sum((sympy.Symbol(n) * s for n, _, s in layout.outer), sympy.Integer(0))
            for t, count, stride in layout.tiles:
                if count > 1:
                    address += sympy.floor(self._fused_expression(t) / self.sizes[t]) * stride
            result[name] = (address, layout.strides)
        return result

    def _fused_expression(self, step: str) -> Any:
        import sympy

        terms = self.mapping.fused[step].terms
        return sum((sympy.Symbol(n) * c for n, c in terms), sympy.Integer(0))

    def latex(self) -> str:
        """Write compute and memory mapping as one ``aligned`` environment."""
        import sympy

        lines = [rf"{sympy.latex(sympy.Symbol(t))} &\leftarrow {sympy.latex(e)}"
                 for t, e in self.compute.items()]  # fmt: skip
        for name, (address, strides) in self.memory.items():
            lines.append(
                rf"\mathrm{{{name}}} &: \mathit{{addr}} = {sympy.latex(address)},\ "
                rf"\mathit{{strides}} = ({', '.join(map(str, strides))})"
            )
        return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}"

    def __str__(self) -> str:
        lines = [f"{t} = {expression}" for t, expression in self.compute.items()]
        lines += [
            f"{name}: address {address}, strides ({', '.join(map(str, strides))})"
            for name, (address, strides) in self.memory.items()
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class PhysicalMapping(VirtualMapping):
    """A mapping onto calls of the intrinsic's own problem size."""

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Problem size: the extent of each intrinsic iteration."""
        return self.mapping.intrinsic.extents

    @cached_property
    def compute(self) -> dict[str, Any]:
        """For each intrinsic iteration its value, a sympy expression of software ones."""
        import sympy

        return {t: sympy.Mod(self._fused_expression(t), size) for t, size in self.sizes.items()}

    @cached_property
    def tiles(self) -> dict[str, int]:
        """Number of calls along each fused index."""
        return {t: -(-e // self.sizes[t]) for t, e in self.mapping.fused_extents.items()}

    @cached_property
    def padded(self) -> dict[str, int]:
        """Each fused extent, rounded up to a multiple of the problem size."""
        return {t: count * self.sizes[t] for t, count in self.tiles.items()}

    @cached_property
    def calls(self) -> int:
        """Number of intrinsic calls."""
        extents = self.mapping.operator.extents
        return prod(extents[n] for n in self.mapping.outer) * prod(self.tiles.values())

    @cached_property
    def utilization(self) -> float:
        """Share of the calls' scalar operations that the operator needs."""
        return self.mapping.operator.points / (self.calls * prod(self.sizes.values()))

    @cached_property
    def fragments(self) -> dict[str, int]:
        """Elements of one fragment of each operand."""
        return {name: prod(layout.fragment) for name, layout in self.layouts.items()}

    @cached_property
    def staging(self) -> dict[str, int]:
        """Elements of each staged operand, padding and replicas included."""
        return {name: layout.elements for name, layout in self.layouts.items()}
