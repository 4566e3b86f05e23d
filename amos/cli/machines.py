"""``amos machines``: the machines that the performance model knows."""

from __future__ import annotations

from typing import Annotated

import typer

from amos.cli.options import AsJson
from amos.cli.output import print_json, print_line

__all__ = ["app"]

app = typer.Typer(help="List and show machines.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the known machines."""
    from amos import machines

    if as_json:
        print_json(list(machines.names()))
        return
    for name in machines.names():
        print_line(name)


@app.command("show")
def show_command(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="A name, such as host.")],
    as_json: AsJson = False,
) -> None:
    """Show the levels, bandwidths and compute rates of a machine."""
    from dataclasses import asdict

    from amos import machines

    found = machines.get(machine)
    if as_json:
        print_json(asdict(found))
        return
    print_line(str(found))


@app.command("probe")
def probe_command(
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget earlier figures instead of keeping the best.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure this machine: intrinsic rates, bandwidth of each level, launch, clock."""
    from dataclasses import asdict

    from amos import machines
    from amos.measure.host import cache_file

    found = machines.probe(fresh=fresh)
    if as_json:
        print_json(asdict(found))
        return
    print_line(str(found))
    print_line(f"kept in {cache_file()}")
