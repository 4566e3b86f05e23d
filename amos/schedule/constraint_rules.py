"""Constraint rules: what the primitives of a template demand (Heron, Table 8)."""

from __future__ import annotations

from math import prod

from amos.errors import ScheduleError
from amos.ir import dtype
from amos.plan.staging import StagedOperand
from amos.schedule.constraints import Eq, In, Le, Prod, Role, Select, Sum
from amos.schedule.gpu_rules import ThreadLimit, held_registers, shared_bytes
from amos.schedule.template import ConstraintRule, Draft, Primitive, TilingContext

__all__ = ["CONSTRAINT_RULES"]


class LoopSplit:
    """C1: the parts of a split loop; rounded up where tiles need not divide."""

    name = "C1"

    def condition(self, context: TilingContext, template: list[Primitive]) -> bool:
        """A loop is split."""
        return _some(template, "split")

    def apply(self, draft: Draft, template: list[Primitive]) -> None:
        """``tile.LOOP``, ``block.LOOP`` and the lengths that follow from them."""
        context = draft.context
        extents = {loop.name: loop.extent for loop in context.spatial}
        splits = {(p.subject, p.scope): p for p in template if p.kind == "split"}
        for loop, extent in extents.items():
            sizes = splits[loop, "registers"].values
            blocks = splits[loop, "block"].values
            draft.tunable(f"tile.{loop}", sizes, self.name)
            if len(blocks) > 1:
                draft.tunable(f"block.{loop}", blocks, self.name, default=1)
            else:
                draft.constant(f"block.{loop}", 1, self.name, "length")
            draft.constant(f"extent.{loop}", extent, self.name, "length")
            counts = tuple(-(-extent // int(size)) for size in sizes)
            draft.derived(f"steps.{loop}", self.name)
            draft.derived(f"span.{loop}", self.name)
            draft.require(
                Select(f"steps.{loop}", f"tile.{loop}", counts, self.name),
                Prod(f"span.{loop}", (f"tile.{loop}", f"block.{loop}"), self.name),
                Le(
                    f"block.{loop}",
                    f"steps.{loop}",
                    self.name,
                    f"a block of {loop} is longer than the loop",
                ),
            )
            if context.tiling == "divisors":
                self._exact(draft, loop, extent)

    def _exact(self, draft: Draft, loop: str, extent: int) -> None:
        """The product of tile and block divides the extent."""
        exact = tuple(n for n in range(1, extent + 1) if extent % n == 0)
        draft.require(In(f"span.{loop}", exact, self.name))


class LoopFuse:
    """C2: the iterations that the mapping fuses into one of the intrinsic."""

    name = "C2"

    def condition(self, context: TilingContext, template: list[Primitive]) -> bool:
        """Something is fused."""
        return _some(template, "tensorize")

    def apply(self, draft: Draft, template: list[Primitive]) -> None:
        """``PROD`` of the fused extents."""
        extents = draft.context.mapping.operator.extents
        for primitive in template:
            if primitive.kind == "tensorize":
                parts = [
                    draft.constant(f"size.{n}", extents[n], self.name, "length")
                    for n in primitive.parts
                ]
                target = draft.derived(f"fused.{primitive.subject}", self.name)
                draft.require(Prod(target, tuple(parts), self.name))


class Candidates:
    """C3: parameters that take one of a few values."""

    name = "C3"

    def condition(self, context: TilingContext, template: list[Primitive]) -> bool:
        """A primitive has candidates."""
        return any(primitive.values for primitive in template)

    def apply(self, draft: Draft, template: list[Primitive]) -> None:
        """One ``IN`` for each parameter."""
        for primitive in template:
            name = primitive.subject
            if primitive.kind in ("reorder", "parallel", "unroll"):
                draft.tunable(name, primitive.values, self.name)
            elif primitive.kind == "compute_at":
                name = f"stage.{name}"
                draft.tunable(name, primitive.values, self.name)
            elif primitive.kind in ("vectorize", "pipeline", "rfactor"):
                draft.tunable(name, primitive.values, self.name, default=primitive.values[0])
            elif primitive.kind == "bind":
                draft.tunable(name, primitive.values, self.name)
            elif primitive.kind == "storage_align":
                name = f"align.{name}"
                draft.tunable(name, primitive.values, self.name, default=primitive.values[0])
            elif primitive.kind == "split":
                name = f"{'block' if primitive.scope == 'block' else 'tile'}.{name}"
            else:
                continue
            draft.require(In(name, primitive.values, self.name))


class StageFuse:
    """C4: how much of a source one staging copies depends on where it is done."""

    name = "C4"

    def condition(self, context: TilingContext, template: list[Primitive]) -> bool:
        """A stage may be computed inside another."""
        return _some(template, "compute_at") and bool(context.spatial)

    def apply(self, draft: Draft, template: list[Primitive]) -> None:
        """``staged.OPERAND``: fragments of the whole source or of one tile of it."""
        context = draft.context
        sources = {op.name: op for op in context.sources}
        for primitive in template:
            if primitive.kind != "compute_at":
                continue
            name, loops = primitive.subject, context.indexed(sources[primitive.subject])
            whole, part = f"whole.{name}", f"part.{name}"
            for target, kind in ((whole, "extent"), (part, "span")):
                draft.derived(target, self.name)
                draft.require(Prod(target, tuple(f"{kind}.{x}" for x in loops), self.name))
            draft.derived(f"staged.{name}", self.name)
            draft.require(Select(f"staged.{name}", f"stage.{name}", (whole, part), self.name))


class MemoryLimit:
    """C5, GTA's R5: what is held in a memory fits it."""

    name = "C5"

    def condition(self, context: TilingContext, template: list[Primitive]) -> bool:
        """A cache of limited size is used."""
        return any(p.kind in ("cache_read", "cache_write") for p in template)

    def apply(self, draft: Draft, template: list[Primitive]) -> None:
        """Fragments in registers; bytes in the scratchpad or the innermost cache."""
        context = draft.context
        if context.warps:
            held_registers(draft)
        else:
            self._registers(draft)
        levels = {level.name for level in context.machine.levels} if context.machine else set()
        for scope in sorted({p.scope for p in template if p.rule == "S2"} & levels):
            held = [p.subject for p in template if p.scope == scope and p.kind == "cache_read"]
            if context.warps:
                shared_bytes(draft, scope, held)
            else:
                self._bytes(draft, scope, held, "span" if context.scratchpads else "tile")
        self._buffers(draft)

    def _buffers(self, draft: Draft) -> None:
        """What a block of tiles needs of an operand, in the buffer that is its own."""
        context = draft.context
        for op in (*context.sources, context.destination):
            if op.name not in context.buffers:
                continue
            scope, capacity = context.buffers[op.name]
            size = draft.constant(f"bytes.{op.name}", fragment_bytes(context, op), self.name)
            used = draft.derived(f"{scope}.used", self.name, "other")
            limit = draft.constant(f"{scope}.capacity", capacity, self.name)
            loops = tuple(f"span.{loop}" for loop in context.indexed(op))
            reason = f"{{left}} bytes of {op.name} in buffer {scope}, but it has {capacity}"
            draft.require(Prod(used, (size, *loops), self.name), Le(used, limit, self.name, reason))

    def _registers(self, draft: Draft) -> None:
        """With the fragments of one source held, the others need only the one in use."""
        context = draft.context
        fragments = []
        for op in (*context.sources, context.destination):
            name = draft.derived(f"fragments.{op.name}", self.name)
            loops = tuple(f"tile.{loop}" for loop in context.indexed(op))
            draft.require(Prod(name, loops, self.name))
            fragments.append(name)
        *sources, accumulators = fragments
        terms = [accumulators]
        if len(sources) == 1:
            terms.append(sources[0])
        elif sources:
            held = draft.derived("held", self.name)
            kept = draft.free("kept", len(sources), self.name)
            draft.require(Select(held, kept, tuple(sources), self.name))
            terms += [held, draft.constant("in use", 1, self.name)]
        total = draft.derived("fragments", self.name)
        # A number that the description does not say is no property of the hardware.
        told = context.warps or context.mapping.intrinsic.registers
        role: Role = "architecture" if told else "other"
        limit = draft.constant("registers", context.registers, self.name, role)
        reason = f"{{left}} fragments live at once, but {context.registers} registers"
        draft.require(Sum(total, tuple(terms), self.name), Le(total, limit, self.name, reason))

    def _bytes(self, draft: Draft, scope: str, held: list[str], kind: str) -> None:
        """What one step of the reduction needs of a level, for each core that shares it."""
        context = draft.context
        assert context.machine is not None
        level = next(x for x in context.machine.levels if x.name == scope)
        sharing = -(-context.machine.cores // level.units)
        amounts = []
        for op in (*context.sources, context.destination):
            if op.name not in held:
                continue
            size = draft.constant(f"bytes.{op.name}", fragment_bytes(context, op), self.name)
            amount = draft.derived(f"{scope}.{op.name}", self.name, "other")
            loops = tuple(f"{kind}.{loop}" for loop in context.indexed(op))
            draft.require(Prod(amount, (size, *loops), self.name))
            amounts.append(amount)
        total = draft.derived(f"{scope}.used", self.name, "other")
        limit = draft.constant(f"{scope}.capacity", level.capacity // sharing, self.name)
        reason = (
            f"{{left}} bytes of {scope} in use by one core, but {level.capacity // sharing} "
            f"are there for it"
        )
        draft.require(Sum(total, tuple(amounts), self.name), Le(total, limit, self.name, reason))


class SplitLimit:
    """C1 of a reduction: its outermost loop has a step for every part."""

    name = "C1"

    def condition(self, context: TilingContext, template: list[Primitive]) -> bool:
        """A reduction may be split."""
        return any(p.kind == "rfactor" and len(p.values) > 1 for p in template)

    def apply(self, draft: Draft, template: list[Primitive]) -> None:
        """``split.steps`` is the extent of the loop that ``reduce`` puts outermost."""
        extents = {loop.name: loop.extent for loop in draft.context.reduce}
        orders = next(p.values for p in template if (p.kind, p.subject) == ("reorder", "reduce"))
        outermost = tuple(extents[str(order).split()[0]] for order in orders)
        steps = draft.derived("split.steps", self.name)
        reason = "a reduction of {right} steps in {left} parts"
        draft.require(
            Select(steps, "reduce", outermost, self.name), Le("split", steps, self.name, reason)
        )


class Specific:
    """C6: what one intrinsic alone demands, taken from its description.

    The call has the problem size of the intrinsic; a copy moves as many bytes at
    once as the memory statements of the sources allow; and where a store names a
    ``write_interval``, other accumulators are written before the same one is again.
    """

    name = "C6"

    def condition(self, context: TilingContext, template: list[Primitive]) -> bool:
        """There is a call."""
        return _some(template, "tensorize")

    def apply(self, draft: Draft, template: list[Primitive]) -> None:
        """Problem size, vector widths, write cycle."""
        intrinsic = draft.context.mapping.intrinsic
        for it in intrinsic.iterations:
            size = draft.constant(f"problem.{it.name}", it.extent, self.name)
            lanes = draft.constant(f"lanes.{it.name}", it.extent, self.name, "length")
            draft.require(Eq(lanes, size, self.name))
        for statement in intrinsic.memory:
            if statement.vectors and "vector" in draft.variables and statement.direction == "load":
                draft.require(In("vector", statement.vectors, self.name))
            if statement.write_interval > 1 and draft.context.reduce:
                self._cycle(draft, statement.write_interval)

    def _cycle(self, draft: Draft, cycles: int) -> None:
        """A step of the reduction writes each accumulator of the tile once, in turn."""
        accumulators = f"fragments.{draft.context.destination.name}"
        least = draft.constant("write.interval", cycles, self.name)
        if accumulators not in draft.variables:
            draft.constant(accumulators, 1, self.name, "length")
        reason = f"an accumulator is written again after {{right}} calls, but {cycles} must pass"
        draft.require(Le(least, accumulators, self.name, reason))


#: Applied in this order; a plug-in may add its own.
CONSTRAINT_RULES: list[ConstraintRule] = [
    LoopSplit(),
    LoopFuse(),
    Candidates(),
    StageFuse(),
    SplitLimit(),
    MemoryLimit(),
    ThreadLimit(),
    Specific(),
]


def fragment_bytes(context: TilingContext, op: StagedOperand) -> int:
    """Bytes of one fragment of an operand."""
    intrinsic = context.mapping.intrinsic
    names = [load.tensor.name for load in intrinsic.operands]
    bits = dtype(intrinsic.dtypes[names.index(op.name)]).bits
    lanes = prod(context.nest.groups[target].lanes for target in op.fragment)
    if not lanes:
        raise ScheduleError(f"operand {op.name} of {intrinsic.name} has an empty fragment")
    return max(1, lanes * bits // 8)


def _some(template: list[Primitive], kind: str) -> bool:
    return any(primitive.kind == kind for primitive in template)
