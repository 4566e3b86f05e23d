"""Operands as kernels for CPUs read and write them, before schedules make them longer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from amos.ir import dtype
from amos.plan.memoizing import memoize
from amos.plan.operand import Dimension, jumps_pages
from amos.plan.packing import group_columns, pad_operand
from amos.plan.staging import StagedOperand, staged_destination, staged_sources
from amos.plan.staging_vectors import VectorCopy, vector_copy
from amos.plan.strided import StridedOperand, destination_form, source_forms
from amos.plan.structure import Structure


@dataclass(frozen=True, eq=False)
class SourceForm:
    """A source as kernels read it.

    Attributes:
        optional: whether a schedule may also read it in place instead of this copy.
        dims: of its layout in kernels, in terms of the structure's loops: the second source of a
            tile is stored in groups along the reduction.
        tiles: numbers of the spatial loops over tiles of its fragments.
    """

    staged: StagedOperand
    dims: tuple[Dimension, ...]
    tiles: tuple[int, ...]
    optional: bool = False

    @property
    def gathered(self) -> bool:
        """Whether the kernel copies it: it is neither read in place nor packed ahead."""
        return not (self.staged.in_place or self.staged.constant)

    @property
    def size_bits(self) -> int:
        """Bits of one element."""
        return dtype(self.staged.kind).bits

    @property
    def indexed(self) -> frozenset[int]:
        """Loops that move along some dimension."""
        return frozenset(loop for dim in self.dims for loop, _ in dim.terms)

    @memoize
    def vector_copy(self, extents: tuple[tuple[str, int], ...]) -> VectorCopy | None:
        """Return how fragments are copied in vectors; ``extents`` are of longer tile loops."""
        return vector_copy(pad_operand(self.staged, dict(extents)))


@dataclass(frozen=True, eq=False)
class CpuForms:
    """The operands of a mapping in a kernel: sources in the intrinsic's order, and accumulators."""

    sources: tuple[SourceForm, ...]
    destination: StagedOperand

    @property
    def stores_tiles(self) -> bool:
        """Whether results go to the output from registers, tile by tile."""
        return self.destination.redirected or self.destination.in_place

    @property
    def moves_output(self) -> bool:
        """Whether accumulators are gathered to the output after the last of them."""
        return not (self.stores_tiles or isinstance(self.destination, StridedOperand))

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the buffer that accumulators are stored to."""
        out = self.destination
        whole = not isinstance(out, StridedOperand) if out.redirected else out.in_place
        return out.shape if whole else out.source_shape


@memoize
def cpu_forms(structure: Structure, tiled: bool) -> CpuForms:
    """Choose the forms of a mapping's operands; ``tiled`` kernels use numbered tile registers."""
    nest = structure.nest
    number = {loop.name: n for n, loop in enumerate(structure.spatial)}
    sources = []
    for position, form in enumerate(source_forms(nest) if tiled else staged_sources(nest)):
        optional = jumps_pages(form)
        form = replace(form, copied=True) if optional else form
        tiles = (nest.groups[target].tile for target in form.fragment)
        sources.append(
            SourceForm(
                staged=form,
                dims=structure.dimensions(group_columns(form) if tiled and position == 1 else form),
                tiles=tuple(number[name] for name in tiles if name in number),
                optional=optional,
            )
        )
    destination = (destination_form if tiled else staged_destination)(nest)
    return CpuForms(tuple(sources), destination)
