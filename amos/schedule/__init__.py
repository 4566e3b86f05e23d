"""The constrained space of schedules of a mapping on a machine."""

from amos.schedule.constraints import Constraint, Eq, In, Le, Prod, Select, Sum, Variable
from amos.schedule.csp import CSP
from amos.schedule.draft import Draft, Rule, Tiling, TilingContext
from amos.schedule.rules import RULES
from amos.schedule.space import ScheduleSpace, candidate_of, spaces_of

__all__ = [
    "CSP",
    "RULES",
    "Constraint",
    "Draft",
    "Eq",
    "In",
    "Le",
    "Prod",
    "Rule",
    "ScheduleSpace",
    "Select",
    "Sum",
    "Tiling",
    "TilingContext",
    "Variable",
    "candidate_of",
    "spaces_of",
]
