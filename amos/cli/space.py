"""``amos space``: variables and constraints of a schedule space (Heron, Tables 4 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import amos
from amos._display import several
from amos.cli import options
from amos.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from amos.ir import Operator
    from amos.schedule import ScheduleSpace

_SHOWN = 12
Memories = Annotated[
    list[str] | None,
    typer.Option(
        "--memory",
        metavar="TENSOR=MEMORY",
        help="Of a chain: memory of a temporary, or of a copy of an input, local or private; "
        "repeat for more.",
    ),
]


@options.takes_operator
def space_command(
    op: Operator,
    intrinsic: options.IntrinsicName = None,
    machine: options.MachineName = "host",
    mapping: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Show this mapping's space; the first one if omitted."),
    ] = None,
    rule: Annotated[options.RuleName, typer.Option(help="Which mappings there are.")] = "access",
    commute: options.Commute = False,
    divisors: Annotated[
        bool, typer.Option("--divisors", help="Only tiles that divide their loops.")
    ] = False,
    fix: options.Fix = None,
    memory: Memories = None,
    dimensions: Annotated[
        int, typer.Option(help="Of a chain: dimensions of work-groups and work-items.")
    ] = 3,
    files: options.IntrinsicFiles = None,
    as_json: options.AsJson = False,
) -> None:
    """Print variables, constraints by type and by rule, and the size of a schedule space.

    Of a chain it is the space of its loops on work-groups and work-items: --fix tile.LOOP=SIZE cuts
    tiles, --fix "map.LOOP=group 0" maps a loop, and what cannot be is explained. With an OpenCL
    MACHINE its local and private memory and its work-items are rules, too.
    """
    from amos.cli.parallel import space_of_chain
    from amos.ir import Chain
    from amos.schedule import spaces_of

    if isinstance(op, Chain):
        space_of_chain(op, fix, memory or [], dimensions, machine, as_json)
        return
    if memory:
        raise typer.BadParameter("expected a chain of statements", param_hint="--memory")
    unit = options.read_intrinsic(intrinsic, files)
    mappings = amos.enumerate_mappings(op, unit, rule=rule, commute=commute)
    if not mappings:
        raise amos.errors.ExploreError(f"{op.name} on {unit.name}: no mapping under {rule!r}")
    spaces = spaces_of(
        list(mappings) if mapping is None else [mappings.find(mapping)],
        amos.machines.get(machine, [unit]),
        options.read_fixes(fix),
        "divisors" if divisors else "hardware",
    )
    space = next(iter(spaces.values()))
    report = _report(space, sum(each.size for each in spaces.values()), len(spaces))
    _tell(report | {"machine": machine}, space, as_json)


def _report(space: ScheduleSpace, total: int, mappings: int) -> dict[str, Any]:
    from amos.schedule.solver import count

    csp = space.csp
    return {
        "mapping": space.mapping.name,
        "variables": [
            {"name": v.name, "role": v.role, "domain": v.domain, "rule": v.rule}
            for v in csp.variables.values()
        ],
        "constraints": [{"type": c.type, "rule": c.rule, "text": str(c)} for c in csp.constraints],
        "by_role": csp.by_role(),
        "by_type": csp.by_type(),
        "by_rule": csp.by_rule(),
        "size": space.size,
        "feasible": count(csp) if space.size <= 10**6 else None,
        "mappings": mappings,
        "size_of_all_mappings": total,
        "operator": space.mapping.operator.name,
        "intrinsic": space.mapping.intrinsic.name,
    }


def _tell(report: dict[str, Any], space: ScheduleSpace, as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    print_line(f"mapping    {space.mapping.name}  {space.mapping}")
    print_table(
        ["variable", "role", "rule", "values"],
        [
            [v.name, v.role, v.rule]
            + [", ".join(map(str, v.domain[:_SHOWN])) + " …" * (len(v.domain) > _SHOWN)]
            for v in space.csp.variables.values()
        ],
    )
    print_table(
        ["constraint", "type", "rule"], [[str(c), c.type, c.rule] for c in space.csp.constraints]
    )
    for key in ("by_role", "by_type", "by_rule"):
        counts = ", ".join(f"{name} {count}" for name, count in report[key].items())
        print_line(f"{key.replace('_', ' '):10} {counts}")
    feasible = report["feasible"]
    counted = "" if feasible is None else f", {feasible:,} of them feasible"
    print_line(
        f"size       {report['size']:,} assignments{counted}; "
        f"{report['size_of_all_mappings']:,} over {several(report['mappings'], 'mapping')}"
    )
