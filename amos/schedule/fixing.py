"""Spaces of several mappings in which a user has given variables values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from amos.errors import ScheduleError, UnknownNameError
from amos.machine import Machine
from amos.mapping.mapping import Mapping
from amos.plan import Value
from amos.schedule import solver
from amos.schedule.constraints import In
from amos.schedule.space import ScheduleSpace
from amos.schedule.template import Tiling

__all__ = ["spaces_of"]


def spaces_of(
    mappings: Sequence[Mapping],
    machine: Machine | None,
    fixes: Iterable[tuple[str, Value]] = (),
    tiling: Tiling = "hardware",
) -> dict[str, ScheduleSpace]:
    """The space of each mapping by name, under fixed values.

    A mapping that lacks a fixed variable, or where the values leave nothing, is left
    out.

    Args:
        mappings: what may be scheduled.
        machine: where.
        fixes: variables and values; dots in names may be underscores.
        tiling: kind of tiles.

    Raises:
        UnknownNameError: no mapping has the variable.
        ScheduleError: nothing is left; the message names the smallest set of
            constraints in conflict in the mapping that comes first.
    """
    spaces = {m.name: ScheduleSpace(m, machine, tiling) for m in mappings}
    wanted = list(fixes)
    if not wanted:
        return spaces
    known = {name for space in spaces.values() for name in space.variables}
    plain = {name.replace(".", "_"): name for name in known}
    given = []
    for name, value in wanted:
        if name not in known and name not in plain:
            raise UnknownNameError("schedule variable", name, known)
        given.append(In(name if name in known else plain[name], (value,), "given"))
    names = {constraint.variable for constraint in given}
    having = {key: x for key, x in spaces.items() if names <= x.variables.keys()}
    if not having:
        raise ScheduleError(f"no mapping has all of the variables {', '.join(sorted(names))}")
    kept = {key: space.fix(given) for key, space in having.items()}
    left = {key: space for key, space in kept.items() if _possible(space)}
    if not left:
        first = next(iter(kept))
        for constraint in given:
            domain = having[first].variables[constraint.variable]
            if not set(constraint.values) <= set(domain):
                raise ScheduleError(
                    f"mapping {first}: {constraint.variable} = {constraint.values[0]!r} is not "
                    f"one of {', '.join(map(str, domain))}"
                )
        core = solver.explain(having[first].csp, given)
        raise ScheduleError(f"mapping {first}: {solver.conflict(core)}")
    return left


def _possible(space: ScheduleSpace) -> bool:
    allowed = space.csp.allowed
    if not all(allowed.values()) or not space.csp.possible(allowed):
        return False
    return solver.feasible(space.csp)
