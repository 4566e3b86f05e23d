"""The constrained space of schedules of a mapping on a machine."""

from amos.schedule.constraint_rules import CONSTRAINT_RULES
from amos.schedule.constraints import Constraint, Eq, In, Le, Prod, Select, Sum, Variable
from amos.schedule.csp import CSP
from amos.schedule.fixing import spaces_of
from amos.schedule.schedule_rules import SCHEDULE_RULES
from amos.schedule.space import ScheduleSpace
from amos.schedule.template import (
    ConstraintRule,
    Draft,
    Primitive,
    ScheduleRule,
    Tiling,
    TilingContext,
)

__all__ = [
    "CONSTRAINT_RULES",
    "CSP",
    "SCHEDULE_RULES",
    "Constraint",
    "ConstraintRule",
    "Draft",
    "Eq",
    "In",
    "Le",
    "Primitive",
    "Prod",
    "ScheduleRule",
    "ScheduleSpace",
    "Select",
    "TilingContext",
    "Sum",
    "Tiling",
    "Variable",
    "spaces_of",
]
