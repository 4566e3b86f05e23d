"""Schedule rules: which primitives the template of a mapping on a machine has.

``S1``–``S3`` are Heron's (Table 6; GTA's R1 and R2 are the same as S2 and S3), the
others are the optimizations of AMOS's Table 3a.
"""

from __future__ import annotations

import itertools

from amos.mapping.nest import Loop
from amos.schedule.template import Primitive, ScheduleRule, Situation

__all__ = ["SCHEDULE_RULES", "scratchpad"]

#: Longest order that is enumerated as one variable; more loops keep their order
#: beyond it, since a permutation of more has no practical effect on locality.
_MAX_PERMUTED = 5
#: Register tiles that one block of a loop may hold.
_BLOCKS = (1, 2, 4, 8, 16)
_UNROLLED = (1, 2, 4)
#: Bytes that one vectorized step of a copy moves; the first is the default.
_VECTORS = (64, 32, 16)


class Tensorize:
    """S1: the lanes become the intrinsic. A mapping is always tensorizable."""

    name = "S1"

    def condition(self, situation: Situation) -> bool:
        """Always."""
        return bool(situation.mapping.intrinsic.iterations)

    def apply(self, situation: Situation) -> list[Primitive]:
        """One primitive for each intrinsic iteration, with what is fused into it."""
        groups = situation.nest.groups.values()
        return [Primitive("tensorize", g.target, self.name, parts=g.members) for g in groups]


class MultiLevel:
    """S2: operands with reuse pass through registers and the memory outside them."""

    name = "S2"

    def condition(self, situation: Situation) -> bool:
        """Registers always are a level; there is reuse if a loop can be tiled."""
        return bool(situation.spatial)

    def apply(self, situation: Situation) -> list[Primitive]:
        """Sources and accumulators held in registers, sources in the scratchpad."""
        made = [
            Primitive("cache_write", situation.destination.name, self.name, scope="registers"),
            *(
                Primitive("cache_read", op.name, self.name, scope="registers")
                for op in situation.sources
            ),
        ]
        if situation.machine is not None and not scratchpad(situation):
            inner = situation.machine.levels[0]
            if inner.capacity:
                operands = (*situation.sources, situation.destination)
                made += [
                    Primitive("cache_read", op.name, self.name, scope=inner.name) for op in operands
                ]
        return made


class MultiScope:
    """S3: sources that the intrinsic loads from a scratchpad of their own."""

    name = "S3"

    def condition(self, situation: Situation) -> bool:
        """The intrinsic names a memory that is a bounded level of the machine."""
        return bool(situation.spatial and scratchpad(situation))

    def apply(self, situation: Situation) -> list[Primitive]:
        """A cache for each operand with such a scope."""
        scopes = scratchpad(situation)
        operands = (*situation.sources, situation.destination)
        return [
            Primitive("cache_read", op.name, self.name, scope=scopes[op.name])
            for op in operands
            if op.name in scopes
        ]


class MultiLevelTiling:
    """Splits each spatial loop into an outer part, a block and a register tile."""

    name = "tile"

    def condition(self, situation: Situation) -> bool:
        """There is a spatial loop."""
        return bool(situation.spatial)

    def apply(self, situation: Situation) -> list[Primitive]:
        """Tile sizes are bounded by the registers, blocks by powers of two."""
        divisors = situation.tiling == "divisors"
        made = []
        for loop in situation.spatial:
            sizes = _tiles(loop.extent, situation.registers, divisors=divisors)
            made.append(Primitive("split", loop.name, self.name, "registers", values=sizes))
            blocks = tuple(
                b
                for b in _BLOCKS
                if b == 1 or (b < loop.extent and not (divisors and loop.extent % b))
            )
            made.append(Primitive("split", loop.name, self.name, "block", values=blocks))
        return made


class LoopOrder:
    """Orders the spatial loops and the reductions, and says which run in parallel."""

    name = "order"

    def condition(self, situation: Situation) -> bool:
        """There is a loop."""
        return bool(situation.spatial or situation.reduce)

    def apply(self, situation: Situation) -> list[Primitive]:
        """Reorder, fuse the outermost, bind them to cores, unroll the innermost."""
        made = []
        spatial = tuple(loop.name for loop in situation.spatial)
        reduce = tuple(loop.name for loop in situation.reduce)
        if spatial:
            orders = _permutations(situation.spatial)
            made.append(Primitive("reorder", "order", self.name, parts=spatial, values=orders))
            counts = tuple(range(1, len(spatial) + 1))
            made.append(Primitive("parallel", "parallel", self.name, parts=spatial, values=counts))
        if reduce:
            orders = _permutations(situation.reduce)
            made.append(Primitive("reorder", "reduce", self.name, parts=reduce, values=orders))
            made.append(Primitive("unroll", "unroll", self.name, parts=reduce, values=_UNROLLED))
        return made


class ComputeLocation:
    """Where a gathered source is staged, and how wide the copies are."""

    name = "stage"

    def condition(self, situation: Situation) -> bool:
        """A source is copied inside the kernel."""
        return bool(situation.gathered)

    def apply(self, situation: Situation) -> list[Primitive]:
        """Ahead of the nest or inside the outermost loops; vectorized copies."""
        made = [
            Primitive("compute_at", op.name, self.name, values=("whole", "tile"))
            for op in situation.gathered
        ]
        return [*made, Primitive("vectorize", "vector", self.name, values=_VECTORS)]


#: Applied in this order; a plug-in may add its own.
SCHEDULE_RULES: list[ScheduleRule] = [
    Tensorize(),
    MultiLevelTiling(),
    MultiScope(),
    MultiLevel(),
    LoopOrder(),
    ComputeLocation(),
]


def scratchpad(situation: Situation) -> dict[str, str]:
    """Operands that the intrinsic moves through a bounded level of the machine, by its name."""
    if situation.machine is None:
        return {}
    bounded = {level.name for level in situation.machine.levels if level.capacity}
    return {
        statement.operand: statement.scope
        for statement in situation.mapping.intrinsic.memory
        if statement.scope in bounded
    }


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
