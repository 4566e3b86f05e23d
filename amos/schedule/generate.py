"""From a mapping on a machine to its constraint satisfaction problem (Heron, Algorithm 1)."""

from __future__ import annotations

from amos.schedule.constraint_rules import CONSTRAINT_RULES
from amos.schedule.csp import CSP
from amos.schedule.schedule_rules import SCHEDULE_RULES
from amos.schedule.template import Draft, Primitive, TilingContext

__all__ = ["problem", "template"]


def template(context: TilingContext) -> list[Primitive]:
    """Step 1: the primitives of every schedule rule whose condition holds."""
    return [
        primitive
        for rule in SCHEDULE_RULES
        if rule.condition(context)
        for primitive in rule.apply(context)
    ]


def problem(context: TilingContext) -> CSP:
    """Step 2: the variables and constraints of every constraint rule that applies.

    Raises:
        ScheduleError: a rule names variables that there are not.
    """
    primitives = template(context)
    draft = Draft(context)
    for rule in CONSTRAINT_RULES:
        if rule.condition(context, primitives):
            rule.apply(draft, primitives)
    return draft.finish()
