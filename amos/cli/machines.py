"""``amos machines``: the machines that the performance model knows."""

from __future__ import annotations

from typing import Annotated

import typer

import amos
from amos.cli.options import AsJson
from amos.cli.output import print_json, print_line

app = typer.Typer(help="List and show machines.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the known machines."""
    if as_json:
        print_json(amos.machines.names())
    else:
        print_line("\n".join(amos.machines.names()))


@app.command("show")
def show_command(
    machine: Annotated[
        str, typer.Argument(metavar="MACHINE", help="A name, such as host, or a TOML file.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show the levels, bandwidths and compute rates of a machine."""
    described = amos.machines.get(machine)
    if as_json:
        print_json(described)
    else:
        print_line(str(described))


@app.command("probe")
def probe_command(
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget earlier figures instead of keeping the best.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure this machine: intrinsic rates, bandwidth of each level, launch, clock."""
    from amos.measure.host import cache_file

    probed = amos.machines.probe(fresh=fresh)
    if as_json:
        print_json(probed)
    else:
        print_line(f"{probed}\nkept in {cache_file()}")
