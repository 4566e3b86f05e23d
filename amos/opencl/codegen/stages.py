"""Loops over the steps of the reduction that a group stages together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from amos.codegen.device.access import STEP
from amos.codegen.device.text import identifier
from amos.ir.index_text import Value
from amos.opencl.plan import OpenClPlan

#: Name of the number of steps of a stage.
_STEPS = "steps"


@dataclass(frozen=True)
class StepAxis:
    """A variable's loop over steps of a reduction loop, ``weight`` steps of the stage apart."""

    name: str
    loop: str
    extent: int
    weight: int


def step_axes(plan: OpenClPlan) -> list[StepAxis]:
    """List loops over the steps of a stage, fastest first: one for each moving reduction loop.

    Where stages do not end with a loop, one loop counts all steps.
    """
    loops = [x for x in reversed(plan.reduce_loops) if x.extent > 1]
    axes: list[StepAxis] = []
    weight = 1
    for loop in loops:
        steps = plan.staged // weight
        if steps == 1:
            break
        extent = min(steps, loop.extent)
        if max(steps, loop.extent) % extent:
            return [StepAxis(STEP, loops[0].name, plan.staged, 1)]
        axes.append(StepAxis(f"{STEP}_{identifier(loop.name)}", loop.name, extent, weight))
        weight *= extent
    return axes


def count_last_steps(plan: OpenClPlan) -> int:
    """Count the last stage's steps, where all steps of a stage would leave the reduction."""
    counted = any(axis.name == STEP for axis in step_axes(plan))
    return plan.reduction - (plan.sequence - 1) * plan.staged if counted else plan.staged


def _count_steps(plan: OpenClPlan, axis: StepAxis) -> str:
    """Write the steps of a loop in a stage, by what :func:`declare_steps` declares."""
    is_cut = axis.name == STEP and count_last_steps(plan) < plan.staged
    return _STEPS if is_cut else str(axis.extent)


def loop_over_steps(plan: OpenClPlan, axis: StepAxis, name: str) -> str:
    """Write the head of a loop over the steps of an axis.

    A core addresses with 64 bits; from 32, compilers may extend each address by itself.
    """
    kind, end = "long" if plan.is_serial else "int", _count_steps(plan, axis)
    return f"for ({kind} {name} = 0; {name} < {end}; ++{name}) {{"


def declare_steps(plan: OpenClPlan) -> list[str]:
    """Declare the number of steps of a stage, unless all stages have as many."""
    last, staged = count_last_steps(plan), plan.staged
    if last == staged:
        return []
    return [f"const int {_STEPS} = stage < {plan.sequence - 1} ? {staged} : {last};"]


def stage_step(plan: OpenClPlan, digits: Mapping[str, Value]) -> Value:
    """Write the step of a stage by the variables of its axes."""
    axes = [axis for axis in step_axes(plan) if axis.name in digits]
    return sum((digits[axis.name] * axis.weight for axis in axes), start=0)
