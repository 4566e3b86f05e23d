"""``amos space``: variables and constraints of a schedule space (Heron, Tables 4 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from amos.cli.fixing import Fix, read_fixes
from amos.cli.options import (
    AsJson,
    Commute,
    Dtypes,
    Extents,
    IntrinsicFiles,
    IntrinsicName,
    Layout,
    MachineName,
    OperatorText,
    RuleName,
    Shapes,
    read_intrinsic,
    read_operator,
)
from amos.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from amos.schedule import ScheduleSpace

__all__ = ["space_command"]

_SHOWN = 12


def space_command(
    operator: OperatorText,
    intrinsic: IntrinsicName = None,
    machine: MachineName = "host",
    mapping: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Show this mapping's space; the first one if omitted."),
    ] = None,
    rule: Annotated[
        RuleName, typer.Option("--rule", help="Which mappings there are.")
    ] = RuleName.access,
    commute: Commute = False,
    divisors: Annotated[
        bool, typer.Option("--divisors", help="Only tiles that divide their loops.")
    ] = False,
    fix: Fix = None,
    files: IntrinsicFiles = None,
    extent: Extents = None,
    dtype: Dtypes = None,
    shape: Shapes = None,
    layout: Layout = None,
    as_json: AsJson = False,
) -> None:
    """Print variables, constraints by type and by rule, and the size of a schedule space."""
    import amos
    from amos.schedule import spaces_of

    op = read_operator(operator, extent, dtype, shape, layout)
    unit = read_intrinsic(intrinsic, files)
    found = list(amos.enumerate_mappings(op, unit, rule=rule.value, commute=commute))
    if not found:
        raise amos.errors.ExploreError(f"{op.name} on {unit.name}: no mapping under {rule.value!r}")
    if mapping is not None:
        found = [one for one in found if one.name == mapping] or _unknown(mapping, found)
    target = amos.machines.get(machine, [unit])
    fixes = read_fixes(fix)
    spaces = spaces_of(found, target, fixes, "divisors" if divisors else "hardware")
    space = next(iter(spaces.values()))
    report = _report(space, sum(one.size for one in spaces.values()), len(spaces))
    if as_json:
        print_json(report | {"operator": op.name, "intrinsic": unit.name, "machine": machine})
    else:
        _print(space, report)


def _unknown(name: str, found: list[Any]) -> list[Any]:
    from amos.errors import UnknownNameError

    raise UnknownNameError("mapping", name, [mapping.name for mapping in found])


def _report(space: ScheduleSpace, total: int, mappings: int) -> dict[str, Any]:
    from amos.schedule.solver import count

    csp = space.csp
    return {
        "mapping": space.mapping.name,
        "variables": [
            {"name": v.name, "role": v.role, "domain": list(v.domain), "rule": v.rule}
            for v in csp.variables.values()
        ],
        "constraints": [{"type": c.type, "rule": c.rule, "text": str(c)} for c in csp.constraints],
        "by_role": csp.by_role(),
        "by_type": csp.by_type(),
        "by_rule": csp.by_rule(),
        "size": csp.size,
        "feasible": count(csp) if csp.size <= 10**6 else None,
        "mappings": mappings,
        "size_of_all_mappings": total,
    }


def _print(space: ScheduleSpace, report: dict[str, Any]) -> None:
    print_line(f"mapping    {space.mapping.name}  {space.mapping}")
    rows = [
        [
            v.name,
            v.role,
            v.rule,
            ", ".join(map(str, v.domain[:_SHOWN])) + (" …" if len(v.domain) > _SHOWN else ""),
        ]
        for v in space.csp.variables.values()
    ]
    print_table(["variable", "role", "rule", "values"], rows)
    print_table(
        ["constraint", "type", "rule"],
        [[str(c), c.type, c.rule] for c in space.csp.constraints],
    )
    for name, key in (("by role", "by_role"), ("by type", "by_type"), ("by rule", "by_rule")):
        counts = ", ".join(f"{k} {v}" for k, v in report[key].items())
        print_line(f"{name:10} {counts}")
    feasible = report["feasible"]
    known = f", {feasible:,} of them feasible" if feasible is not None else ""
    print_line(
        f"size       {report['size']:,} assignments{known}; "
        f"{report['size_of_all_mappings']:,} over {report['mappings']} mappings"
    )
