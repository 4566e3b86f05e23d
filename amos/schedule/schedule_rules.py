"""Schedule rules: which primitives the template of a mapping on a machine has.

``S1``–``S3`` are Heron's (Table 6; GTA's R1 and R2 are the same as S2 and S3), the
others are the optimizations of AMOS's Table 3a.
"""

from __future__ import annotations

import itertools
from math import prod

from amos.ir import dtype
from amos.plan.nest import Loop
from amos.plan.staging_vectors import vector_copy
from amos.schedule.gpu_rules import Bind, Pipeline, StorageAlignment, side_bytes
from amos.schedule.template import Primitive, ScheduleRule, TilingContext

__all__ = ["SCHEDULE_RULES"]

#: Longest order that is enumerated as one variable; more loops keep their order
#: beyond it, since a permutation of more has no practical effect on locality.
_MAX_PERMUTED = 5
#: Register tiles that one block of a loop may hold.
_BLOCKS = (1, 2, 4, 8, 16)
#: Warps of a thread block along one loop.
_WARPS = (1, 2, 4, 8)
_UNROLLED = (1, 2, 4)
#: Bytes that one vectorized step of a copy moves; the first is the default.
_VECTORS, _THREAD_VECTORS = (64, 32, 16), (16, 8, 4)
#: Parts of a reduction that run at the same time, on a CPU and on a GPU.
#: Their sums are added up, on a GPU atomically: half precision is too coarse for that.
_ADDED = ("float32", "float64", "int32")
_SPLITS, _GRID_SPLITS = (1, 2, 4, 8, 16), (1, 2, 4, 8)
#: Calls that a core must have of a part at least, or starting it costs more than they do.
_PART_CALLS = 256


class Tensorize:
    """S1: the lanes become the intrinsic. A mapping is always tensorizable."""

    name = "S1"

    def condition(self, context: TilingContext) -> bool:
        """Always."""
        return bool(context.mapping.intrinsic.iterations)

    def apply(self, context: TilingContext) -> list[Primitive]:
        """One primitive for each intrinsic iteration, with what is fused into it."""
        groups = context.nest.groups.values()
        return [Primitive("tensorize", g.target, self.name, parts=g.members) for g in groups]


class MultiLevel:
    """S2: operands with reuse pass through registers and the memory outside them."""

    name = "S2"

    def condition(self, context: TilingContext) -> bool:
        """Registers always are a level; there is reuse if a loop can be tiled."""
        return bool(context.spatial)

    def apply(self, context: TilingContext) -> list[Primitive]:
        """Registers; then the scratchpad that the intrinsic names, or the innermost cache."""
        operands = (*context.sources, context.destination)
        made = [Primitive("cache_write", context.destination.name, self.name, scope="registers")]
        made += [
            Primitive("cache_read", op.name, self.name, scope="registers") for op in context.sources
        ]
        scopes = context.scratchpads
        if not scopes and context.machine is not None:
            inner = context.machine.levels[0]
            scopes = {op.name: inner.name for op in operands if inner.capacity}
        made += [
            Primitive("cache_read", op.name, self.name, scope=scopes[op.name])
            for op in operands
            if op.name in scopes
        ]
        return made


class MultiScope:
    """S3: operands that each have a buffer of their own, as the inputs and weights of VTA."""

    name = "S3"

    def condition(self, context: TilingContext) -> bool:
        """The description of the intrinsic gives such a buffer a capacity."""
        return bool(context.spatial and context.buffers)

    def apply(self, context: TilingContext) -> list[Primitive]:
        """A cache in its own scope for each of them."""
        operands = (*context.sources, context.destination)
        return [
            Primitive(
                "cache_write" if op is context.destination else "cache_read",
                op.name,
                self.name,
                scope=context.buffers[op.name][0],
            )
            for op in operands
            if op.name in context.buffers
        ]


class MultiLevelTiling:
    """Splits each spatial loop into an outer part, a block and a register tile."""

    name = "tile"

    def condition(self, context: TilingContext) -> bool:
        """There is a spatial loop."""
        return bool(context.spatial)

    def apply(self, context: TilingContext) -> list[Primitive]:
        """Tile sizes are bounded by the registers, blocks by powers of two."""
        divisors = context.tiling == "divisors"
        made = []
        for loop in context.spatial:
            sizes = _tiles(loop.extent, context.registers, divisors=divisors)
            made.append(Primitive("split", loop.name, self.name, "registers", values=sizes))
            blocks = tuple(
                b
                for b in (_WARPS if context.warps else _BLOCKS)
                if b == 1 or (b < loop.extent and not (divisors and loop.extent % b))
            )
            made.append(Primitive("split", loop.name, self.name, "block", values=blocks))
        return made


class LoopOrder:
    """Orders the spatial loops and the reductions, and says which run in parallel."""

    name = "order"

    def condition(self, context: TilingContext) -> bool:
        """There is a loop."""
        return bool(context.spatial or context.reduce)

    def apply(self, context: TilingContext) -> list[Primitive]:
        """Reorder, fuse the outermost, bind them to cores, unroll the innermost."""
        made = []
        spatial = tuple(loop.name for loop in context.spatial)
        reduce = tuple(loop.name for loop in context.reduce)
        if spatial:
            orders = _permutations(context.spatial)
            made.append(Primitive("reorder", "order", self.name, parts=spatial, values=orders))
            # A grid has no end that matters, so that all outer loops are part of it.
            first = len(spatial) if context.warps else 1
            counts = tuple(range(first, len(spatial) + 1))
            made.append(Primitive("parallel", "parallel", self.name, parts=spatial, values=counts))
        if reduce:
            orders = _permutations(context.reduce)
            made.append(Primitive("reorder", "reduce", self.name, parts=reduce, values=orders))
            made.append(Primitive("unroll", "unroll", self.name, parts=reduce, values=_UNROLLED))
        return made


