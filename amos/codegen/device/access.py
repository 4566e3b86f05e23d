"""Addresses of fragments' elements in their tensors, by the mapping's own arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amos.codegen.device.text import WIDE_CPP, element_at, identifier
from amos.ir.index_text import Expr, Value, forget_sum, text, upper_bound, variable
from amos.plan.device_plan import DevicePlan
from amos.plan.fragment import Fragment
from amos.plan.nest import Group

#: Name of the axis that runs over the reduction steps of one stage.
STEP = "step"


def loop_values(
    plan: DevicePlan, local: Mapping[str, Value], loops: Sequence[str]
) -> tuple[dict[str, Value], list[str]]:
    """Return values of spatial loops by the steps within the group, and their conditions."""
    values: dict[str, Value] = {}
    guards = []
    extents = {x.name: x.extent for x in plan.spatial}
    for loop in loops:
        count, span = plan.blocks[loop], plan.spans[loop]
        value = local.get(loop, 0)
        if count > 1:
            value = Expr(f"first_{identifier(loop)}", 0, (count - 1) * span) + value
        values[loop] = value
        if upper_bound(value) >= extents[loop]:
            guards.append(f"{text(value)} < {extents[loop]}")
    return values, guards


@dataclass(frozen=True)
class ResultPoint:
    """Spatial iterations of an accumulator's element, and in C the condition that it exists."""

    at: dict[str, Value]
    condition: str


def locate_result(
    plan: DevicePlan,
    fragment: Sequence[str],
    local: Mapping[str, Value],
    lanes: Mapping[str, Value],
) -> ResultPoint:
    """Return the iterations of one element of an accumulator.

    Args:
        fragment: intrinsic iterations that index it.
        lanes: place of the element along each side of the fragment.
    """
    values, guards = loop_values(plan, local, [x.name for x in plan.spatial])
    for target in fragment:
        group = plan.nest.groups[target]
        fused = values.get(group.tile, 0) * group.lanes + lanes[target]
        if upper_bound(fused) >= group.size:
            guards.append(f"{text(fused)} < {group.size}")
        # The compiler divides sums as well as we do, and this text stays what it was.
        values |= group.decode(forget_sum(fused))
    at = {it.name: values.get(it.name, 0) for it in plan.mapping.operator.spatial}
    return ResultPoint(at, " && ".join(dict.fromkeys(guards)))


class Access:
    """One element of a source, or several that lie side by side.

    Attributes:
        lines: declarations of the values that the others mention.
        guards: conditions under which there is something to read; else zeros are read.
        in_bounds: conditions under which it is in the tensor; else its padding is read.
            Where that is zero, they are among the guards.
        indices: where it begins along each dimension of the tensor.
        fused: where it begins along each side of the fragment that the tensor has.
    """

    #: Whether sums are divided term by term, so that what depends on a stage alone leaves the loop.
    keeps_sums = False
    #: Whether loops, sides of the fragment and tensors are known to go on beyond all that is read.
    is_interior = False
    #: Whether loops over the steps of a stage end with the reduction.
    is_live_step = False

    def __init__(self, plan: DevicePlan, fragment: Fragment, wide: str = WIDE_CPP) -> None:
        self.plan, self.fragment, self.wide = plan, fragment, wide
        self.lines: list[str] = []
        self.guards: list[str] = []
        self.in_bounds: list[str] = []
        self.indices: list[Value] = []
        self.fused: dict[str, Value] = {}
        op = plan.mapping.operator
        self._used_names = {tensor.name for tensor in (*op.inputs, op.output.tensor)}

    def let(self, name: str, value: Value) -> Value:
        """Give a compound value a name."""
        if isinstance(value, int) or value.code.isidentifier():
            return value
        name = identifier(name)
        while name in self._used_names:
            name += "_"
        self._used_names.add(name)
        self.lines.append(f"const int {name} = {value.code};")
        return value.with_name(name) if self.keeps_sums else Expr(name, value.low, value.high)

    def locate(self, lanes: Mapping[str, Value], local: Mapping[str, Value]) -> str:
        """Write the place of an element in the tensor, and the condition that it exists.

        Args:
            lanes: place of the element along each side of the fragment.
            local: steps within the group by spatial loop, and within the stage by ``STEP``.
        """
        fragment = self.fragment
        values, guards = loop_values(self.plan, local, fragment.loops)
        self.guards += [] if self.is_interior else guards
        values |= self._reduction(local)
        for target in fragment.staged.fragment:
            group = fragment.nest.groups[target]
            lane = lanes[target]
            if not set(group.members) & fragment.staged.load.names:
                if group.kind == "reduce" and not group.members:
                    self.guards.append(f"{text(lane)} < 1")
                continue
            fused = self.let(target, values.get(group.tile, 0) * group.lanes + lane)
            self.fused[target] = fused
            is_inside = self.is_interior and group.tile in fragment.loops
            if upper_bound(fused) >= group.size and not is_inside:
                self.guards.append(f"{text(fused)} < {group.size}")
            values |= group.decode(fused)
        load, extents = fragment.staged.load, self.plan.mapping.operator.extents
        where = {name: self.let(name, values.get(name, 0)) for name in sorted(load.names)}
        indices = []
        ends = self.in_bounds if load.padding else self.guards
        for index, size in zip(load.indices, load.tensor.shape, strict=True):
            at = index.evaluate(where)
            low, high = (0, 0) if self.is_interior else index.bounds(extents)
            if low < 0:
                ends.append(f"{text(at)} >= 0")
            if high >= size:
                ends.append(f"{text(at)} < {size}")
            indices.append(at)
        self.indices = indices
        self.guards, self.in_bounds = (
            list(dict.fromkeys(x)) for x in (self.guards, self.in_bounds)
        )
        return element_at(load.tensor.shape, indices, self.wide)

    def _reduction(self, local: Mapping[str, Value]) -> dict[str, Value]:
        """Return values of the reduction loops at this step of this stage."""
        plan = self.plan
        if not self.fragment.reduced:
            return {}
        stage = variable("stage", plan.sequence)
        flat = self.let("at_reduction", stage * plan.staged + local.get(STEP, 0))
        ends = self.is_interior or self.is_live_step
        if upper_bound(flat) >= plan.reduction and not ends:
            self.guards.append(f"{text(flat)} < {plan.reduction}")
        names, extents = zip(*((x.name, x.extent) for x in plan.reduce_loops), strict=True)
        return Group("", "reduce", 1, names, extents).decode(flat)
