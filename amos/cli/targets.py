"""``amos map --target``: an operator against every intrinsic that a target has."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import amos
from amos.cli.output import percent, print_json, print_line, print_table
from amos.errors import MappingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amos.intrinsics import Intrinsic
    from amos.ir import Operator

_FORMS = "cuda:sm_80, x86:host, x86:avx512_vnni,avx512vl, arm:asimddp,i8mm or all"
#: Instruction set by the kind of target; other kinds are matched with requirements.
_MACHINES = {"x86": "x86_64", "arm": "aarch64"}
#: Mappings whose utilization is computed.
_LOOKED_AT = 500


def map_target(
    op: Operator, target: str, commute: bool, as_json: bool, described: Sequence[Intrinsic] = ()
) -> None:
    """Print one row an intrinsic: counts by rule, best utilization, why none.

    Raises:
        MappingError: the target is not of a known form, or has no intrinsic.
    """
    units = [*described, *(unit for unit in _intrinsics(target) if unit not in described)]
    rows = [_row(op, unit, commute) for unit in units]
    if as_json:
        print_json({"operator": op.name, "statement": str(op), "target": target, "rows": rows})
        return
    print_line(str(op))
    print_table(
        ["intrinsic", "paper", "access", "gather", "best utilization", "why none"],
        [
            [
                row["intrinsic"],
                *(row["counts"].get(rule, 0) for rule in ("paper", "access", "gather")),
                percent(row["utilization"]),
                row["why"],
            ]
            for row in rows
        ],
    )


def _intrinsics(target: str) -> list[Intrinsic]:
    """List the registered intrinsics whose requirements a target meets."""
    from amos.machine.cpu import cpu

    units = [amos.intrinsics.get(name) for name in amos.intrinsics.names()]
    kind, _, what = target.partition(":")
    if target == "all":
        return units
    if kind == "cuda":
        architecture = re.fullmatch(r"sm_(\d+)", what)
        if architecture is None:
            raise MappingError(f"target {target!r}: expected a form such as {_FORMS}")
        chosen = [u for u in units if 0 < u.architecture <= int(architecture[1])]
    elif not what:
        raise MappingError(f"target {target!r}: expected a form such as {_FORMS}")
    else:
        features = cpu().features if what == "host" else frozenset(what.split(","))
        chosen = [u for u in units if u.requires and set(u.requires) <= features]
        if machine := _MACHINES.get(kind):
            sources = {u.name: amos.intrinsics.implementations(u.name).values() for u in chosen}
            chosen = [u for u in chosen if any(s.machine == machine for s in sources[u.name])]
    if not chosen:
        raise MappingError(f"target {target!r} has no registered intrinsic; forms are {_FORMS}")
    return chosen


def _row(op: Operator, unit: Intrinsic, commute: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"intrinsic": unit.name, "counts": {}, "utilization": None, "why": ""}
    try:
        for rule in ("paper", "access", "gather"):
            space = amos.enumerate_mappings(op, unit, rule=rule, commute=commute)
            row["counts"][rule] = space.count
    except MappingError as error:
        reason = str(error).removeprefix(f"{op.name} cannot use {unit.name}: ")
        row["why"] = reason.replace("commute=True", "--commute")
        return row
    if not space.count:
        row["why"] = "no matching is valid under any rule"
        return row
    best = max(m.physical().utilization for m in itertools.islice(space, _LOOKED_AT))
    row["utilization"] = best
    return row
