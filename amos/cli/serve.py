"""``amos serve``: the explorer as a local web page."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import typer

import amos
from amos.cli import options
from amos.cli.output import print_line, print_warning

if TYPE_CHECKING:
    from amos.intrinsics import Intrinsic
    from amos.machine import Machine


@lru_cache(maxsize=64)
def _measure_host(unit: Intrinsic) -> Machine:
    """Describe this computer, with its measured rate of an intrinsic."""
    return amos.machines.get("host", [unit])


def serve_command(
    operator: Annotated[
        str, typer.Argument(metavar="[OPERATOR]", help="What the page begins with.")
    ] = "conv2d",
    intrinsic: Annotated[
        str, typer.Argument(metavar="[INTRINSIC]", help="What it is matched with at first.")
    ] = "wmma_m16n16k16_f16_f32",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes one that is free.")
    ] = 0,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    public: Annotated[
        bool, typer.Option("--public", help="Allow an address that other computers reach.")
    ] = False,
    rule: Annotated[
        options.RuleName, typer.Option(help="What counts as a valid matching at first.")
    ] = "access",
    machine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What the model predicts for at first: a described machine, 'auto', or 'host', "
            "which is measured when it is chosen.",
        ),
    ] = "auto",
    commute: options.Commute = False,
    files: options.IntrinsicFiles = None,
) -> None:
    """Explore mapping spaces on a web page, on this computer alone."""
    from amos.explorer import Engine, State
    from amos.explorer.server import Server, is_loopback

    loaded = options.load_intrinsics(files)
    amos.intrinsics.get(intrinsic)
    state = State(
        operator=operator, intrinsic=intrinsic, rule=rule, machine=machine, commute=commute
    )
    named = {unit.name: path.resolve() for unit, path in zip(loaded, files or (), strict=True)}
    engine = Engine(named, initial=state, host=_measure_host)
    engine.check()
    server = Server(engine, host, port, public=public)
    if not is_loopback(host):
        print_warning("whoever can reach this computer can use this page")
    print_line(f"AMOS explorer at {server.address}  (Ctrl-C ends it)")
    server.run()
