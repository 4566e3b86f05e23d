"""Schedules, the constrained spaces they come from, and candidates made with them."""

from amos.schedule.candidate import Candidate
from amos.schedule.constraint_rules import CONSTRAINT_RULES
from amos.schedule.constraints import Constraint, Eq, In, Le, Prod, Select, Sum, Value, Variable
from amos.schedule.csp import CSP
from amos.schedule.fixing import spaces_of
from amos.schedule.sampled import best_sampled
from amos.schedule.schedule import Schedule, batch_of
from amos.schedule.schedule_rules import SCHEDULE_RULES
from amos.schedule.space import ScheduleSpace
from amos.schedule.template import (
    ConstraintRule,
    Draft,
    Primitive,
    ScheduleRule,
    Situation,
    Tiling,
)

__all__ = [
    "CONSTRAINT_RULES",
    "CSP",
    "SCHEDULE_RULES",
    "Candidate",
    "Constraint",
    "ConstraintRule",
    "Draft",
    "Eq",
    "In",
    "Le",
    "Primitive",
    "Prod",
    "Schedule",
    "ScheduleRule",
    "ScheduleSpace",
    "Select",
    "Situation",
    "Sum",
    "Tiling",
    "Value",
    "Variable",
    "batch_of",
    "best_sampled",
    "spaces_of",
]
