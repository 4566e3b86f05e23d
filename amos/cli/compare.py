"""``amos compare``: machines with their units, on whole networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import amos
from amos.cli import options
from amos.cli.energy import microjoules
from amos.cli.models import InputShapes, read_input_shapes
from amos.cli.output import milliseconds, percent, print_json, print_line, print_table

if TYPE_CHECKING:
    from amos.network.designs import DesignRow


def compare_command(
    names: Annotated[
        list[str],
        typer.Argument(metavar="MACHINE… MODEL…", help="Names or TOML files, and ONNX files."),
    ],
    files: options.IntrinsicFiles = None,
    shape: InputShapes = None,
    layers: Annotated[bool, typer.Option("--layers", help="Also print every layer.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Draw energy against time.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare machines on networks: time, energy, utilization, traffic; * is the Pareto front.

    Units of --intrinsic run on the machines that they have a rate of. Nothing is run.
    """
    from amos.network.designs import compare_designs

    units = options.load_intrinsics(files)
    models = [name for name in names if name.endswith(".onnx")]
    shapes = read_input_shapes(shape)
    networks = {name: amos.load_network(name, shapes=shapes) for name in models}
    rows = compare_designs([name for name in names if name not in models], networks, units)
    if plot is not None:
        amos.viz.write(amos.viz.designs(rows), plot)
    if as_json:
        print_json([row.to_dict() for row in rows])
        return
    _print(rows)
    for row in rows:
        if problem := row.report.problem:
            print_line(f"{Path(row.model).stem} on {row.report.machine}: {problem}")
    if layers:
        for row in rows:
            _print_layers(row)


def _print(rows: list[DesignRow]) -> None:
    print_table(
        ["model", "machine", "modelled", "ms", "mJ", "of peak", "MiB", "front"],
        [
            [Path(row.model).stem, x.machine, percent(x.modelled_share), milliseconds(row.seconds)]
            + [None if x.energy_joules is None else x.energy_joules * 1e3, percent(x.utilization)]
            + [None if x.traffic_bytes is None else x.traffic_bytes / (1 << 20)]
            + ["*" if row.pareto else ""]
            for row in rows
            for x in [row.report]
        ],
    )


def _print_layers(row: DesignRow) -> None:
    print_table(
        ["layer", "count", "ms each", "uJ each", "of peak", "KiB each", "why not"],
        [
            [layer.operator, layer.count, milliseconds(layer.unit_seconds)]
            + [microjoules(layer.energy_joules), percent(layer.utilization)]
            + [None if layer.traffic_bytes is None else layer.traffic_bytes / 1024, layer.reason]
            for layer in row.report.tasks
        ],
        title=f"{Path(row.model).stem} on {row.report.machine}",
    )
