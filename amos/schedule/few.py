"""Few schedules for any mapping: templates that were learned over the layer tables (Hidet 4.3).

Loops of a template have roles instead of names: ``i1.tile`` is the tile loop of the intrinsic
iteration ``i1``, ``outer1`` the innermost spatial loop that no intrinsic iteration took, ``sum1``
the innermost such reduction. A mapping takes the nearest schedule of its space.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from amos.plan import Schedule, Value
from amos.plan.nest import Loop
from amos.plan.target import Target
from amos.schedule.sampler import decode
from amos.schedule.space import ScheduleSpace

#: Schedules of a task at most.
MOST = 200
#: Variables that are orders of loops.
_ORDERS = ("order", "reduce")


@dataclass(frozen=True)
class Template:
    """A schedule by the roles of loops, as ``tile.i1.tile`` or ``split``; orders list roles."""

    values: Mapping[str, Value]

    @staticmethod
    def of(space: ScheduleSpace, schedule: Schedule) -> Template:
        """Return the template of a schedule, with the values that it leaves to defaults."""
        roles = _roles(space)
        written = schedule.as_dict()
        values: dict[str, Value] = {}
        for variable in space.csp.tunables:
            value = written.get(variable.name, variable.default)
            if value is None or len(variable.domain) == 1:
                continue
            if variable.name in _ORDERS:
                value = " ".join(roles[name] for name in str(value).split())
            values[_rename_loop(variable.name, roles)] = value
        return Template(values)

    def schedule(self, space: ScheduleSpace) -> Schedule | None:
        """Find the nearest feasible schedule of a mapping; ``None`` if there is none."""
        roles = _roles(space)
        goals: dict[str, float] = {}
        for name, domain in space.variables.items():
            value = self.values.get(_rename_loop(name, roles))
            if name in _ORDERS:
                value = _nearest_order([*map(str, domain)], str(value or ""), roles)
            if value is None:
                continue
            if isinstance(value, str) or any(isinstance(x, str) for x in domain):
                goals[name] = domain.index(value) if value in domain else 0
            else:
                goals[name] = int(np.argmin([abs(int(x) - value) for x in domain]))
        defaults = {v.name: v.domain.index(v.default) for v in space.csp.tunables if v.default}
        order = [*goals, *(name for name in space.variables if name not in goals)]
        smallest = dict.fromkeys(space.variables, 0) | defaults
        positions = decode(space.csp, smallest | goals, np.random.default_rng(0), order)
        return None if positions is None else space.schedule(positions)


@cache
def templates(target: Target) -> tuple[Template, ...]:
    """Load a target's templates, the most useful first; none if it has no table."""
    if not target.templates:
        return ()
    text = files("amos.schedule").joinpath("data", target.templates).read_text(encoding="utf-8")
    return tuple(Template(values) for values in json.loads(text))


def list_schedules(space: ScheduleSpace, choices: Iterable[Template]) -> list[Schedule]:
    """List the different schedules that templates lead to for a mapping, in their order."""
    schedules = (template.schedule(space) for template in choices)
    return [*dict.fromkeys(each for each in schedules if each is not None)]


def _roles(space: ScheduleSpace) -> dict[str, str]:
    context = space.context
    return _number_roles(context.spatial, "outer") | _number_roles(context.reduce, "sum")


def _number_roles(loops: Iterable[Loop], role: str) -> dict[str, str]:
    roles: dict[str, str] = {}
    count = 0
    for loop in reversed([*loops]):
        if "." in loop.name:
            roles[loop.name] = loop.name
        else:
            count += 1
            roles[loop.name] = f"{role}{count}"
    return roles


def _rename_loop(name: str, names: Mapping[str, str]) -> str:
    head, dot, loop = name.partition(".")
    return f"{head}{dot}{names.get(loop, loop)}"


def _nearest_order(domain: list[str], wish: str, roles: Mapping[str, str]) -> str | None:
    """Return the order of a domain nearest to the wish; other loops keep their places."""
    ranks = {role: number for number, role in enumerate(wish.split())}
    if not ranks:
        return None

    def distance(order: str) -> int:
        places = [ranks[role] for name in order.split() if (role := roles[name]) in ranks]
        return sum(a > b for n, a in enumerate(places) for b in places[n + 1 :])

    return min(domain, key=distance)
