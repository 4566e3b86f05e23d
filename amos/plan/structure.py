"""The facts about a mapping that the model needs, as plain numbers.

Extracted once for a mapping and used for every schedule of it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from amos.ir import Affine, dtype
from amos.mapping.mapping import Mapping
from amos.plan.nest import Loop, Nest
from amos.plan.operand import (
    Dimension,
    Operand,
    classify_copy,
    count_scalar_instructions,
    is_guarded,
    jumps_pages,
)
from amos.plan.staging import StagedOperand
from amos.plan.staging_vectors import vector_copy
from amos.plan.strided import destination_form, source_forms

T = TypeVar("T")
#: Values of an index that are counted; of more, as many at equal distances.
_LOOKED_AT = 1 << 16


@dataclass(frozen=True)
class Border:
    """An index of a source that leaves its tensor in some steps, which then change no result.

    It reads the neutral value of the reduction there: zero for sums of products.

    Attributes:
        index: over loops without lanes.
        size: of the tensor along it.
        spatial: spatial loops in it, by number.
        reduce: reduction loops in it, by number.
        live: share of their steps in which the index is inside of the tensor.
    """

    index: Affine
    size: int
    spatial: tuple[int, ...]
    reduce: tuple[int, ...]
    live: float


@dataclass(frozen=True)
class LoopBatch:
    """Schedules of one mapping as arrays, one row a schedule.

    Loops are numbered as in :class:`Structure`: spatial first, then reductions.

    Attributes:
        tile: int, rows × spatial loops: steps held in registers.
        order: int, rows × spatial loops: loop at each position, outermost first.
        reduce: int, rows × reductions: loop at each position, outermost first.
        parallel: int, rows: number of outermost positions that are divided among the cores.
        unroll: int, rows: unrolled steps of the innermost reduction.
        ahead: bool, rows × operands with a choice: staged before the nest.
        block: int, rows × spatial loops: consecutive register tiles inside the outer loops; all 1
            if it is left out.
        copied: bool, rows × operands with a choice: copied where they could be read in place;
            none if left out. Of CPUs.
        copy_width: int, rows: elements that one step of a copy moves at most; 64 if
            left out. Of CPUs.
        vectors: bool, rows: sources are copied in whole vectors where they can be; none
            if left out. Of CPUs.
        split: int, rows: parts of the reduction; all 1 if left out.

    A target with columns of its own has a subclass.
    """

    #: Columns of truth values; the others are integers.
    flags: ClassVar[frozenset[str]] = frozenset({"ahead", "copied", "vectors"})

    tile: np.ndarray
    order: np.ndarray
    reduce: np.ndarray
    parallel: np.ndarray
    unroll: np.ndarray
    ahead: np.ndarray
    block: np.ndarray | None = None
    copied: np.ndarray | None = None
    copy_width: np.ndarray | None = None
    vectors: np.ndarray | None = None
    split: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("block", "split"):
            value = getattr(self, name)
            if value is not None and (value == 1).all():
                object.__setattr__(self, name, None)

    @property
    def span(self) -> np.ndarray:
        """Steps of each spatial loop inside the outer loops: rows × spatial loops."""
        return self.tile if self.block is None else self.tile * self.block

    def __len__(self) -> int:
        return len(self.parallel)

    def fragments(self, operand: Operand) -> np.ndarray:
        """Count an operand's distinct fragments in one register tile, per reduction step: rows."""
        loops = [loop for loop in operand.indexed if loop < self.tile.shape[1]]
        return np.asarray(self.tile.T[loops].prod(axis=0))

    def live_fragments(self, structure: Structure) -> np.ndarray:
        """Count the fragments that one step of the reduction holds in registers: rows.

        Those of the source that changes least stay; those of another take turns.
        """
        sources = [self.fragments(op) for op in structure.sources]
        least = np.min(sources, axis=0) if sources else 0
        return np.asarray(self.fragments(structure.destination) + least + (len(sources) > 1))

    @classmethod
    def of(cls, batch: LoopBatch) -> Self:
        """Copy a batch with the columns of this class; it may lack some."""
        names = {field.name for field in fields(cls)} & {field.name for field in fields(batch)}
        return cls(**{name: getattr(batch, name) for name in names})

    def rows(self, which: slice) -> Self:
        """Select some of the rows."""
        columns: dict[str, Any] = {
            field.name: None if (column := getattr(self, field.name)) is None else column[which]
            for field in fields(self)
        }
        return type(self)(**columns)


