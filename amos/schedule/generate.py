"""From a mapping on a machine to its constraint satisfaction problem (Heron, Algorithm 1)."""

from __future__ import annotations

from amos.schedule.constraint_rules import CONSTRAINT_RULES
from amos.schedule.csp import CSP
from amos.schedule.schedule_rules import SCHEDULE_RULES
from amos.schedule.template import Draft, Primitive, Situation

__all__ = ["problem", "template"]


def template(situation: Situation) -> list[Primitive]:
    """Step 1: the primitives of every schedule rule whose condition holds."""
    return [
        primitive
        for rule in SCHEDULE_RULES
        if rule.condition(situation)
        for primitive in rule.apply(situation)
    ]


def problem(situation: Situation) -> CSP:
    """Step 2: the variables and constraints of every constraint rule that applies.

    Raises:
        ScheduleError: a rule names variables that there are not.
    """
    primitives = template(situation)
    draft = Draft(situation)
    for rule in CONSTRAINT_RULES:
        if rule.condition(situation, primitives):
            rule.apply(draft, primitives)
    return draft.finish()
