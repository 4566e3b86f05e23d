"""``amos intrinsics``: what is registered, and what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from amos.cli.options import AsJson, IntrinsicName
from amos.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from amos.intrinsics import Intrinsic

__all__ = ["app"]

app = typer.Typer(help="List, show and check intrinsics.", no_args_is_help=True)


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List every registered intrinsic."""
    from amos import intrinsics

    units = [intrinsics.get(name) for name in intrinsics.names()]
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
    """Check definitions by running their meaning against a plain loop nest."""
    from amos import intrinsics

    units = [intrinsics.get(name) for name in names or intrinsics.names()]
    for unit in units:
        intrinsics.check(unit)
    if as_json:
        print_json([{"intrinsic": unit.name, "ok": True} for unit in units])
        return
    for unit in units:
        print_line(f"{unit.name}: ok")


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