@dataclass(frozen=True)
class Structure:
    """The loops and operands of a mapping."""

    mapping: Mapping

    @cached_property
    def nest(self) -> Nest:
        """The mapping's nest."""
        return Nest(self.mapping)

    @cached_property
    def spatial(self) -> tuple[Loop, ...]:
        """Spatial loops with more than one step."""
        return tuple(loop for loop in self.nest.spatial if loop.extent > 1)

    @cached_property
    def reduce(self) -> tuple[Loop, ...]:
        """Reduction loops with more than one step."""
        return tuple(loop for loop in self.nest.reduce if loop.extent > 1)

    @cached_property
    def extents(self) -> np.ndarray:
        """Extent of each loop, spatial ones first."""
        return np.array([x.extent for x in (*self.spatial, *self.reduce)], dtype=np.int64)

    @cached_property
    def sources(self) -> tuple[Operand, ...]:
        """Sources, in the intrinsic's order."""
        return tuple(self._operand(op) for op in source_forms(self.nest))

    @cached_property
    def destination(self) -> Operand:
        """The destination."""
        return self._operand(destination_form(self.nest))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Sources, then the destination."""
        return (*self.sources, self.destination)

    def derive(self, derive: Callable[[Nest], T]) -> T:
        """Derive facts of a target from the nest, once."""
        if derive not in self._derived:
            self._derived[derive] = derive(self.nest)
        derived: T = self._derived[derive]
        return derived

    @cached_property
    def _derived(self) -> dict[Callable[[Nest], Any], Any]:
        return {}

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """Names of the sources that may be staged ahead or tile by tile."""
        return tuple(op.name for op in self.sources if op.choice)

    @cached_property
    def borders(self) -> tuple[Border, ...]:
        """Indices that leave their tensor in steps that change no result, and that loops move."""
        operator, kind = self.mapping.operator, self.mapping.intrinsic.dtypes[-1]
        compute = operator.compute
        if not compute.accumulates or not compute.fills_lanes(kind, arbitrary_source=True):
            return ()
        number = {x.name: n for n, x in enumerate((*self.spatial, *self.reduce))}
        moving = number.keys() | {x.name for x in self.nest.spatial}
        borders: dict[Any, Border] = {}
        for op in source_forms(self.nest):
            if not op.load.padded or op.load.padding != compute.neutral(kind):
                continue
            for index, size in zip(op.load.indices, op.load.tensor.shape, strict=True):
                low, high = index.bounds(operator.extents)
                # An index that no loop moves is the same in every step.
                if (low >= 0 and high < size) or not set(index.names) <= moving:
                    continue
                loops = sorted(number[name] for name in index.names if name in number)
                borders[index, size] = Border(
                    index=index,
                    size=size,
                    spatial=tuple(n for n in loops if n < len(self.spatial)),
                    reduce=tuple(n for n in loops if n >= len(self.spatial)),
                    live=share_inside(index, operator.extents, size),
                )
        return tuple(borders.values())

    def dimensions(self, staged: StagedOperand) -> tuple[Dimension, ...]:
        """List the dimensions of a form of one of the mapping's operands."""
        number = {x.name: n for n, x in enumerate((*self.spatial, *self.reduce))}
        lanes = {g.lane: g.lanes for g in self.nest.groups.values()}
        return tuple(
            Dimension(
                tuple((number[n], abs(c)) for n, c in dim.index.terms if n in number),
                sum(abs(c) * (lanes[n] - 1) for n, c in dim.index.terms if n in lanes),
                prod(lanes[n] for n, _ in dim.index.terms if n in lanes),
                dim.extent,
            )
            for dim in staged.dims
        )

    def _operand(self, staged: StagedOperand) -> Operand:
        size = dtype(staged.kind).bits / 8
        written = staged.name == self.mapping.intrinsic.destination.tensor.name
        optional = not written and jumps_pages(staged)
        staged = replace(staged, copied=True) if optional else staged
        moved = not (staged.in_place or staged.constant or staged.redirected)
        # Accumulators that are stored to the output directly become results on the way.
        result = self.mapping.operator.result.dtype if written and not moved else None
        copy, divisions = classify_copy(staged)
        vectors = vector_copy(staged) if moved and not written else None
        groups = [self.nest.groups[target] for target in staged.fragment]
        return Operand(
            name=staged.name,
            size=dtype(result or staged.kind).bits / 8,
            dims=self.dimensions(staged),
            fragment=size * prod(group.lanes for group in groups),
            copies=self._copies(staged),
            leading=len(staged.dims) - len(groups),
            copied=staged.elements if moved else 0,
            origin=staged.load.tensor.elements,
            wider=staged.wider,
            copy=copy,
            divisions=divisions,
            live=prod(g.size / (g.tiles * g.lanes) for g in groups if g.lanes > 1),
            guarded=is_guarded(staged),
            padded=staged.padded,
            choice=moved and not written,
            optional=optional,
            packed=staged.constant,
            written=written,
            vectors=vectors.instructions if vectors is not None else 0.0,
            scalar_instructions=count_scalar_instructions(staged) if written and not moved else 0,
        )

    def _copies(self, staged: StagedOperand) -> int:
        """Count the lanes along which the hardware replicates a fragment by itself."""
        return prod(
            self.nest.groups[target].lanes
            for statement in self.mapping.intrinsic.memory
            if statement.operand == staged.name
            for target in statement.broadcast
        )


def share_inside(index: Affine, extents: MappingType[str, int], size: int) -> float:
    """Return the share of its loops' points at which an index is in ``range(size)``, 0 to 1.

    The longest loop is counted, not walked.

    >>> share_inside(Affine.of({"p": 1, "r": 1}, -1), {"p": 4, "r": 3}, 4)
    0.8333333333333334
    """
    *shorter, longest = sorted(index.terms, key=lambda term: extents[term[0]]) or [("", 0)]
    at = np.array([index.constant], dtype=np.int64)
    for name, step in shorter:
        most = max(2, _LOOKED_AT // at.size)
        places = np.arange(extents[name]) if extents[name] <= most else np.linspace(
            0, extents[name] - 1, most).astype(np.int64)  # fmt: skip
        at = (at[:, None] + step * places).ravel()
    name, step = longest
    if not step:
        return float(np.mean((at >= 0) & (at < size)))
    if step < 0:  # the same points from the other end
        at, step = at + step * (extents[name] - 1), -step
    first, last = (np.clip(-(-(edge - at) // step), 0, extents[name]) for edge in (0, size))
    return float((last - first).sum(dtype=float) / (at.size * extents[name]))