class SplitReduction:
    """Parts of a reduction side by side, each into an accumulator of its own.

    A GPU has the choice unless an epilogue follows, which needs whole sums. A CPU has it
    where the smallest tiles make fewer steps than there are cores, and a part is long
    enough to be worth a start.
    """

    name = "split"

    def condition(self, context: TilingContext) -> bool:
        """There is a reduction, and a loop to share out or too few of them."""
        return bool(context.reduce) and (bool(context.spatial) or self._parts(context) > 1)

    def apply(self, context: TilingContext) -> list[Primitive]:
        """No more parts than the longest reduction loop has steps."""
        longest = max(loop.extent for loop in context.reduce)
        splits = _GRID_SPLITS if context.warps else _SPLITS
        most = min(longest, self._parts(context))
        loops = tuple(loop.name for loop in context.reduce)
        values = tuple(n for n in splits if n <= most)
        return [Primitive("rfactor", "split", self.name, parts=loops, values=values)]

    def _parts(self, context: TilingContext) -> int:
        """The most parts, whatever the loops are; 1 where there is no choice."""
        machine, most = context.machine, max(_SPLITS)
        if context.mapping.intrinsic.dtypes[-1] not in _ADDED:
            return 1
        if context.warps:
            return 1 if context.mapping.operator.epilogue is not None else max(_GRID_SPLITS)
        if machine is not None:
            most = min(most, machine.cores) if machine.cached else 1
        if prod(loop.extent for loop in context.spatial) >= most:
            return 1
        calls = prod(loop.extent for loop in context.reduce)
        return max(1, min(most, calls // _PART_CALLS))


class ComputeLocation:
    """Where a gathered source is staged."""

    name = "stage"

    def condition(self, context: TilingContext) -> bool:
        """A source is copied inside the kernel."""
        return bool(context.gathered)

    def apply(self, context: TilingContext) -> list[Primitive]:
        """Ahead of the nest, or inside the outermost loops: a GPU gathers as it copies."""
        places = ("tile",) if context.warps else ("whole", "tile")
        return [
            Primitive("compute_at", op.name, self.name, values=places) for op in context.gathered
        ]


class Vectorize:
    """How wide the copies are."""

    name = "vector"

    def condition(self, context: TilingContext) -> bool:
        """Something is copied inside the kernel."""
        return bool(context.gathered) or (context.warps and bool(context.spatial))

    def apply(self, context: TilingContext) -> list[Primitive]:
        """What a thread moves at once must divide the rows it copies."""
        widths: tuple[int, ...] = _VECTORS
        if context.warps:
            rows = [side_bytes(context, op)[-1] for op in context.sources]
            least = [
                dtype(x).bits // 8 for x in context.mapping.intrinsic.dtypes[: len(context.sources)]
            ]
            widths = tuple(
                n for n in _THREAD_VECTORS if n >= max(least) and not any(r % n for r in rows)
            )
        return [Primitive("vectorize", "vector", self.name, values=widths)] if widths else []


class CopyVectors:
    """Gathered sources in whole vectors that are permuted, or element by element."""

    name = "copy"

    def condition(self, context: TilingContext) -> bool:
        """A CPU copies a source whose fragments are a few runs of its tensor."""
        found = (vector_copy(op) for op in context.gathered)
        return not context.warps and any(copy is not None for copy in found)

    def apply(self, context: TilingContext) -> list[Primitive]:
        """One parameter for all of them."""
        return [Primitive("vectorize", "copy", self.name, values=("elements", "vectors"))]


#: Applied in this order; a plug-in may add its own.
SCHEDULE_RULES: list[ScheduleRule] = [
    Tensorize(),
    MultiLevelTiling(),
    MultiScope(),
    MultiLevel(),
    LoopOrder(),
    SplitReduction(),
    ComputeLocation(),
    Vectorize(),
    CopyVectors(),
    Bind(),
    StorageAlignment(),
    Pipeline(),
]


def _tiles(extent: int, most: int, *, divisors: bool) -> tuple[int, ...]:
    """Register tiles of a loop.

    Without ``divisors``: for each number of steps the smallest tile that takes no
    more, since a larger one only pads more. Their number is bounded by the registers
    and by twice the root of the extent, whatever its factors are.
    """
    sizes = range(1, min(extent, most) + 1)
    if divisors:
        return tuple(size for size in sizes if extent % size == 0)
    return tuple(sorted({-(-extent // -(-extent // size)) for size in sizes}))


def _permutations(loops: tuple[Loop, ...]) -> tuple[str, ...]:
    names = [loop.name for loop in loops]
    head, tail = names[:_MAX_PERMUTED], names[_MAX_PERMUTED:]
    return tuple(" ".join([*order, *tail]) for order in itertools.permutations(head))
