"""``amos intrinsics``: what is registered, and what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from amos.cli.options import AsJson, IntrinsicName
from amos.cli.output import print_json, print_line, print_table, print_warning
from amos.errors import AmosError, IntrinsicError

if TYPE_CHECKING:
    from amos.intrinsics import Intrinsic

__all__ = ["app"]

app = typer.Typer(
    help="List, show and check intrinsics.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List every registered intrinsic."""
    from amos import intrinsics

    units = [intrinsics.get(name) for name in intrinsics.names()]
    for plug_in, why in intrinsics.broken().items():
        print_warning(f"plug-in {plug_in!r} could not be loaded: {why}")
    if as_json:
        print_json([_describe(unit) for unit in units])
        return
    print_table(
        ["intrinsic", "family", "problem size", "dtypes", "requires"],
        [
            [
                unit.name,
                unit.family,
                " ".join(f"{name}={size}" for name, size in unit.extents.items()),
                unit.dtypes,
                unit.requires,
            ]
            for unit in units
        ],
    )


@app.command("show")
def show_command(intrinsic: IntrinsicName, as_json: AsJson = False) -> None:
    """Show an intrinsic as compute and memory abstraction."""
    from amos import intrinsics

    unit = intrinsics.get(intrinsic)
    if as_json:
        print_json(_describe(unit))
        return
    print_line(str(unit))
    for label, value in (
        ("about", unit.description),
        ("source", unit.source),
        ("requires", ", ".join(unit.requires)),
    ):
        if value:
            print_line(f"  {label:8} {value}")


@app.command("check")
def check_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[INTRINSIC]...", help="All if none is named.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that each maps onto its own statement."""
    from amos import intrinsics

    units = [intrinsics.get(name) for name in names or intrinsics.names()]
    problems = {unit.name: _problems(unit) for unit in units}
    if not names:
        problems |= {f"plug-in {name}": [why] for name, why in intrinsics.broken().items()}
    if as_json:
        print_json(
            [{"name": name, "ok": not why, "problems": why} for name, why in problems.items()]
        )
    else:
        for name, why in problems.items():
            print_line(f"{name}: {'; '.join(why) or 'ok'}")
    if bad := [name for name, why in problems.items() if why]:
        raise IntrinsicError(f"{len(bad)} of {len(problems)} failed: {', '.join(bad)}")


def _problems(unit: Intrinsic) -> list[str]:
    """An intrinsic maps onto itself, iteration by iteration, under the strictest rule."""
    import numpy as np

    from amos import Operator, check_matching

    try:
        op = Operator(unit.compute, name=unit.name)
        identity = np.eye(len(unit.iterations), dtype=bool)
        return list(check_matching(op, unit, identity, rule="paper").reasons)
    except AmosError as error:
        return [str(error)]


def _describe(unit: Intrinsic) -> dict[str, Any]:
    return {
        "name": unit.name,
        "family": unit.family,
        "compute": str(unit.compute),
        "memory": [str(statement) for statement in unit.memory],
        "extents": unit.extents,
        "dtypes": list(unit.dtypes),
        "requires": list(unit.requires),
        "description": unit.description,
        "source": unit.source,
    }
