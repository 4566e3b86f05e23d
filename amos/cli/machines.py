"""``amos machines``: the machines that the performance model knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import amos
from amos.cli.keys import print_keys
from amos.cli.options import AsJson, IntrinsicFiles, load_intrinsics
from amos.cli.output import print_json, print_line
from amos.errors import AmosError

if TYPE_CHECKING:
    from amos.intrinsics import Intrinsic
    from amos.machine import Machine

app = typer.Typer(
    help="List, show and check machines.", no_args_is_help=True, rich_markup_mode=None
)


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


@app.command("check")
def check_command(
    machine: Annotated[str, typer.Argument(metavar="FILE", help="A TOML file.")],
    files: IntrinsicFiles = None,
    as_json: AsJson = False,
) -> None:
    """Say all that is wrong with a machine file at once, and what nothing can be told of.

    With --intrinsic, also whether the units run there.
    """
    from amos.intrinsics import Intrinsic
    from amos.machine import catalogue
    from amos.plan.target import target_of

    problems, units, missing = [*catalogue.problems_of(machine)], list[Intrinsic](), list[str]()
    for file in files or ():
        try:
            units += load_intrinsics([file])
        except AmosError as error:
            problems.append(str(error))
    if not problems:
        described = amos.machines.get(machine, units)
        problems += _problems_of_host(described)
        for unit in units:
            problems += target_of(described).list_missing(unit, described)
        missing = _missing(described, units)
    if as_json:
        print_json({"machine": machine, "problems": problems, "missing": missing})
    else:
        for problem in problems:
            print_line(f"problem    {problem}")
        for text in missing:
            print_line(f"missing    {text}")
        if not problems:
            print_line(f"{machine}: describes {described.name}")
    if problems:
        raise typer.Exit(2)


def _problems_of_host(machine: Machine) -> list[str]:
    """Describe problems of the machine that drives a unit, if one is named."""
    from amos.plan.target import target_of

    if not machine.host:
        return []
    try:
        host = amos.machines.get(machine.host)
    except AmosError as error:
        return [f"host: {error}"]
    if target_of(host).has_engine:
        return []
    return [f"host: expected a CPU, got the unit {host.name!r}"]


def _missing(machine: Machine, units: Sequence[Intrinsic]) -> list[str]:
    """List what a machine file lacks, and figures that are missing therefore."""
    from amos.perfmodel import missing_energies
    from amos.plan.target import target_of

    if not target_of(machine).counts_accesses:
        return []
    pads = [pad for unit in units for pad in unit.scratchpads]
    missing = [f"{key}: no energy" for key in missing_energies(machine, pads)]
    if not machine.host:
        missing.append("host: no time of what the unit does not compute")
    if not units and not machine.peaks:
        missing.append("peak: no rate of any unit; --intrinsic FILE brings that of its timing")
    return missing


@app.command("keys")
def keys_command(as_json: AsJson = False) -> None:
    """List the keys of machine files, and what they mean."""
    from amos.cli.keys import machine_keys

    print_keys(machine_keys(), as_json)


@app.command("probe")
def probe_command(
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget earlier figures instead of keeping the best.")
    ] = False,
    opencl: Annotated[
        bool, typer.Option("--opencl", help="Describe an OpenCL device here instead, as TOML.")
    ] = False,
    device: Annotated[
        str, typer.Option("--device", help="With --opencl: part of the device's name.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Measure this machine: intrinsic rates, bandwidth of each level, launch, clock."""
    from amos.measure.host import cache_file

    if opencl:
        from amos.opencl.probe import probe_device, write_toml

        described = probe_device(device)
        if as_json:
            print_json(described)
        else:
            print_line(write_toml(described))
        return
    probed = amos.machines.probe(fresh=fresh)
    if as_json:
        print_json(probed)
    else:
        print_line(f"{probed}\nkept in {cache_file()}")
